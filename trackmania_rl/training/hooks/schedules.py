"""Everything that changes with the frame count, or by an edit of the configuration."""

from __future__ import annotations

from trackmania_rl.schedules import exponential, linear
from trackmania_rl.training.hooks.hook import Hook


class FollowSchedules(Hook):
    """Brings agent and memory up to date before each race's updates.

    Attributes:
        learning_rate, gamma: of this round's updates.
    """

    def __init__(self) -> None:
        self.learning_rate = 0.0
        self.gamma = 0.0

    def begin(self) -> None:
        """Be up to date from the beginning."""
        self.pre_optim_steps()

    def pre_optim_steps(self) -> None:
        """Apply the schedules at the Trainer's frame count."""
        settings, frames = self.run.settings, self.trainer.collected_frames
        self.learning_rate = exponential(settings.agent.lr_schedule, frames)
        self.run.agent.follow(settings.agent, self.learning_rate)
        self.gamma = linear(settings.agent.gamma_schedule, frames)
        self.run.memory.follow(settings, frames)

    def interval_figures(self) -> dict[str, float]:
        """What is in force beside the four values that the terminal shows."""
        settings = self.run.settings
        return {
            "train/schedule/weight_decay": self.learning_rate * settings.agent.weight_decay_lr_ratio,
            "train/schedule/n_steps": float(settings.replay.n_steps),
            "train/schedule/replay_ratio": settings.replay.number_times_single_memory_is_used_before_discard,
        }
