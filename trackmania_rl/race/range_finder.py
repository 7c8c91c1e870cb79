"""The range finder: how far the road's borders are from the car, in 19 directions from right over ahead to left.

Here it is measured on the track's own borders, seen from above: hills do not count, and neither does what lies over or
under the road. `picture_range_finder` measures the same in a picture.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for
from trackmania_rl.protocol import state_blob
from trackmania_rl.protocol.state_blob import STATE_HEAD_DTYPE
from trackmania_rl.race import known_road
from trackmania_rl.race.known_road import POINT_EVERY_M, KnownRoad

_compiled = compiler_for("range_finder", [Path(__file__), Path(state_blob.__file__), Path(known_road.__file__)])

BEAM_ANGLES_DEG: Final = tuple(range(-90, 91, 10))
"""Of each beam from straight ahead, positive to the left."""
N_BEAMS: Final = len(BEAM_ANGLES_DEG)
_SIGHT_PER_ROAD: Final = 0.75
"""A line of sight is at least this share of the way along the road to where it ends; else a bend is in between."""

_SIDEWAYS = np.array([math.sin(math.radians(angle)) for angle in BEAM_ANGLES_DEG])
_AHEAD = np.array([math.cos(math.radians(angle)) for angle in BEAM_ANGLES_DEG])
assert STATE_HEAD_DTYPE.fields is not None
_ROTATION_WORD = STATE_HEAD_DTYPE.fields["rotation"][1] // 4
_POSITION_WORD = STATE_HEAD_DTYPE.fields["position_m"][1] // 4


@_compiled
def measure_ranges(
    ranges_m: npt.NDArray[np.float32],
    head_f32: npt.NDArray[np.float32],
    zone_idx: int,
    road: KnownRoad,
    reach_m: float,
) -> None:
    """Measure the way from the car's origin to the nearest border along each beam.

    Args:
        ranges_m: (N_BEAMS,) written; `reach_m` where there is none nearer.
        head_f32: the state blob's head as 32-bit floats.
        zone_idx: the current zone.
        road: of the map; at least one point.
        reach_m: what is farther is not seen.
    """
    x, z = float(head_f32[_POSITION_WORD]), float(head_f32[_POSITION_WORD + 2])
    # The rotation is car to world, row-major: its last column is the car's forward axis in the world.
    forward_x, forward_z = float(head_f32[_ROTATION_WORD + 2]), float(head_f32[_ROTATION_WORD + 8])
    level = math.sqrt(forward_x * forward_x + forward_z * forward_z)
    if level > 0.0:
        forward_x, forward_z = forward_x / level, forward_z / level
    here = road.point_of_zone[zone_idx]
    n_points = int(reach_m / (_SIGHT_PER_ROAD * POINT_EVERY_M)) + 1
    first, end = max(here - n_points, 0), min(here + n_points, len(road.is_there))
    nearest_m = np.full(N_BEAMS, reach_m)
    before = np.zeros(N_BEAMS)
    for points_m in (road.left_m, road.right_m):
        last_ahead = 0.0
        last_left = 0.0
        for point in range(first, end):
            dx, dz = points_m[point, 0] - x, points_m[point, 1] - z
            ahead, left = dx * forward_x + dz * forward_z, dx * forward_z - dz * forward_x
            is_piece = point > first and road.is_there[point - 1] and (ahead >= 0.0 or last_ahead >= 0.0)
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
