"""Simulated world: a road as a ribbon (cross-sections along a line), and a point's place on it.

As laps and bridges cross the same road, the car's state holds a cross-section number, from which `locate` walks on.

Axes are the game's: world x, y up, z; road and car frames x left, y up, z forward, right-handed (forward = left x up).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.simulator.compiled import compiled, inner

if TYPE_CHECKING:
    from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh
    from trackmania_rl.simulator.tracks.world_file import MeshWorld

RIBBON_SPACING_M = 0.5  # as in the game's reference lines
RUN_UP_M = 40.0  # straight extension before the start line
RUN_OUT_M = 300.0  # straight extension beyond the line's last point
WALL_HEIGHT_M = 1.0  # above the road's border, for `Edge.WALL`
VERGE_WIDTH_M = 30.0  # for `Edge.GRASS`
WALL_THICKNESS_M = 1.0  # a part further outside is beyond the wall and is not pushed back
STEEPEST_SLOPE = 0.98
"""Limit for the vertical component of a line's direction: a steeper road has no well-defined level left."""


class Surface(IntEnum):
    """TMNF material ids for track surfaces."""

    CONCRETE = 0
    PAVEMENT = 1
    GRASS = 2
    ICE = 3
    METAL = 4
    SAND = 5
    DIRT = 6
    TURBO = 7
    ASPHALT = 16
    TURBO2 = 26
    FREE_WHEEL = 29
    TURBO_ROULETTE = 30


class Edge(IntEnum):
    """Kind of both road borders."""

    WALL = 0
    GRASS = 1
    DROP = 2


EDGE_WALL = int(Edge.WALL)
EDGE_GRASS = int(Edge.GRASS)
SURFACE_GRASS = int(Surface.GRASS)


SECTION_DTYPE = np.dtype(
    [
        ("station_m", np.float64),
        ("center_m", np.float64, (3,)),
        ("forward", np.float64, (3,)),
        ("left", np.float64, (3,)),
        ("up", np.float64, (3,)),
        ("half_width_m", np.float64),
        ("surface", np.int64),
        ("edge", np.int64),
        ("has_road", np.bool_),
    ],
    align=True,
)


class Road(NamedTuple):
    """A ribbon's cross-sections in the form for the physics."""

    records: npt.NDArray[np.void]  # (P,) `SECTION_DTYPE`


class Ribbon(NamedTuple):
    """P cross-sections, one every `RIBBON_SPACING_M` along the line; a type for numba."""

    station_m: npt.NDArray[np.float64]  # (P,) arc length from the start line, negative before it
    center_m: npt.NDArray[np.float64]
    forward: npt.NDArray[np.float64]  # (P, 3) unit vectors along the road
    left: npt.NDArray[np.float64]  # (P, 3) unit vectors in the road surface
    up: npt.NDArray[np.float64]  # (P, 3) unit normals of the road surface
    half_width_m: npt.NDArray[np.float64]  # (P,)
    surface: npt.NDArray[np.int64]  # (P,) `Surface` values
    edge: npt.NDArray[np.int64]  # (P,) `Edge` values
    has_road: npt.NDArray[np.bool_]  # (P,) False inside a gap (a jump), without ground and walls
    records: npt.NDArray[np.void]  # (P,) `SECTION_DTYPE`, the same values

    @property
    def road(self) -> Road:
        """Ribbon for the physics: one array, since each array in a tuple costs time in compiled calls."""
        return Road(self.records)


@dataclass(frozen=True)
class Track:
    """Road with gates."""

    name: str
    ribbon: Ribbon  # road; with a `mesh_world`, only the way through it
    checkpoint_stations_m: tuple[float, ...]  # all laps, in driving order, without the finish
    finish_station_m: float
    n_laps: int = 1  # 1 for a track from A to B
    mesh_world: MeshWorld | None = None  # surface and gates instead of the ribbon's; None for a road

    @property
    def line_m(self) -> npt.NDArray[np.float64]:
        """(N, 3) centre of the road from start to finish."""
        ends_m = np.array([0.0, self.finish_station_m]) - RIBBON_SPACING_M / 2
        first, last = np.searchsorted(self.ribbon.station_m, ends_m)
        return self.ribbon.center_m[first : last + 1]

    @property
    def world(self) -> Road | SurfaceMesh:
        """World that cars drive on: the mesh, if any, or the road."""
        return self.ribbon.road if self.mesh_world is None else self.mesh_world.mesh


