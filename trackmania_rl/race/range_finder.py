"""The range finder: how far the road's borders are from the car, in 19 directions from right over ahead to left.

Here it is measured on the track's own borders, seen from above: hills do not count, and neither does what lies over or
under the road. `picture_range_finder` measures the same in a picture.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for
from trackmania_rl.protocol import state_blob
from trackmania_rl.protocol.state_blob import STATE_HEAD_DTYPE

_compiled = compiler_for("range_finder", [Path(__file__), Path(state_blob.__file__)])

BEAM_ANGLES_DEG: Final = tuple(range(-90, 91, 10))
"""Of each beam from straight ahead, positive to the left."""
N_BEAMS: Final = len(BEAM_ANGLES_DEG)
POINT_EVERY_M: Final = 1.0
"""Borders are chains of points at this distance. In a turn of 10 m radius they are 13 mm off."""
_SIGHT_PER_ROAD: Final = 0.75
"""A line of sight is at least this share of the way along the road to where it ends; else a bend is in between."""

_SIDEWAYS = np.array([math.sin(math.radians(angle)) for angle in BEAM_ANGLES_DEG])
_AHEAD = np.array([math.cos(math.radians(angle)) for angle in BEAM_ANGLES_DEG])
assert STATE_HEAD_DTYPE.fields is not None
_ROTATION_WORD = STATE_HEAD_DTYPE.fields["rotation"][1] // 4
_POSITION_WORD = STATE_HEAD_DTYPE.fields["position_m"][1] // 4


class RoadBorders(NamedTuple):
    """The borders of one map's road from above, as two chains of Q points each; numba takes it as it is.

    Attributes:
        left_m: (Q, 2) float64, world x and z.
        right_m: (Q, 2) float64.
        is_there: (Q,) bool, whether there is a border from each point to the next; not where a jump leaves a gap.
        point_of_zone: (Z,) int64, the points beside each zone of the map.
    """

    left_m: npt.NDArray[np.float64]
    right_m: npt.NDArray[np.float64]
    is_there: npt.NDArray[np.bool_]
    point_of_zone: npt.NDArray[np.int64]

    @classmethod
    def along_road(
        cls,
        center_m: npt.NDArray[np.float64],
        to_border_m: npt.NDArray[np.float64],
        has_road: npt.NDArray[np.bool_],
        spacing_m: float,
        zone_centers_m: npt.NDArray[np.float64],
    ) -> RoadBorders:
        """Make the borders of a road that is given by cross-sections.

        Args:
            center_m: (P, 3) their centres, world axes, from before the start to beyond the finish.
            to_border_m: (P, 3) from there to the left border.
            has_road: (P,) False in a gap.
            spacing_m: from one to the next.
            zone_centers_m: (Z, 3) of the map's zones.
        """
        every = max(round(POINT_EVERY_M / spacing_m), 1)
        center, aside = center_m[::every], to_border_m[::every]
        n_points = len(center)
        # A piece is there if all cross-sections on it have road.
        has_gap = np.logical_or.reduceat(~has_road, np.arange(0, len(has_road), every))
        return cls(
            left_m=np.ascontiguousarray((center + aside)[:, ::2]),
            right_m=np.ascontiguousarray((center - aside)[:, ::2]),
            is_there=~has_gap & (np.arange(n_points) < n_points - 1),
            point_of_zone=_nearest_in_order(zone_centers_m, np.ascontiguousarray(center)),
        )

    @classmethod
    def nowhere(cls) -> RoadBorders:
        """Make borders for a map of which none are known, and none asked for."""
        return cls(np.empty((0, 2)), np.empty((0, 2)), np.empty(0, dtype=np.bool_), np.empty(0, dtype=np.int64))


@_compiled
def measure_ranges(
    ranges_m: npt.NDArray[np.float32],
    head_f32: npt.NDArray[np.float32],
    zone_idx: int,
    borders: RoadBorders,
    reach_m: float,
) -> None:
    """Measure the way from the car's origin to the nearest border along each beam.

    Args:
        ranges_m: (N_BEAMS,) written; `reach_m` where there is none nearer.
        head_f32: the state blob's head as 32-bit floats.
        zone_idx: the current zone.
        borders: of the map; at least one point.
        reach_m: what is farther is not seen.
    """
    x, z = float(head_f32[_POSITION_WORD]), float(head_f32[_POSITION_WORD + 2])
    # The rotation is car to world, row-major: its last column is the car's forward axis in the world.
    forward_x, forward_z = float(head_f32[_ROTATION_WORD + 2]), float(head_f32[_ROTATION_WORD + 8])
    level = math.sqrt(forward_x * forward_x + forward_z * forward_z)
    if level > 0.0:
        forward_x, forward_z = forward_x / level, forward_z / level
    here = borders.point_of_zone[zone_idx]
    n_points = int(reach_m / (_SIGHT_PER_ROAD * POINT_EVERY_M)) + 1
    first, end = max(here - n_points, 0), min(here + n_points, len(borders.is_there))
    nearest_m = np.full(N_BEAMS, reach_m)
    before = np.zeros(N_BEAMS)
    for points_m in (borders.left_m, borders.right_m):
        last_ahead = 0.0
        last_left = 0.0
        for point in range(first, end):
            dx, dz = points_m[point, 0] - x, points_m[point, 1] - z
            ahead, left = dx * forward_x + dz * forward_z, dx * forward_z - dz * forward_x
            is_piece = point > first and borders.is_there[point - 1] and (ahead >= 0.0 or last_ahead >= 0.0)
            for beam in range(N_BEAMS):
                # How far the point is to the beam's left: the piece crosses the beam's line where that changes sign.
                aside = left * _AHEAD[beam] - ahead * _SIDEWAYS[beam]
                if is_piece and (aside >= 0.0) != (before[beam] >= 0.0):
                    share = before[beam] / (before[beam] - aside)
                    to_m = (last_ahead + share * (ahead - last_ahead)) * _AHEAD[beam] + (
                        last_left + share * (left - last_left)
                    ) * _SIDEWAYS[beam]
                    if 0.0 <= to_m < nearest_m[beam]:
                        nearest_m[beam] = to_m
                before[beam] = aside
            last_ahead, last_left = ahead, left
    for beam in range(N_BEAMS):
        ranges_m[beam] = nearest_m[beam]


@_compiled
def _nearest_in_order(points_m: npt.NDArray[np.float64], along_m: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Find the point of a line that is nearest to each of some points (n, 3), which follow the line in its order.

    As the car's zone does, it only moves on while the next one is nearer, so that crossings and laps are told apart.
    """
    nearest = np.empty(len(points_m), dtype=np.int64)
    place = 0
    for i in range(len(points_m)):
        here = _distance_squared(points_m[i], along_m[place])
        while place + 1 < len(along_m):
            ahead = _distance_squared(points_m[i], along_m[place + 1])
            if ahead > here:
                break
            place += 1
            here = ahead
        nearest[i] = place
    return nearest


@_compiled(inline="always")
def _distance_squared(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2
