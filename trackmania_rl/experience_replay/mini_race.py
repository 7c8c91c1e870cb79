"""Mini-races: what the learner sees of a transition.

The agent does not estimate the time to a finish that is minutes away, but the rewards of the next few seconds. Each
sampled state is put at a random point of a *mini-race* of fixed duration; what lies beyond the mini-race's end does not
count, so that the sum is bounded and gamma may be 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorClass, TensorDict

from trackmania_rl.settings import ReplaySettings


@dataclass
class MiniRaceRules:
    """How transitions become mini-races.

    Mutable, and shared by the train and the test buffer: set a field, and the next batch of either follows it.

    Attributes:
        gamma: discount of one action; follows a schedule, hence is not stored with the transitions.
        duration_actions: length of a mini-race.
        oversample_long_term_steps: elapsed times from 1 to this - 2 x `oversample_maximum_term_steps` (long horizons)
            are drawn twice as often as later ones.
        oversample_maximum_term_steps: elapsed time 0 (the full horizon) is drawn 2 x this + 1 times as often as later
            ones, where the setting above is at least 2 x this; where that is 0, this has no effect.

    Raises:
        ValueError: if an elapsed time could reach the mini-race's end.
    """

    gamma: float
    duration_actions: int
    oversample_long_term_steps: int = 0
    oversample_maximum_term_steps: int = 0

    def __post_init__(self) -> None:
        if self.oversample_long_term_steps > self.duration_actions:
            raise ValueError(
                f"oversample_long_term_steps = {self.oversample_long_term_steps} is more than the mini-race lasts "
                f"(temporal_mini_race_duration_actions = {self.duration_actions})"
            )

    @staticmethod
    def from_settings(settings: ReplaySettings, gamma: float) -> MiniRaceRules:
        """The rules that a configuration asks for."""
        return MiniRaceRules(
            gamma=gamma,
            duration_actions=settings.temporal_mini_race_duration_actions,
            oversample_long_term_steps=settings.oversample_long_term_steps,
            oversample_maximum_term_steps=settings.oversample_maximum_term_steps,
        )

    def follow(self, settings: ReplaySettings) -> None:
        """Take over an edited configuration; the discount has a schedule of its own."""
        self.duration_actions = settings.temporal_mini_race_duration_actions
        self.oversample_long_term_steps = settings.oversample_long_term_steps
        self.oversample_maximum_term_steps = settings.oversample_maximum_term_steps

    def draw_elapsed_actions(self, n: int, generator: torch.Generator | None, device: torch.device) -> torch.Tensor:
        """(n,) int64: times already elapsed, from 0 to `duration_actions - 1`.

        abs(uniform integer in [-long + maximum, duration + maximum)) - maximum, at least 0: the absolute value folds
        the negative draws over the short times, the subtraction gathers the shortest at 0.
        """
        low = self.oversample_maximum_term_steps - self.oversample_long_term_steps
        high = self.oversample_maximum_term_steps + self.duration_actions
        draw = torch.randint(low, high, (n,), generator=generator, device=device)
        return draw.abs_().sub_(self.oversample_maximum_term_steps).clamp_(min=0)


class MiniRaceBatch(TensorClass):
    """B transitions of mini-races, all on one device.

    Attributes:
        state_img: (B, S, H, W) uint8, S frames of which the newest is last; H = W = 0 without an image.
        state_float: (B, F) float32; the elapsed time is float `ELAPSED_ACTIONS_FLOAT`.
        action: (B,) int64.
        reward: (B,) float32: discounted n-step sum, shaping included.
        next_state_img: like `state_img`. Without meaning where `gamma_n` is 0.
        next_state_float: like `state_float`. Without meaning where `gamma_n` is 0.
        gamma_n: (B,) float32: factor of the next state's value; 0 where the mini-race ends.
        row_id: (B,) int64: rows of the transitions, for `update_priority`.
        weight: (B,) float32: importance, a factor of the loss; 1 unless drawn by priority.
    """

    state_img: torch.Tensor
    state_float: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    next_state_img: torch.Tensor
    next_state_float: torch.Tensor
    gamma_n: torch.Tensor
    row_id: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def of(cls, **columns: torch.Tensor) -> MiniRaceBatch:
        """A batch of these tensors; the constructor, which sets them one by one, takes three times as long."""
        batch: MiniRaceBatch = cls.from_tensordict(TensorDict(columns, batch_size=columns["row_id"].shape))
        return batch

    def plain(self) -> TensorDict:
        """The same tensors as a plain `TensorDict`; `to_tensordict()` would copy them."""
        tensors: TensorDict = self._tensordict
        return tensors