def road_of(track: Track) -> Ribbon:
    """Return a track's ribbon, for drivers that follow roads only.

    Raises:
        UserError: if the track is a map's blocks.
    """
    if track.mesh_world is not None:
        raise UserError(
            f"track {track.name} is made of a map's blocks, and the scripted driver follows roads along a line "
            "only: make such a track of the map (maps.py track --ground line)"
        )
    return track.ribbon


def build_ribbon(
    line_m: npt.ArrayLike,
    half_width_m: npt.ArrayLike = 8.0,
    banking_rad: npt.ArrayLike = 0.0,
    surface: npt.ArrayLike = Surface.ASPHALT,
    edge: npt.ArrayLike = Edge.WALL,
    has_road: npt.ArrayLike = True,
    up: npt.NDArray[np.float64] | None = None,
) -> Ribbon:
    """Lay a road over a line and extend it straight on at both ends, with all attributes' end values.

    Args:
        line_m: (N, 3) centres of the road surface, about `RIBBON_SPACING_M` apart; the first is on the start line.
        half_width_m: scalar or (N,), half the road's width.
        banking_rad: scalar or (N,), road's roll about the driving direction; positive leans into a left turn.
        surface: scalar or (N,), material ids.
        edge: scalar or (N,), `Edge` values.
        has_road: scalar or (N,) bool, False in a gap.
        up: (N, 3) the road's normals, instead of `banking_rad`; the line may then be vertical or upside down.

    Raises:
        ValueError: if the line is not (N >= 2, 3) and finite, its points are not about 0.5 m apart, it is nearly
            vertical, an attribute's length is not N, or a width is not positive.
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
    if up is None:
        forward, left, up = _frames(center, per_section("banking_rad", banking_rad, np.float64))
    else:
        forward, left, up = _frames_below(center, np.pad(up, ((before, after), (0, 0)), mode="edge"))
    fields = {
        "station_m": arc_length - arc_length[before],
        "center_m": center,
        "forward": forward,
        "left": left,
        "up": up,
        "half_width_m": widths,
        "surface": per_section("surface", surface, np.int64),
        "edge": per_section("edge", edge, np.int64),
        "has_road": per_section("has_road", has_road, np.bool_),
    }
    records = np.zeros(len(center), SECTION_DTYPE)
    for name, values in fields.items():
        records[name] = values
    return Ribbon(**fields, records=records)


def _check_line(line: npt.NDArray[np.float64]) -> None:
    if line.ndim != 2 or line.shape[1] != 3 or len(line) < 2 or not np.all(np.isfinite(line)):
        raise ValueError(f"the line has shape {line.shape}: give (N >= 2, 3) finite metres")
    steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
    worst = int(np.argmax(np.abs(steps - RIBBON_SPACING_M)))
    if not 0.5 * RIBBON_SPACING_M <= steps[worst] <= 1.5 * RIBBON_SPACING_M:
        raise ValueError(
            f"points {worst} and {worst + 1} of the line are {steps[worst]:.3f} m apart: resample to {RIBBON_SPACING_M}"
        )


def _unit(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _frames(
    center: npt.NDArray[np.float64], banking_rad: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    forward = _unit(np.gradient(center, axis=0))
    steepest = int(np.argmax(np.abs(forward[:, 1])))
    if abs(forward[steepest, 1]) > STEEPEST_SLOPE:
        raise ValueError(f"the line is nearly vertical at {center[steepest]}: a road may be up to 78 degrees steep")
    level_left = _unit(np.cross([0.0, 1.0, 0.0], forward))
    level_up = np.cross(forward, level_left)
    cosine = np.cos(banking_rad)[:, None]
    sine = np.sin(banking_rad)[:, None]
    return forward, cosine * level_left - sine * level_up, cosine * level_up + sine * level_left


def _frames_below(
    center: npt.NDArray[np.float64], up: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    forward = _unit(np.gradient(center, axis=0))
    left = _unit(np.cross(up, forward))
    return forward, left, np.cross(forward, left)


class Place(NamedTuple):
    """A point's place on the ribbon, and the road's axes there."""

    section: int  # cross-section at or before the point
    lateral_m: float  # along the road surface, positive to the left
    height_m: float  # above the road surface, which is continued sideways
    station_m: float  # arc length along the line
    half_width_m: float
    left: tuple[float, float, float]  # unit vector, world axes
    up: tuple[float, float, float]  # unit vector, world axes


class Ground(NamedTuple):
    """Ground under a point."""

    exists: bool  # False in a gap, beyond a drop or behind a wall; other fields are then undefined
    height_m: float  # point's height along the ground's normal
    normal: tuple[float, float, float]  # unit vector, world axes
    material: int


@inner
def _ahead_of_section(section: Any, x: float, y: float, z: float) -> float:
    center = section.center_m
    forward = section.forward
    return (x - center[0]) * forward[0] + (y - center[1]) * forward[1] + (z - center[2]) * forward[2]


@inner
def _unit_between(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], fraction: float
) -> tuple[float, float, float]:
    rest = 1.0 - fraction
    return _unit_vector(rest * a[0] + fraction * b[0], rest * a[1] + fraction * b[1], rest * a[2] + fraction * b[2])


@inner
def _unit_vector(x: float, y: float, z: float) -> tuple[float, float, float]:
    scale = 1.0 / math.sqrt(x * x + y * y + z * z)
    return x * scale, y * scale, z * scale


@compiled
def locate(sections: npt.NDArray[np.void], hint: int, x: float, y: float, z: float) -> Place:
    """Find a point on a ribbon, walking from cross-section `hint`.

    The walk ends at the first plane pair that holds the point, also in a very tight corner, where planes cross.
    Beyond the ribbon's ends the place is on the first or last cross-section.
    """
    last = sections.shape[0] - 2
    index = min(max(hint, 0), last)
    while index < last and _ahead_of_section(sections[index + 1], x, y, z) >= 0.0:
        index += 1
    behind = _ahead_of_section(sections[index], x, y, z)
    while index > 0 and behind < 0.0:
        index -= 1
        behind = _ahead_of_section(sections[index], x, y, z)
    here = sections[index]
    following = sections[index + 1]
    span = behind - _ahead_of_section(following, x, y, z)
    fraction = min(max(behind / span, 0.0), 1.0) if span > 1e-9 else 0.0
    rest = 1.0 - fraction
    left = _unit_between(here.left, following.left, fraction)
    up = _unit_between(here.up, following.up, fraction)
    dx = x - rest * here.center_m[0] - fraction * following.center_m[0]
    dy = y - rest * here.center_m[1] - fraction * following.center_m[1]
    dz = z - rest * here.center_m[2] - fraction * following.center_m[2]
    return Place(
        index,
        dx * left[0] + dy * left[1] + dz * left[2],
        dx * up[0] + dy * up[1] + dz * up[2],
        rest * here.station_m + fraction * following.station_m,
        rest * here.half_width_m + fraction * following.half_width_m,
        left,
        up,
    )


@inner
def ground_at(sections: npt.NDArray[np.void], place: Place) -> Ground:
    """Return the ground under a place: the road in its plane, or the verge, which is level outwards from the border."""
    section = sections[place.section]
    if not section.has_road:
        return Ground(False, 0.0, place.up, 0)
    outside_m = abs(place.lateral_m) - place.half_width_m
    if outside_m <= 0.0:
        return Ground(True, place.height_m, place.up, section.surface)
    if section.edge != EDGE_GRASS or outside_m > VERGE_WIDTH_M:
        return Ground(False, 0.0, place.up, 0)
    left = place.left
    up = place.up
    forward_x = left[1] * up[2] - left[2] * up[1]
    forward_y = left[2] * up[0] - left[0] * up[2]
    forward_z = left[0] * up[1] - left[1] * up[0]
    # Level left is world up x forward; the verge's normal is forward x level left.
    level_x, _, level_z = _unit_vector(forward_z, 0.0, -forward_x)
    normal = (
        forward_y * level_z,
        forward_z * level_x - forward_x * level_z,
        -forward_y * level_x,
    )
    sideways_m = math.copysign(outside_m, place.lateral_m)
    height_m = (
        (sideways_m * left[0] + place.height_m * up[0]) * normal[0]
        + (sideways_m * left[1] + place.height_m * up[1]) * normal[1]
        + (sideways_m * left[2] + place.height_m * up[2]) * normal[2]
    )
    return Ground(True, height_m, normal, SURFACE_GRASS)


@inner
def has_wall(sections: npt.NDArray[np.void], place: Place) -> bool:
    """Return whether there are walls at the road's borders."""
    section = sections[place.section]
    return section.has_road and section.edge == EDGE_WALL
