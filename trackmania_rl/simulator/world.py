"""The simulated world: a road as a ribbon of cross-sections along a line, and where a point is on it.

A ribbon is open. A track of several laps is a ribbon that lies over itself; a bridge crosses its own road. Both need no
special case, because nothing here ever searches the whole ribbon: the car carries the number of its cross-section, and
`locate` only walks along the ribbon from there.

Axes are the game's: world x, y up, z; road and car frames x left, y up, z forward, right-handed (forward = left x up).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

RIBBON_SPACING_M = 0.5
"""Distance between neighbouring cross-sections (the game world's reference lines use the same)."""
RUN_UP_M = 40.0
"""The ribbon reaches this far straight back from the start line."""
RUN_OUT_M = 300.0
"""The ribbon reaches this far straight on beyond the last point of the line."""
WALL_HEIGHT_M = 1.0
"""Height of the wall above the road's border where the edge is `Edge.WALL`."""
VERGE_WIDTH_M = 30.0
"""Width of the grass beside the road where the edge is `Edge.GRASS`."""
STEEPEST_SLOPE = 0.98
"""Largest |vertical component| of a line's direction: a steeper road has no well-defined level left."""


class Surface(IntEnum):
    """TMNF material ids of the surfaces a track may name."""

    CONCRETE = 0
    PAVEMENT = 1
    GRASS = 2
    ICE = 3
    METAL = 4
    SAND = 5
    DIRT = 6
    TURBO = 7
    ASPHALT = 16
    TURBO_ROULETTE = 30
    TURBO2 = 26
    FREE_WHEEL = 29


class Edge(IntEnum):
    """What is beside the road, at both borders."""

    WALL = 0
    GRASS = 1
    DROP = 2


class Ribbon(NamedTuple):
    """P cross-sections, one every `RIBBON_SPACING_M` along the line; numba takes it as it is.

    Attributes:
        station_m: (P,) float64, arc length from the start line, negative before it.
        center_m: (P, 3) float64, centre of the road surface.
        forward: (P, 3) float64 unit vectors along the road.
        left: (P, 3) float64 unit vectors in the road surface.
        up: (P, 3) float64 unit normals of the road surface.
        half_width_m: (P,) float64.
        surface: (P,) int64, TMNF material id of the road, one of `Surface`.
        edge: (P,) int64, one of `Edge`.
        has_road: (P,) bool, False inside a gap (a jump): there is neither ground nor wall.
    """

    station_m: npt.NDArray[np.float64]
    center_m: npt.NDArray[np.float64]
    forward: npt.NDArray[np.float64]
    left: npt.NDArray[np.float64]
    up: npt.NDArray[np.float64]
    half_width_m: npt.NDArray[np.float64]
    surface: npt.NDArray[np.int64]
    edge: npt.NDArray[np.int64]
    has_road: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Track:
    """A road with the places that count.

    Attributes:
        name: what the track is called in logs and files.
        ribbon: the road.
        checkpoint_stations_m: stations of the checkpoints of all laps in driving order, without the finish.
        finish_station_m: station of the finish.
        n_laps: laps of the race; 1 for a track from A to B.
    """

    name: str
    ribbon: Ribbon
    checkpoint_stations_m: tuple[float, ...]
    finish_station_m: float
    n_laps: int = 1


def build_ribbon(
    line_m: npt.ArrayLike,
    half_width_m: npt.ArrayLike = 8.0,
    banking_rad: npt.ArrayLike = 0.0,
    surface: npt.ArrayLike = Surface.ASPHALT,
    edge: npt.ArrayLike = Edge.WALL,
    has_road: npt.ArrayLike = True,
) -> Ribbon:
    """Lays a road over a line and extends it straight on at both ends.

    Args:
        line_m: (N, 3) centres of the road surface, about `RIBBON_SPACING_M` apart; the first is on the start line.
        half_width_m: scalar or (N,), half the road's width.
        banking_rad: scalar or (N,), roll of the road about its direction; positive leans into a left turn.
        surface: scalar or (N,), material ids.
        edge: scalar or (N,), `Edge` values.
        has_road: scalar or (N,) bool, False in a gap.

    Returns:
        The ribbon; `station_m` is 0 at the line's first point. The end values of all attributes go on in the extensions.

    Raises:
        ValueError: if the line is not (N >= 2, 3) and finite, its points are not about 0.5 m apart, it is nearly vertical,
            an attribute's length is not N, or a width is not positive.
    """
    line = np.asarray(line_m, dtype=np.float64)
    _check_line(line)
    before = round(RUN_UP_M / RIBBON_SPACING_M)
    after = round(RUN_OUT_M / RIBBON_SPACING_M)

    def per_section(name: str, values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray:
        array = np.asarray(values, dtype=dtype)
        if array.shape not in ((), (len(line),)):
            raise ValueError(
                f"{name} has shape {array.shape}: give one value or one per point of the line, ({len(line)},)"
            )
        return np.pad(np.broadcast_to(array, len(line)), (before, after), mode="edge")

    first_step = _unit(line[1] - line[0]) * RIBBON_SPACING_M
    last_step = _unit(line[-1] - line[-2]) * RIBBON_SPACING_M
    center = np.concatenate(
        [
            line[0] + np.arange(-before, 0)[:, None] * first_step,
            line,
            line[-1] + np.arange(1, after + 1)[:, None] * last_step,
        ]
    )
    arc_length = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(center, axis=0), axis=1))])
    widths = per_section("half_width_m", half_width_m, np.float64)
    if not np.all(widths > 0.0):
        raise ValueError(f"half_width_m has a value of {np.min(widths)}: every width must be above 0")
    forward, left, up = _frames(center, per_section("banking_rad", banking_rad, np.float64))
    return Ribbon(
        station_m=arc_length - arc_length[before],
        center_m=center,
        forward=forward,
        left=left,
        up=up,
        half_width_m=widths,
        surface=per_section("surface", surface, np.int64),
        edge=per_section("edge", edge, np.int64),
        has_road=per_section("has_road", has_road, np.bool_),
    )


