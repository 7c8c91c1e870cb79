"""Everything that changes with the frame count, or by an edit of the configuration."""

from __future__ import annotations

import logging

from trackmania_rl.buffer_utilities import apply_replay_settings, resize_buffers
from trackmania_rl.schedules import exponential, linear, staircase
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


class FollowSchedules(Hook):
    """Brings agent and memory up to date before each race's updates.

    Attributes:
        learning_rate: of this round's updates.
    """

    def __init__(self) -> None:
        self._refused_memory_size: int | None = None
        self.learning_rate = 0.0

    def begin(self) -> None:
        """Be up to date from the beginning."""
        self.pre_optim_steps()

    def pre_optim_steps(self) -> None:
        """Apply the schedules at the Trainer's frame count."""
        settings, frames, memory = self.run.settings, self.trainer.collected_frames, self.run.memory
        self.learning_rate = exponential(settings.agent.lr_schedule, frames)
        self.run.agent.follow(settings.agent, self.learning_rate)
        apply_replay_settings(memory.buffer, memory.buffer_test, settings.replay)
        memory.buffer.rules.gamma = linear(settings.agent.gamma_schedule, frames)
        self._resize_memory(staircase(settings.replay.memory_size_schedule, frames))

    def interval_figures(self) -> dict[str, float]:
        """What is in force beside the four values that the terminal shows."""
        settings = self.run.settings
        return {
            "train/schedule/weight_decay": self.learning_rate * settings.agent.weight_decay_lr_ratio,
            "train/schedule/n_steps": float(settings.replay.n_steps),
            "train/schedule/replay_ratio": settings.replay.number_times_single_memory_is_used_before_discard,
        }

    def _resize_memory(self, memory_size: int) -> None:
        """Let the memory hold `memory_size` rows; without room for them it stays as it is, which is said once."""
        if memory_size == self._refused_memory_size:
            return
        buffer = self.run.memory.buffer
        try:
            resize_buffers(buffer, memory_size)
        except RuntimeError:  # how torch says on any device that there is no memory
            self._refused_memory_size = memory_size
            log.error(
                "there is no room for a replay memory of %s transitions, so it keeps its %s: lower "
                "memory_size_schedule, or end other programs and start again",
                f"{memory_size:,}",
                f"{buffer.ring.capacity:,}",
            )
