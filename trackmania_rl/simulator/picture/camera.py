"""The camera behind the car: where it is, and the world in its axes.

Camera axes are x right, y down (as rows of a picture run) and z ahead. The camera is bolted to the car, as a pure
function of the car's pose: a rewound race shows the very same pictures, and the same place of the picture always is
the same direction seen from the car.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled

BEHIND_CAR_M = 7.5
"""Distance of the camera behind the car's origin, along the car."""
ABOVE_CAR_M = 3.4
"""Height of the camera above the car's origin, along the car's up."""
PITCH_DOWN_RAD = math.radians(11.0)
"""Angle that the camera looks down from the car's forward axis."""
VERTICAL_FIELD_OF_VIEW_RAD = math.radians(60.0)
"""Whole angle between the picture's top and bottom; with 4:3 pictures that is 75 degrees from left to right."""

_COS_PITCH = math.cos(PITCH_DOWN_RAD)
_SIN_PITCH = math.sin(PITCH_DOWN_RAD)
_FOCAL_LENGTH_HEIGHTS = 0.5 / math.tan(0.5 * VERTICAL_FIELD_OF_VIEW_RAD)


class Camera(NamedTuple):
    """A pinhole camera.

    Attributes:
        position_m: (3,) float64, world.
        axes: (3, 3) float64; the rows are the camera's right, down and ahead in world axes.
    """

    position_m: npt.NDArray[np.float64]
    axes: npt.NDArray[np.float64]


def focal_length_px(height_px: int) -> float:
    """Focal length, in pixels, of a picture of this height; pixels are square, so width only widens the view."""
    return _FOCAL_LENGTH_HEIGHTS * height_px


@compiled
def chase_camera(car_position_m: npt.NDArray[np.float64], car_rotation: npt.NDArray[np.float64]) -> Camera:
    """The camera behind a car.

    Args:
        car_position_m: (3,) float64, world.
        car_rotation: (3, 3) float64, car to world; columns are the car's left, up and forward.
    """
    position = np.empty(3)
    axes = np.empty((3, 3))
    for axis in range(3):
        left, up, forward = car_rotation[axis, 0], car_rotation[axis, 1], car_rotation[axis, 2]
        position[axis] = car_position_m[axis] - BEHIND_CAR_M * forward + ABOVE_CAR_M * up
        axes[0, axis] = -left
        axes[1, axis] = -_COS_PITCH * up - _SIN_PITCH * forward
        axes[2, axis] = _COS_PITCH * forward - _SIN_PITCH * up
    return Camera(position, axes)


@compiled
def depth_in_view(camera: Camera, points_m: npt.NDArray[np.float64], row: int) -> float:
    """How far ahead of the camera a row of world points (N, 3) is, in metres; negative behind it."""
    position, axes = camera.position_m, camera.axes
    return (
        (points_m[row, 0] - position[0]) * axes[2, 0]
        + (points_m[row, 1] - position[1]) * axes[2, 1]
        + (points_m[row, 2] - position[2]) * axes[2, 2]
    )


@compiled
def to_camera_axes(camera: Camera, points_m: npt.NDArray[np.float64], count: int, seen_m: npt.NDArray) -> None:
    """Writes the first `count` world points (3, N) to `seen_m` (3, N) in camera axes: metres right, down and ahead."""
    position, axes = camera.position_m, camera.axes
    for axis in range(3):
        along_x, along_y, along_z = axes[axis, 0], axes[axis, 1], axes[axis, 2]
        for column in range(count):
            x = points_m[0, column] - position[0]
            y = points_m[1, column] - position[1]
            z = points_m[2, column] - position[2]
            seen_m[axis, column] = along_x * x + along_y * y + along_z * z
