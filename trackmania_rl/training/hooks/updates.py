"""What happens around updates: schedules, resets and publishing."""

from __future__ import annotations

from typing import Any, Final

from trackmania_rl.schedules import exponential, linear
from trackmania_rl.training.hooks.finite_numbers import WatchNumbers
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.replay import SampleAtReplayRatio

TRANSITIONS_AFTER_RESET: Final = 1_600_000
"""Transitions trained on in addition after a reset."""


class FollowSchedules(Hook):
    """Brings agent and memory up to date before each race's updates.

    Attributes:
        learning_rate, gamma: of this round's updates.
    """

    def __init__(self) -> None:
        self.learning_rate = 0.0
        self.gamma = 0.0

    def begin(self) -> None:
        """Apply the schedules before the first race."""
        self.pre_optim_steps()

    def pre_optim_steps(self) -> None:
        """Apply the schedules at the Trainer's frame count."""
        settings, frames = self.run.settings, self.trainer.collected_frames
        self.learning_rate = exponential(settings.agent.lr_schedule, frames)
        self.run.agent.follow(settings.agent, self.learning_rate)
        self.gamma = linear(settings.agent.gamma_schedule, frames)
        self.run.memory.follow(settings, frames)

    def interval_figures(self) -> dict[str, float]:
        """Return the scheduled values that the terminal does not show."""
        settings = self.run.settings
        return {
            "train/schedule/weight_decay": self.learning_rate * settings.agent.weight_decay_lr_ratio,
            "train/schedule/n_steps": float(settings.replay.n_steps),
            "train/schedule/replay_ratio": settings.replay.number_times_single_memory_is_used_before_discard,
        }


class ResetPeriodically(Hook):
    """Mixes the network with a fresh one every `reset_every_n_frames_generated` frames.

    After that it trains more than the replay ratio asks, by `TRANSITIONS_AFTER_RESET`. The frames are
    counted from the last reset, or from when resets were switched on.

    Args:
        sampling: draws the additional transitions.
    """

    def __init__(self, sampling: SampleAtReplayRatio) -> None:
        self._sampling = sampling
        self._counted_from_frames = 0

    def pre_optim_steps(self) -> None:
        """Reset if it is due."""
        agent, frames = self.run.settings.agent, self.trainer.collected_frames
        if agent.reset_every_n_frames_generated == 0:
            self._counted_from_frames = frames
        elif frames - self._counted_from_frames >= agent.reset_every_n_frames_generated:
            self._counted_from_frames = frames
            self.run.agent.reset_partially()
            self._sampling.transitions_due += TRANSITIONS_AFTER_RESET

    def state_dict(self) -> dict[str, Any]:
        """Return the frame count at which counting began."""
        return {"counted_from_frames": self._counted_from_frames}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load it."""
        self._counted_from_frames = state_dict["counted_from_frames"]


class PublishRunState(Hook):
    """Publishes new weights every `send_shared_network_every_n_batches` updates, edits as they come, and frames.

    Where collectors take turns, weights and frames are published between two turns only. Weights that are not finite
    are never published, nor averaged: they end the run.

    Args:
        numbers: checks the weights.
    """

    def __init__(self, numbers: WatchNumbers) -> None:
        self._numbers = numbers

    def begin(self) -> None:
        """Publish everything."""
        self._publish_weights()
        self._publish_frames()
        self.tick()

    def post_optim(self) -> None:
        """Publish weights after every so many updates."""
        if self.run.agent.updates % self.run.settings.sync.send_shared_network_every_n_batches == 0:
            self._numbers.require_sound_networks()
            self.run.agent.average_weights()
            if not self.run.settings.takes_turns:
                self._publish_weights()

    def post_steps(self) -> None:
        """Publish the frame count."""
        if not self.run.settings.takes_turns:
            self._publish_frames()

    def begin_turn(self) -> None:
        """Publish weights and frame count for the turn."""
        self._numbers.require_sound_networks()
        self._publish_weights()
        self._publish_frames()

    def tick(self) -> None:
        """Publish edits of the run's configuration."""
        self.run.live.refresh()
        self.run.channels.run_state.publish(settings=self.run.settings)
        self.post_steps()

    def _publish_frames(self) -> None:
        self.run.channels.run_state.publish(frames_total=self.trainer.collected_frames)

    def _publish_weights(self) -> None:
        agent = self.run.agent
        self.run.channels.run_state.publish(
            weights={"exploration": agent.exploration_network, "evaluation": agent.evaluation_network}
        )
