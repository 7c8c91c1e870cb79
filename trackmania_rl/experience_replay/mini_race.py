"""Mini-races: the cut of sampled transitions to a horizon of fixed duration.

The agent estimates the rewards of the next few seconds instead of the time to a finish that is minutes away. Each
sampled state is at a random point of a *mini-race*; rewards beyond the mini-race's end do not count, so that the sum is
bounded and gamma may be 1.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import torch
from tensordict import TensorDict

from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES
from trackmania_rl.experience_replay.transitions import Transitions
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.settings import ReplaySettings

GATHERED_ACTIONS: Final = 5
"""Elapsed times up to this are drawn as 0, the full horizon."""


@dataclass
class MiniRaceRules:
    """Parameters of mini-races, shared by the train and the test buffer. A changed field applies to the next batch.

    Attributes:
        gamma: discount of one action; scheduled, hence not stored with the transitions.
        duration_actions: length of a mini-race; None for no mini-races: the elapsed time is 0, and nothing is cut.
        oversample_long_term_steps: elapsed times below about this (long horizons) are drawn twice as often as others.

    Raises:
        ValueError: if an elapsed time could reach the mini-race's end.
    """

    gamma: float
    duration_actions: int | None
    oversample_long_term_steps: int = 0

    def __post_init__(self) -> None:
        if self.duration_actions is not None and self.oversample_long_term_steps > self.duration_actions:
            raise ValueError(
                f"oversample_long_term_steps = {self.oversample_long_term_steps} is more than the mini-race lasts "
                f"(temporal_mini_race_duration_actions = {self.duration_actions})"
            )

    @staticmethod
    def from_settings(settings: ReplaySettings, gamma: float) -> MiniRaceRules:
        """Make the rules of a configuration."""
        return MiniRaceRules(
            gamma=gamma,
            duration_actions=settings.temporal_mini_race_duration_actions,
            oversample_long_term_steps=settings.oversample_long_term_steps,
        )

    def draw_elapsed_actions(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Draw elapsed times, (n,) int64 on the generator's device, from 0 to `duration_actions - 1`.

        abs(uniform integer in [-long + gathered, duration + gathered)) - gathered, at least 0: the absolute value
        doubles the short times, the subtraction gathers the shortest at 0. Without mini-races the times are 0.
        """
        if self.duration_actions is None:
            return torch.zeros(n, dtype=torch.int64, device=generator.device)
        low = GATHERED_ACTIONS - self.oversample_long_term_steps
        high = GATHERED_ACTIONS + self.duration_actions
        elapsed_of_draw = _elapsed_of_draw(low, high, generator.device)
        return elapsed_of_draw.take(torch.randint(high - low, (n,), generator=generator, device=generator.device))


def cut_to_mini_races(transitions: Transitions, elapsed: torch.Tensor, rules: MiniRaceRules) -> TensorDict:
    """Cut B transitions, of which `elapsed` (B,) actions are over, to mini-races, see `buffer_collate_function`.

    The transitions are changed, and used in the batch.
    """
    discounts, of_rewards, is_beyond = _discounts(rules.gamma, transitions.rewards.shape[1], elapsed.device)
    duration_actions = NEVER_FINISHES if rules.duration_actions is None else rules.duration_actions
    actions_left = duration_actions - elapsed  # (B,)
    n_steps = torch.minimum(transitions.n_steps, actions_left)  # (B,) after the cut
    is_terminal = n_steps >= torch.minimum(transitions.terminal_actions, actions_left)  # (B,)
    gamma_n = discounts.take(n_steps).masked_fill_(is_terminal, 0.0)  # (B,)
    # A mask rather than a product: rows after a transition may be uninitialised, even NaN.
    discounted = transitions.rewards * of_rewards  # (B, n_steps_max)
    rewards = discounted.masked_fill_(is_beyond.index_select(0, n_steps), 0.0).sum(1)  # (B,)
    shaping = gamma_n * transitions.next_state_potential - transitions.state_potential  # (B,)
    is_timed = rules.duration_actions is not None
    transitions.state_float.select(1, ELAPSED_ACTIONS_FLOAT).copy_(elapsed)
    transitions.next_state_float.select(1, ELAPSED_ACTIONS_FLOAT).copy_(elapsed + n_steps if is_timed else elapsed)
    is_continuous = transitions.action.ndim > 1
    batch = {
        "state_img": transitions.state_img,
        "state_float": transitions.state_float,
        "action": transitions.action if is_continuous else transitions.action.long(),
        "reward": rewards + shaping,
        "next_state_img": transitions.next_state_img,
        "next_state_float": transitions.next_state_float,
        "gamma_n": gamma_n,
        "n_steps": n_steps,
        "index": transitions.index,
        "weight": torch.ones_like(gamma_n),
    }
    # tensordict's checks of each entry would take a seventh of the time to draw a batch of 64.
    return TensorDict._new_unsafe(batch | transitions.entries, batch_size=elapsed.shape)


@functools.lru_cache(maxsize=8)
def _elapsed_of_draw(low: int, high: int, device: torch.device) -> torch.Tensor:
    return torch.arange(low, high, device=device).abs_().sub_(GATHERED_ACTIONS).clamp_(min=0)


@functools.lru_cache(maxsize=8)
def _discounts(gamma: float, n_steps_max: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the discounts (n_steps_max + 1,) of 0, 1, ... actions, those of rewards, and the rewards beyond."""
    steps = torch.arange(n_steps_max + 1, device=device)
    discounts = (gamma ** steps.double()).float()
    return discounts, discounts[:-1], steps[:-1] >= steps[:, None]
