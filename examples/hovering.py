"""A Gymnasium environment of your own: hold a drone at a height, with a thrust that is weak, right or strong.

    python scripts/train.py --config config_files/config_cartpole.py --set run_name=hovering \
        --set games=examples.hovering:HoveringGames

Any environment with Discrete actions or a bounded Box trains like this; config_files/config_cartpole.py names a
registered one.
"""

import functools
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from trackmania_rl.games.gymnasium_games import GymnasiumGames

Seen = npt.NDArray[np.float32]

THRUSTS_M_S2 = (5.0, 9.81, 15.0)
GRAVITY_M_S2 = 9.81
STEP_S = 0.1
FARTHEST_M, FASTEST_M_S = 5.0, 10.0
LONGEST_STEPS = 200


class Hovering(gymnasium.Env[Seen, Any]):
    """Hover at a height. Observation: height above it and speed, (2,); reward: being near; end: far away."""

    def __init__(self) -> None:
        bounds = np.array([FARTHEST_M, FASTEST_M_S], dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(-bounds, bounds)
        self.action_space = gymnasium.spaces.Discrete(len(THRUSTS_M_S2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        """Begin at rest within 2 m."""
        super().reset(seed=seed)
        self.height_m, self.speed_m_s, self.n_steps = float(self.np_random.uniform(-2, 2)), 0.0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Hold a thrust for 0.1 s."""
        self.speed_m_s += STEP_S * (THRUSTS_M_S2[action] - GRAVITY_M_S2)
        self.height_m += STEP_S * self.speed_m_s
        self.n_steps += 1
        is_lost = abs(self.height_m) > FARTHEST_M
        return self._seen(), 1 - abs(self.height_m) / FARTHEST_M, is_lost, self.n_steps == LONGEST_STEPS, {}

    def _seen(self) -> Seen:
        seen = np.array([self.height_m, self.speed_m_s], dtype=np.float32)
        return np.clip(seen, self.observation_space.low, self.observation_space.high)  # type: ignore[attr-defined]


HoveringGames = functools.partial(GymnasiumGames, env=Hovering)
