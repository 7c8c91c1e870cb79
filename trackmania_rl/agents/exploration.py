"""Exploration: from values to actions, greedy or with random departures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl import schedules
from trackmania_rl.settings import ExplorationSettings

BOLTZMANN_STD: Final = 0.01
"""Standard deviation of the noise added to Q."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """Departures of a race from the greedy action."""

    epsilon: float  # probability of a random action
    epsilon_boltzmann: float  # probability, in addition, of the best action by values with noise
    boltzmann_std: float  # standard deviation of that noise, in units of reward
    throttle_probability: float | None  # that a random action accelerates and does not brake; None draws evenly

    @classmethod
    def scheduled(cls, settings: ExplorationSettings, frame_count: int) -> Exploration:
        """Return the settings' exploration after `frame_count` actions; schedules interpolate exponentially."""
        return cls(
            epsilon=schedules.exponential(settings.epsilon_schedule, frame_count),
            epsilon_boltzmann=schedules.exponential(settings.epsilon_boltzmann_schedule, frame_count),
            boltzmann_std=BOLTZMANN_STD,
            throttle_probability=settings.random_action_throttle_probability,
        )


GREEDY = Exploration(epsilon=0.0, epsilon_boltzmann=0.0, boltzmann_std=0.0, throttle_probability=None)
"""Always the best action."""


class ActionChooser:
    """Draws actions by the values of states; `throttle_actions` accelerate and do not brake."""

    def __init__(self, n_actions: int, throttle_actions: Sequence[int], rng: np.random.Generator) -> None:
        self._throttle_actions = np.array(throttle_actions, dtype=np.int64)
        self._other_actions = np.setdiff1d(np.arange(n_actions), self._throttle_actions)
        self._rng = rng

    def choose(self, q_values: npt.NDArray[np.float32], explorations: Sequence[Exploration]) -> npt.NDArray[np.int64]:
        """Draw the actions (B,) int64 of B states.

        Args:
            q_values: (B, A).
            explorations: B of them; if all are `GREEDY`, no random number is drawn.
        """
        if all(exploration is GREEDY for exploration in explorations):
            return q_values.argmax(axis=1)
        draws = self._rng.random(len(q_values))
        epsilon = np.array([exploration.epsilon for exploration in explorations])
        is_noisy = draws < epsilon + [exploration.epsilon_boltzmann for exploration in explorations]
        noise_std = np.where(is_noisy, [exploration.boltzmann_std for exploration in explorations], 0.0)
        noise = self._rng.standard_normal(q_values.shape, dtype=np.float32)
        actions = (q_values + noise_std.astype(np.float32)[:, None] * noise).argmax(axis=1)
        for row in np.flatnonzero(draws < epsilon).tolist():
            actions[row] = self._random_action(explorations[row].throttle_probability)
        return actions

    def _random_action(self, throttle_probability: float | None) -> int:
        n_throttle, n_other = len(self._throttle_actions), len(self._other_actions)
        if throttle_probability is None or n_throttle == 0 or n_other == 0:
            return int(self._rng.integers(n_throttle + n_other))
        throttles = self._rng.random() < throttle_probability
        actions = self._throttle_actions if throttles else self._other_actions
        return int(actions[self._rng.integers(len(actions))])