def _check_line(line: npt.NDArray[np.float64]) -> None:
    if line.ndim != 2 or line.shape[1] != 3 or len(line) < 2 or not np.all(np.isfinite(line)):
        raise ValueError(f"the line has shape {line.shape}: give (N >= 2, 3) finite metres")
    steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
    worst = int(np.argmax(np.abs(steps - RIBBON_SPACING_M)))
    if not 0.5 * RIBBON_SPACING_M <= steps[worst] <= 1.5 * RIBBON_SPACING_M:
        raise ValueError(
            f"points {worst} and {worst + 1} of the line are {steps[worst]:.3f} m apart: resample to {RIBBON_SPACING_M} m"
        )


def _unit(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _frames(
    center: npt.NDArray[np.float64], banking_rad: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Forward, left and up of every cross-section: left is level, then the road is rolled about its direction."""
    forward = _unit(np.gradient(center, axis=0))
    steepest = int(np.argmax(np.abs(forward[:, 1])))
    if abs(forward[steepest, 1]) > STEEPEST_SLOPE:
        raise ValueError(f"the line is nearly vertical at {center[steepest]}: a road may be up to 78 degrees steep")
    level_left = _unit(np.cross([0.0, 1.0, 0.0], forward))
    level_up = np.cross(forward, level_left)
    cosine, sine = np.cos(banking_rad)[:, None], np.sin(banking_rad)[:, None]
    return forward, cosine * level_left - sine * level_up, cosine * level_up + sine * level_left


class Place(NamedTuple):
    """Where a point is on the ribbon.

    Attributes:
        section: number of the cross-section at or before the point.
        fraction: how far between that and the next one, 0..1.
        lateral_m: distance from the centre line along the road surface, positive to the left.
        height_m: distance above the road surface (continued sideways in its plane).
        station_m: arc length along the line.
    """

    section: int
    fraction: float
    lateral_m: float
    height_m: float
    station_m: float


@njit(cache=True)
def _ahead_of_section(ribbon: Ribbon, index: int, x: float, y: float, z: float) -> float:
    """Metres from a cross-section's plane to the point, along the road."""
    return (
        (x - ribbon.center_m[index, 0]) * ribbon.forward[index, 0]
        + (y - ribbon.center_m[index, 1]) * ribbon.forward[index, 1]
        + (z - ribbon.center_m[index, 2]) * ribbon.forward[index, 2]
    )


@njit(cache=True)
def between(values: npt.NDArray, index: int, fraction: float) -> tuple[float, float, float]:
    """A (P, 3) attribute of the ribbon between two cross-sections, linearly interpolated."""
    rest = 1.0 - fraction
    return (
        rest * values[index, 0] + fraction * values[index + 1, 0],
        rest * values[index, 1] + fraction * values[index + 1, 1],
        rest * values[index, 2] + fraction * values[index + 1, 2],
    )


@njit(cache=True)
def locate(ribbon: Ribbon, hint: int, x: float, y: float, z: float) -> Place:
    """Finds the point (world metres) on the ribbon, walking from cross-section `hint`.

    The walk ends at the first pair of planes that holds the point, also inside a very tight corner, where planes cross.
    """
    last = ribbon.station_m.shape[0] - 2
    index = min(max(hint, 0), last)
    while index < last and _ahead_of_section(ribbon, index + 1, x, y, z) >= 0.0:
        index += 1
    while index > 0 and _ahead_of_section(ribbon, index, x, y, z) < 0.0:
        index -= 1
    behind = _ahead_of_section(ribbon, index, x, y, z)
    ahead = -_ahead_of_section(ribbon, index + 1, x, y, z)
    span = behind + ahead
    fraction = min(max(behind / span, 0.0), 1.0) if span > 1e-9 else 0.0
    center_x, center_y, center_z = between(ribbon.center_m, index, fraction)
    left_x, left_y, left_z = between(ribbon.left, index, fraction)
    up_x, up_y, up_z = between(ribbon.up, index, fraction)
    dx, dy, dz = x - center_x, y - center_y, z - center_z
    return Place(
        index,
        fraction,
        dx * left_x + dy * left_y + dz * left_z,
        dx * up_x + dy * up_y + dz * up_z,
        ribbon.station_m[index] + fraction * (ribbon.station_m[index + 1] - ribbon.station_m[index]),
    )
