"""Triggers of gates as boxes in the world: whether any part of a car touches one.

A car's parts are the ellipsoids that it collides with. A trigger fires in the tick after which one of them is in its
box, and the time is the race time at the beginning of that tick.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.physics.vehicle_state import WHEELS, ParametersRecord

_REACH_M: Final = 3.0
"""No part of a car is farther than this from its origin."""


class TriggerBoxes(NamedTuple):
    """G boxes along the world's axes; numba takes them as they are.

    Attributes:
        low_m: (G, 3) float64, lowest corners.
        high_m: (G, 3) float64, highest corners.
    """

    low_m: npt.NDArray[np.float64]
    high_m: npt.NDArray[np.float64]


@compiled
def touches_box(
    boxes: TriggerBoxes,
    box: int,
    position_m: npt.NDArray[np.float64],
    rotation: npt.NDArray[np.float64],
    parameters: ParametersRecord,
) -> bool:
    """Whether a car touches a box.

    A part counts as the smallest box along the world's axes around it, which is more than it is only beyond a trigger's
    edges; wheels count as if their dampers were pressed in.

    Args:
        boxes: all of them.
        box: number of the one that is asked for.
        position_m: (3,) the car's origin.
        rotation: (3, 3) car to world.
        parameters: the car's constants, one record.
    """
    for axis in range(3):
        if not boxes.low_m[box, axis] - _REACH_M < position_m[axis] < boxes.high_m[box, axis] + _REACH_M:
            return False
    for wheel in range(WHEELS):
        if _reaches(boxes, box, position_m, rotation, parameters.wheel_points_m[wheel], parameters.wheel_radii_m):
            return True
    for part in range(parameters.body_centers_m.shape[0]):
        center, radii = parameters.body_centers_m[part], parameters.body_radii_m[part]
        if _reaches(boxes, box, position_m, rotation, center, radii):
            return True
    return False


@compiled
def _reaches(
    boxes: TriggerBoxes,
    box: int,
    position_m: npt.NDArray[np.float64],
    rotation: npt.NDArray[np.float64],
    center: npt.NDArray[np.float64],
    radii: npt.NDArray[np.float64],
) -> bool:
    """Whether an ellipsoid, given in the car's axes, reaches into a box along each of the world's axes."""
    for axis in range(3):
        middle_m, reach_m2 = position_m[axis], 0.0
        for own in range(3):
            middle_m += rotation[axis, own] * center[own]
            reach_m2 += (rotation[axis, own] * radii[own]) ** 2
        reach_m = math.sqrt(reach_m2)
        if middle_m - reach_m > boxes.high_m[box, axis] or middle_m + reach_m < boxes.low_m[box, axis]:
            return False
    return True
