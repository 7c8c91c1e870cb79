"""A float of your own in the observation: the car's slip angle.

    python scripts/train.py --set run_name=slipping --set games=examples.slip_angle:SlipAngle

Computed once per state from the game's floats, for driving and for the replay memory.
"""

import numpy as np

from trackmania_rl.games.race_games import Floats, RaceGames

LEFT, FORWARD = 0, 2
"""Axes of a velocity in the car's frame."""


class SlipAngle(RaceGames):
    """Races with the angle between the car's axis and its velocity, in radians, in the observation."""

    extra_mean = (0.0,)
    extra_std = (0.3,)

    def extra_floats(self, floats: Floats) -> Floats:
        """Compute the angle (n, 1) of n states (n, F), positive to the left, 0 at rest."""
        velocity_m_s = floats[:, self.layout["velocity_m_s"]]
        is_driving = np.linalg.norm(velocity_m_s, axis=1) > 1.0
        angle = np.arctan2(velocity_m_s[:, LEFT], np.abs(velocity_m_s[:, FORWARD]))
        return np.where(is_driving, angle, 0.0)[:, np.newaxis]
