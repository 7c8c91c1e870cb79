"""What a driver may know of one map's road beside its line: its borders, and what it is like at each zone.

Shapes: P cross-sections of the road, Q points along it, Z zones of the map.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for

_compiled = compiler_for("known_road", [Path(__file__)])

POINT_EVERY_M: Final = 1.0
"""Borders are chains of points at this distance. In a turn of 10 m radius they are 13 mm off."""

ROAD_QUALITIES: Final = (
    "half_width_m",
    "has_wall",
    "has_grass_beside",
    "is_dirt",
    "is_grass",
    "is_there",
    "banking",
)
"""The floats that tell what the road is like at one place.

Half its width in metres, or the way to the nearer border; whether walls stand at its borders; whether grass lies beside
them; whether it is dirt-like itself, or grass-like; whether it is there at all, which it is not in a jump's gap; and
how much higher its left border is than its middle, per metre: the sine of its banking.
"""
N_QUALITIES: Final = len(ROAD_QUALITIES)


class KnownRoad(NamedTuple):
    """The road of one map; numba takes it as it is.

    Attributes:
        left_m: (Q, 2) float64, its left border from above, world x and z.
        right_m: (Q, 2) float64, its right border.
        is_there: (Q,) bool, whether there is a border from each point to the next; not where a jump leaves a gap.
        qualities: (Q, N_QUALITIES) float32, `ROAD_QUALITIES` at each point.
        point_of_zone: (Z,) int64, the points beside each zone of the map.
    """

    left_m: npt.NDArray[np.float64]
    right_m: npt.NDArray[np.float64]
    is_there: npt.NDArray[np.bool_]
    qualities: npt.NDArray[np.float32]
    point_of_zone: npt.NDArray[np.int64]

    @classmethod
    def of_sections(
        cls,
        center_m: npt.NDArray[np.float64],
        to_left_m: npt.NDArray[np.float64],
        to_right_m: npt.NDArray[np.float64],
        qualities: npt.NDArray[np.float32],
        spacing_m: float,
        zone_centers_m: npt.NDArray[np.float64],
    ) -> KnownRoad:
        """Make it of a road that is given by cross-sections.

        Args:
            center_m: (P, 3) their centres, world axes, from before the start to beyond the finish.
            to_left_m: (P, 3) from there to the left border.
            to_right_m: (P, 3) from there to the right border.
            qualities: (P, N_QUALITIES) float32.
            spacing_m: from one to the next.
            zone_centers_m: (Z, 3) of the map's zones.
        """
        assert qualities.shape == (len(center_m), N_QUALITIES)
        every = max(round(POINT_EVERY_M / spacing_m), 1)
        center = center_m[::every]
        n_points = len(center)
        # A piece is there if all cross-sections on it have road.
        is_gap = qualities[:, ROAD_QUALITIES.index("is_there")] == 0.0
        has_gap = np.logical_or.reduceat(is_gap, np.arange(0, len(is_gap), every))
        return cls(
            left_m=np.ascontiguousarray((center + to_left_m[::every])[:, ::2]),
            right_m=np.ascontiguousarray((center + to_right_m[::every])[:, ::2]),
            is_there=~has_gap & (np.arange(n_points) < n_points - 1),
            qualities=np.ascontiguousarray(qualities[::every]),
            point_of_zone=_nearest_in_order(zone_centers_m, np.ascontiguousarray(center)),
        )

    @classmethod
    def nowhere(cls) -> KnownRoad:
        """Make one for a map of whose road nothing is known, and nothing asked for."""
        return cls(
            np.empty((0, 2)),
            np.empty((0, 2)),
            np.empty(0, dtype=np.bool_),
            np.empty((0, N_QUALITIES), dtype=np.float32),
            np.empty(0, dtype=np.int64),
        )


@_compiled
def look_along_road(floats: npt.NDArray[np.float32], zone_idx: int, zone_stride: int, road: KnownRoad) -> None:
    """Write what the road is like at some zones.

    Args:
        floats: (n x N_QUALITIES,) written, zone by zone.
        zone_idx: the first of the n zones.
        zone_stride: how many zones lie from one of them to the next.
        road: of the map.
    """
    for i in range(len(floats) // N_QUALITIES):
        point = road.point_of_zone[zone_idx + i * zone_stride]
        for quality in range(N_QUALITIES):
            floats[i * N_QUALITIES + quality] = road.qualities[point, quality]


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
