"""The newest states of an environment's races."""

from __future__ import annotations

import numpy as np

from trackmania_rl.games.protocol import Games, Received
from trackmania_rl.race.spaces import Spaces


class RaceStates:
    """What is known of K games' states; a row for each, overwritten by the next state.

    Args:
        n_games: K.
        spaces: what a state is.

    Attributes:
        images: (K, S, H, W) uint8.
        floats: (K, F) float32.
        meters: (K,) float64, along the line.
        race_time_ms: (K,) int64.
        position_m: (K, 3) float32, in world axes.
        speed_m_s: (K,) float32, as in double precision transports differ in the last bit.
    """

    def __init__(self, n_games: int, spaces: Spaces) -> None:
        self._views = spaces.views
        self.images = np.empty((n_games, *spaces.image_shape), dtype=np.uint8)
        self.floats = np.empty((n_games, spaces.n_floats), dtype=np.float32)
        self.meters = np.empty(n_games)
        self.race_time_ms = np.empty(n_games, dtype=np.int64)
        self.position_m = np.empty((n_games, 3), dtype=np.float32)
        self.speed_m_s = np.empty(n_games, dtype=np.float32)

    def take(self, games: Games, received: Received) -> None:
        """Take over the states that games wait in, and those in which races ended."""
        ids = received.ids
        if len(ids) > 0:
            self.images[ids], self.floats[ids] = received.images, received.floats
            motion = games.motion(ids)
            self.meters[ids], self.race_time_ms[ids] = motion.meters, motion.race_time_ms
            self.position_m[ids], self.speed_m_s[ids] = motion.position_m, motion.speed_m_s
        for game, race in received.ended.items():
            assert race.end is not None
            last = race.end.last
            self.images[game], self.floats[game] = self._views.look_at_last(race.rollout_results)
            self.meters[game], self.race_time_ms[game] = last.meters, last.race_time_ms
            self.position_m[game], self.speed_m_s[game] = last.position_m, last.speed_m_s
