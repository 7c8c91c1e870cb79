"""Mini-races: what the learner sees of a transition.

The agent does not estimate the time to a finish that is minutes away, but the rewards of the next few seconds. Each
sampled state is put at a random point of a *mini-race* of fixed duration; what lies beyond the mini-race's end does not
count, so that the sum is bounded and gamma may be 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from trackmania_rl.experience_replay.ring_buffer import NEVER_FINISHES
from trackmania_rl.experience_replay.transition_storage import Transitions, count
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.settings import ReplaySettings


@dataclass
class MiniRaceRules:
    """How transitions become mini-races.

    Mutable, and shared by the train and the test buffer: set a field, and the next batch of either follows it.

    Attributes:
        gamma: discount of one action; follows a schedule, hence is not stored with the transitions.
        duration_actions: length of a mini-race; None for no mini-races: the time elapsed is 0, and nothing is cut.
        oversample_long_term_steps: elapsed times from 1 to this - 2 x `oversample_maximum_term_steps` (long horizons)
            are drawn twice as often as later ones.
        oversample_maximum_term_steps: elapsed time 0 (the full horizon) is drawn 2 x this + 1 times as often as later
            ones, where the setting above is at least 2 x this; where that is 0, this has no effect.

    Raises:
        ValueError: if an elapsed time could reach the mini-race's end.
    """

    gamma: float
    duration_actions: int | None
    oversample_long_term_steps: int = 0
    oversample_maximum_term_steps: int = 0

    def __post_init__(self) -> None:
        if self.duration_actions is not None and self.oversample_long_term_steps > self.duration_actions:
            raise ValueError(
                f"oversample_long_term_steps = {self.oversample_long_term_steps} is more than the mini-race lasts "
                f"(temporal_mini_race_duration_actions = {self.duration_actions})"
            )

    @staticmethod
    def from_settings(settings: ReplaySettings, gamma: float) -> MiniRaceRules:
        """Make the rules that a configuration asks for."""
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

    def draw_elapsed_actions(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Draw times already elapsed, (n,) int64 on the generator's device, from 0 to `duration_actions - 1`.

        Without mini-races they are 0.

        abs(uniform integer in [-long + maximum, duration + maximum)) - maximum, at least 0: the absolute value folds
        the negative draws over the short times, the subtraction gathers the shortest at 0.
        """
        if self.duration_actions is None:
            return torch.zeros(n, dtype=torch.int64, device=generator.device)
        low = self.oversample_maximum_term_steps - self.oversample_long_term_steps
        high = self.oversample_maximum_term_steps + self.duration_actions
        draw = torch.randint(low, high, (n,), generator=generator, device=generator.device)
        return draw.abs_().sub_(self.oversample_maximum_term_steps).clamp_(min=0)


def cut_to_mini_races(transitions: Transitions, elapsed: torch.Tensor, rules: MiniRaceRules) -> TensorDict:
    """Cut transitions to mini-races, see `buffer_collate_function`.

    The same lines are for both kinds of arrays: on the host numpy takes half of torch's time for a small batch, and on
    a device nothing waits for it.

    Args:
        transitions: B of them; taken over, and changed.
        elapsed: (B,) int64, actions of the mini-race that are over at each state.
        rules: discount and mini-races at this moment.
    """
    on_host = isinstance(transitions.index, np.ndarray)
    xp: Any = np if on_host else torch
    elapsed_actions: Any = elapsed.numpy() if on_host else elapsed
    steps = count(transitions.rewards.shape[1] + 1, beside=transitions.index)  # (n + 1,) for n steps at most
    discounts = xp.asarray(rules.gamma**steps, dtype=xp.float32)
    duration_actions = NEVER_FINISHES if rules.duration_actions is None else rules.duration_actions
    actions_left = duration_actions - elapsed_actions  # (B,)
    n_steps = xp.minimum(transitions.n_steps, actions_left)  # (B,) after the cut
    is_terminal = n_steps >= xp.minimum(transitions.terminal_actions, actions_left)  # (B,)
    gamma_n = xp.where(is_terminal, 0.0, discounts[n_steps])  # (B,)
    # where() rather than a product: what comes after a transition may be uninitialised, thus not even a number.
    rewards = xp.where(steps[:-1] < n_steps[:, None], transitions.rewards * discounts[:-1], 0.0)  # (B, n)
    shaping = gamma_n * transitions.next_state_potential - transitions.state_potential  # (B,)
    transitions.state_float[:, ELAPSED_ACTIONS_FLOAT] = elapsed_actions
    is_timed = rules.duration_actions is not None
    transitions.next_state_float[:, ELAPSED_ACTIONS_FLOAT] = elapsed_actions + n_steps if is_timed else 0
    is_continuous = transitions.action.ndim > 1
    columns = {
        "state_float": transitions.state_float,
        "action": transitions.action if is_continuous else xp.asarray(transitions.action, dtype=xp.int64),
        "reward": rewards.sum(1) + shaping,
        "next_state_float": transitions.next_state_float,
        "gamma_n": gamma_n,
        "n_steps": n_steps,
        "index": transitions.index,
        "weight": xp.ones_like(gamma_n),
    }
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()} if on_host else columns
    images = {"state_img": transitions.state_img, "next_state_img": transitions.next_state_img}
    entries = {name: torch.as_tensor(entry) for name, entry in transitions.entries.items()}
    return TensorDict(tensors | images | entries, batch_size=elapsed.shape)
