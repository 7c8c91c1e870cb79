"""Measures of a reference line: turn radii, crossings, mismatch of its laps."""

import math

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M

MAX_LAP_MISMATCH_M = 1.0  # largest distance between the laps of one line
BRIDGE_CLEARANCE_M = 5.0  # height difference from which on one road passes over another

_TURN_CHORD_M = 4.0
_CROSSING_STEP_POINTS = 4

FloatArray = npt.NDArray[np.float64]


def turn_radius_m(line_m: FloatArray) -> FloatArray:
    """Return the radius of the line's turns seen from above, (N,) metres, inf on straights.

    It is measured over 4 m, so that the rounding of recorded points does not count as a turn.
    """
    reach = round(_TURN_CHORD_M / (2.0 * RIBBON_SPACING_M))
    plan_m = line_m[:, [0, 2]]
    padded_m = np.pad(plan_m, ((reach, reach), (0, 0)), mode="reflect", reflect_type="odd")
    behind_m = plan_m - padded_m[: -2 * reach]
    ahead_m = padded_m[2 * reach :] - plan_m
    turned_rad = np.arctan2(
        ahead_m[:, 0] * behind_m[:, 1] - ahead_m[:, 1] * behind_m[:, 0], np.sum(ahead_m * behind_m, axis=1)
    )
    chord_m = (np.linalg.norm(behind_m, axis=1) + np.linalg.norm(ahead_m, axis=1)) / 2.0
    with np.errstate(divide="ignore"):
        return np.asarray(chord_m / np.abs(turned_rad))


def lap_mismatch_m(line_m: FloatArray, laps: int) -> float:
    """Return the largest distance (m) of the line's later laps from its first one; 0 for one lap."""
    if laps == 1:
        return 0.0
    along = np.arange(len(line_m), dtype=np.float64)
    lap_points = (len(line_m) - 1) / laps
    first_lap_m = np.stack([np.interp(along % lap_points, along, line_m[:, axis]) for axis in range(3)], axis=1)
    return float(np.max(np.linalg.norm(line_m - first_lap_m, axis=1)))


def find_crossing(line_m: FloatArray, half_width_m: FloatArray, *, is_closed: bool) -> tuple[float, float] | None:
    """Return where the road first runs into itself: two distances along it in metres, or None.

    Two places clash if their roads overlap on the plan and are less than `BRIDGE_CLEARANCE_M` apart in height. Places
    within half a circle of the road's own width along the road are neighbours in one bend and never clash.

    Args:
        line_m: (N,3), one lap.
        half_width_m: (N,) half of the road's width.
        is_closed: the last point is followed by the first.
    """
    spacing_m = RIBBON_SPACING_M * _CROSSING_STEP_POINTS
    line_m = np.ascontiguousarray(line_m[::_CROSSING_STEP_POINTS])
    half_width_m = np.ascontiguousarray(half_width_m[::_CROSSING_STEP_POINTS])
    lap_m = spacing_m * (len(line_m) - 1) if is_closed else math.inf
    first, second = find_clash(line_m, half_width_m, spacing_m, 0.0, BRIDGE_CLEARANCE_M, lap_m, 0)
    return None if first < 0 else (spacing_m * first, spacing_m * second)


@compiled
def find_clash(
    points_m: FloatArray,
    half_width_m: FloatArray,
    spacing_m: float,
    clear_ground_m: float,
    clear_height_m: float,
    lap_m: float,
    n_old: int,
) -> tuple[int, int]:
    """Return the numbers of the first two points whose roads clash as in `find_crossing`; (-1, -1) if none do.

    Args:
        points_m: (N,3).
        half_width_m: (N,) half of the road's width.
        spacing_m: distance of neighbouring points along the road.
        clear_ground_m: least distance between two roads side by side.
        clear_height_m: roads this far apart in height never clash.
        lap_m: length of a closed lap; infinite for a road from A to B.
        n_old: number of first points without a clash among them.
    """
    n_points = points_m.shape[0]
    for first in range(n_points):
        x_m, y_m, z_m = points_m[first, 0], points_m[first, 1], points_m[first, 2]
        for second in range(max(first + 1, n_old), n_points):
            width_m = half_width_m[first] + half_width_m[second] + clear_ground_m
            dx_m, dz_m = abs(points_m[second, 0] - x_m), abs(points_m[second, 2] - z_m)
            if dx_m >= width_m or dz_m >= width_m:
                continue
            along_m = spacing_m * (second - first)
            if (
                math.hypot(dx_m, dz_m) < width_m
                and abs(points_m[second, 1] - y_m) < clear_height_m
                and min(along_m, lap_m - along_m) > math.pi / 2.0 * width_m
            ):
                return first, second
    return -1, -1
