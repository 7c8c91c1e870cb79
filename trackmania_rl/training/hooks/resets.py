"""Partial resets of the network."""

from __future__ import annotations

from typing import Any, ClassVar

from typing_extensions import override

from trackmania_rl.training.hooks.hook import Hook


class ResetPeriodically(Hook):
    """Mixes the network with a fresh one every `reset_every_n_frames_generated` frames.

    Then trains on `additional_transitions_after_reset` more transitions than the replay ratio requires. Frames are
    counted from the last reset, or from the moment at which resets were switched on.
    """

    section: ClassVar[str] = "resets"

    def __init__(self) -> None:
        self._counted_from_frames = 0

    @override
    def before_updates(self) -> None:
        agent = self.run.settings.agent
        every_frames = agent.reset_every_n_frames_generated
        frames = self.run.statistics.frames_total
        if every_frames == 0:
            self._counted_from_frames = frames
        elif frames - self._counted_from_frames >= every_frames:
            self._counted_from_frames = frames
            self.run.agent.reset_partially()
            self.run.replay.transitions_due += agent.additional_transitions_after_reset

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"counted_from_frames": self._counted_from_frames}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._counted_from_frames = state_dict["counted_from_frames"]
