"""Resets that restore a network's ability to learn."""

from __future__ import annotations

from typing import Any

from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.replay import SampleAtReplayRatio


class ResetPeriodically(Hook):
    """Mixes the network with a fresh one every `reset_every_n_frames_generated` frames.

    After that it trains more than the replay ratio asks, by `additional_transitions_after_reset`. The frames are
    counted from the last reset, or from when resets were switched on.

    Args:
        sampling: is told what is due in addition.
    """

    def __init__(self, sampling: SampleAtReplayRatio) -> None:
        self._sampling = sampling
        self._counted_from_frames = 0

    def pre_optim_steps(self) -> None:
        """Reset, if it is time."""
        agent, frames = self.run.settings.agent, self.trainer.collected_frames
        if agent.reset_every_n_frames_generated == 0:
            self._counted_from_frames = frames
        elif frames - self._counted_from_frames >= agent.reset_every_n_frames_generated:
            self._counted_from_frames = frames
            self.run.agent.reset_partially()
            self._sampling.transitions_due += agent.additional_transitions_after_reset

    def state_dict(self) -> dict[str, Any]:
        """Where counting began."""
        return {"counted_from_frames": self._counted_from_frames}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over where counting began."""
        self._counted_from_frames = state_dict["counted_from_frames"]
