"""The reward of the previous step as an input of the network, in a Gymnasium environment.

    python scripts/train.py --config config_files/config_pendulum.py --set run_name=rewarded \
        --set games=examples.previous_reward:PendulumGames

Entries of `info` become inputs in the same way.
"""

import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Tuple

from trackmania_rl.games.gymnasium_games import GymnasiumGames


class PreviousReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the previous reward, 0 at the start, to the observation; `lowest` and `highest` scale it."""

    def __init__(self, env: gymnasium.Env[Any, Any], lowest: float, highest: float) -> None:
        super().__init__(env)
        self.observation_space = Tuple((env.observation_space, Box(lowest, highest, (1,))))

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(**options)
        return self._with(observation, 0.0), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with(observation, float(reward)), float(reward), terminated, truncated, info

    def _with(self, observation: Any, reward: float) -> tuple[Any, Any]:
        return observation, np.array([reward], dtype=np.float32)


def make_pendulum() -> gymnasium.Env[Any, Any]:
    """Make the environment; its rewards are -16.3 to 0."""
    return PreviousReward(gymnasium.make("Pendulum-v1"), -16.3, 0.0)


PendulumGames = functools.partial(GymnasiumGames, env=make_pendulum)
