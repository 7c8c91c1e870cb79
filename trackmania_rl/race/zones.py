"""A map's virtual checkpoints (zones): the car's place along the reference line.

Zone i surrounds centre i on the extended, smoothed line. The borders i - 1 (entry) and i (exit) are the midpoints to
the neighbouring centres. The current zone moves step by step, so a track may touch itself. Rules: docs/observation.rst.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for

_compiled = compiler_for("zones", [Path(__file__)])
_inner = _compiled(is_inner=True)

ZONES_AFTER_END: Final = 1000
"""Zones straight on beyond the line's end."""

FloatArray = npt.NDArray[np.float64]


class VirtualCheckpoints(NamedTuple):
    """One map's zones, for compiled functions. Z zones; border i is between zones i and i + 1."""

    centers_m: FloatArray  #: (Z, 3) world axes
    border_m: FloatArray  #: (Z - 1, 3)
    border_distance_m: FloatArray  #: (Z - 1,) line length from border 0 to border i
    border_direction: FloatArray  #: (Z - 2, 3) unit vector from border i to border i + 1
    first_zone_idx: int  #: the line's first point, where a race begins
    last_zone_idx: int  #: the line's last point
    max_center_distance_m: float
    real_checkpoint_m: FloatArray  #: (Z, 3) the map's checkpoint in a zone
    #: (Z,) a zone is left forwards, or re-entered backwards, only this near to the checkpoint; else infinite
    real_checkpoint_radius_m: FloatArray

    @property
    def finish_zone_idx(self) -> int:
        """Finish index, one beyond the last zone."""
        return self.last_zone_idx + 1

    @property
    def start_m(self) -> float:
        """Metres along the line at the first zone's entry."""
        return float(self.border_distance_m[self.first_zone_idx - 1])

    @property
    def finish_m(self) -> float:
        """Metres along the line at the last zone's exit."""
        return float(self.border_distance_m[self.last_zone_idx])

    @property
    def length_m(self) -> float:
        """Metres from the first zone's entry to the finish."""
        return self.finish_m - self.start_m


@_inner
def move_zone(zone_idx: int, position_m: FloatArray, zones: VirtualCheckpoints) -> int:
    """Move a zone index, 1 to `last_zone_idx`, forwards while the next centre is nearer the car, then likewise back."""
    centers = zones.centers_m
    limit_m = zones.max_center_distance_m
    here_m = distance_m(centers[zone_idx], position_m)
    while zone_idx < zones.last_zone_idx:
        next_m = distance_m(centers[zone_idx + 1], position_m)
        if next_m > here_m or next_m > limit_m or not _real_checkpoint_is_near(zone_idx, position_m, zones):
            break
        zone_idx += 1
        here_m = next_m
    while zone_idx >= 2:
        previous_m = distance_m(centers[zone_idx - 1], position_m)
        if (
            previous_m >= here_m
            or previous_m > limit_m
            or not _real_checkpoint_is_near(zone_idx - 1, position_m, zones)
        ):
            break
        zone_idx -= 1
        here_m = previous_m
    return zone_idx


@_inner
def meters_along_line(zone_idx: int, position_m: FloatArray, zones: VirtualCheckpoints) -> float:
    """Return the length of all segments before the current zone (>= 1) plus the clipped projection on its segment."""
    entry = zone_idx - 1
    along_m = 0.0
    for axis in range(3):
        along_m += (position_m[axis] - zones.border_m[entry, axis]) * zones.border_direction[entry, axis]
    segment_m = zones.border_distance_m[entry + 1] - zones.border_distance_m[entry]
    return zones.border_distance_m[entry] + min(max(along_m, 0.0), segment_m)


@_compiled
def distance_m(a: FloatArray, b: FloatArray) -> float:
    """Return the distance between two points (3,)."""
    return math.sqrt((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2)


@_inner
def _real_checkpoint_is_near(zone_idx: int, position_m: FloatArray, zones: VirtualCheckpoints) -> bool:
    return distance_m(zones.real_checkpoint_m[zone_idx], position_m) < zones.real_checkpoint_radius_m[zone_idx]
