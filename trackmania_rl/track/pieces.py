"""Stadium piece catalogue, read from `pieces/*.toml`: roads through each block kind, surfaces, gates, spawns.

Coordinates are the block's axes: z forwards, x to the left, y up, metres from the lowest cell's corner. Cells
are 32 x 8 x 32 m. Each file names the number sources, and each piece the assumptions. Footprints are pygbx's.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from importlib import resources
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.gbx.reading import STADIUM_BLOCK_OFFSETS
from trackmania_rl.simulator.tracks.world import Surface

CELL_M: Final = 32.0
SHAPE_BITS: Final = 0x3F
"""Bits in a block's flags for a StadiumRoadMain's shape, which depends on the neighbours."""

FloatArray = npt.NDArray[np.float64]
SurfaceName = Literal["asphalt", "concrete", "dirt", "grass"]
Knowledge = Literal["measured", "joined", "mirrored", "assumed"]
"""A shape's origin: ghosts on it, edges shared with known pieces, a mirrored or turned piece, footprint and name."""
Cell = tuple[int, int, int]


class Side(IntEnum):
    """A block's side, in quarter turns to the right from forwards."""

    FRONT = 0
    RIGHT = 1
    BACK = 2
    LEFT = 3


@dataclass(frozen=True, slots=True)
class Port:
    """Crossing of a road and a block's border, in the middle of a cell's edge."""

    side: Side
    place: int  # cell along that side, from the corner at x = z = 0
    height_m: float  # road's middle above the lowest cell's floor
    gradient: tuple[float, float]  # (x, z) road surface's rise per metre


@dataclass(frozen=True, slots=True)
class Lane:
    """Road through a block from one port to another, for both directions."""

    begin: Port
    end: Port


@dataclass(frozen=True)
class CrossSection:
    """Polyline swept along a way."""

    points_m: FloatArray  # (K, 2) left of the way and above it, from right to left
    surface: Surface


@dataclass(frozen=True)
class LaneSweep:
    """Cross-section along each block lane."""

    cross_section: CrossSection
    facets: int
    fills_block: bool  # the cross-section's ends reach the block's cell border


@dataclass(frozen=True)
class PathSweep:
    """Upright cross-section along a path made from straight pieces."""

    cross_section: CrossSection
    points_m: FloatArray  # (N, 3)


@dataclass(frozen=True)
class ArcSweep:
    """Cross-section along an arc about an axis along x; it moves sideways evenly with the angle."""

    cross_section: CrossSection  # above the way is towards the axis
    center_m: FloatArray  # (2,) z and height, axis
    radius_m: float
    angles_rad: FloatArray  # (2,) both ends'; 0 is straight down, a quarter turn is along z
    across_m: FloatArray  # (2,) x, both ends
    facets: int  # straight pieces in all


@dataclass(frozen=True)
class Polygon:
    """Flat, convex surface."""

    points_m: FloatArray  # (K, 3) counter-clockwise from the driven side
    surface: Surface


@dataclass(frozen=True)
class Piece:
    """Block kind."""

    lanes: tuple[Lane, ...] = ()  # roads; none if the way is open (fields) or leaves the ground (loops)
    sweeps: tuple[LaneSweep | PathSweep | ArcSweep, ...] = ()
    polygons: tuple[Polygon, ...] = ()
    trigger_m: FloatArray | None = None  # (2, 3) gate trigger's lowest and highest corner; None for other blocks
    spawn_m: FloatArray | None = None  # (3,) car's origin at a start, or after a respawn at a checkpoint
    knowledge: Knowledge = "assumed"
    uncertainty_m: float = 0.0  # in the surface height
    is_ground: bool = False  # fields and hills, which give way to what is dug into them
    replaces_ground: bool = False  # the stadium's grass, fields and hills have a hole here
    is_water: bool = False  # a car that falls in is out until the respawn
    is_scenery: bool = False  # beside the roads; not driven on, and with unknown shape


@dataclass(frozen=True)
class Catalogue:
    """All pieces."""

    # by name and shape; the shape is None if all shapes are the same
    by_name: dict[tuple[str, int | None], Piece]
    patterns: tuple[tuple[str, Piece], ...]  # (pattern, piece) for names with a `*`
    # (name prefix, road width in m, surface); the first match applies
    roads: tuple[tuple[str, float, SurfaceName], ...]

    def find(self, block: Block) -> Piece | None:
        """Return a block's piece, or None if it is not in the catalogue."""
        for shape in (None, block.flags & SHAPE_BITS):
            piece = self.by_name.get((block.name, shape))
            if piece is not None:
                return piece
        return next((piece for pattern, piece in self.patterns if fnmatch.fnmatchcase(block.name, pattern)), None)


def footprint(name: str) -> tuple[Cell, ...]:
    """Return the cells (x, y, z) that a block fills, along the block's axes."""
    return tuple((x, y, z) for x, y, z in STADIUM_BLOCK_OFFSETS.get(name, [[0, 0, 0]]))


def size_cells(name: str) -> tuple[int, int]:
    """Return a block's (width, depth) in cells, along the block's x and z."""
    cells = footprint(name)
    return max(x for x, _, _ in cells) + 1, max(z for _, _, z in cells) + 1


def lanes_of(block: Block) -> tuple[Lane, ...]:
    """Return the roads through a block; none if it is unknown, or the road ends in it."""
    piece = stadium_pieces().find(block)
    return () if piece is None else piece.lanes


def road_kind(block: Block) -> tuple[float, SurfaceName] | None:
    """Return a block's road width (m) and surface; None for blocks without one.

    Blocks outside the catalogue are included. Turbo pads are not distinguished.
    """
    for beginning, width_m, surface in stadium_pieces().roads:
        if block.name.startswith(beginning) and not block.name.endswith("Clip"):
            return width_m, surface
    return None


@cache
def stadium_pieces() -> Catalogue:
    """Return the catalogue that ships.

    Raises:
        ValueError: if a file is not TOML, names a cross-section that does not exist, or has a piece twice.
    """
    folder = resources.files(__package__).joinpath("pieces")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    families = {file.name: tomllib.loads(file.read_text(encoding="utf-8")) for file in files}
    sections: dict[str, CrossSection] = {}
    for family, tables in families.items():
        for name, section in tables.get("cross_sections", {}).items():
            if name in sections:
                raise ValueError(f"{family}: cross-section {name!r} is in two files")
            sections[name] = _cross_section(section)
    by_name: dict[tuple[str, int | None], Piece] = {}
    patterns: list[tuple[str, Piece]] = []
    for family, tables in families.items():
        origin: dict[str, Any] = {key: tables[key] for key in ("knowledge", "uncertainty_m") if key in tables}
        for entry in tables.get("pieces", ()):
            piece = _piece({**origin, **entry}, sections)
            for name, shape in _keys(entry):
                if "*" in name:
                    patterns.append((name, piece))
                elif (name, shape) in by_name:
                    raise ValueError(f"{family}: {name} is in the catalogue twice")
                else:
                    by_name[name, shape] = piece
    of_lanes = families["lanes.toml"]
    for entry in of_lanes["lanes"]:
        lanes = tuple(Lane(_port(*begin), _port(*end)) for begin, end in entry["lanes"])
        for key in _keys(entry):
            by_name[key] = replace(by_name[key], lanes=lanes)
    roads = tuple((beginning, width_m, surface) for beginning, width_m, surface in of_lanes["roads"])
    return Catalogue(by_name, tuple(patterns), roads)


def _keys(entry: dict[str, Any]) -> Iterator[tuple[str, int | None]]:
    for name in entry["names"]:
        for shape in entry.get("shapes", [None]):
            yield name, shape


def _port(side: str, place: int, height_m: float, gradient_x: float, gradient_z: float) -> Port:
    return Port(Side[side.upper()], place, height_m, (gradient_x, gradient_z))


def _cross_section(table: dict[str, Any]) -> CrossSection:
    if "points_m" in table:
        points_m = np.array(table["points_m"], dtype=np.float64)
    else:
        half_m = np.array(table["mirrored_m"], dtype=np.float64)
        if half_m[0, 0] != 0.0:
            raise ValueError(f"a mirrored cross-section begins in the middle of the way, not at {half_m[0, 0]} m")
        flat = 1 if half_m[0, 1] == half_m[1, 1] else 0
        points_m = np.concatenate((half_m[:0:-1] * (-1.0, 1.0), half_m[flat:]))
    return CrossSection(points_m, Surface[table["surface"].upper()])


def _piece(entry: dict[str, Any], sections: dict[str, CrossSection]) -> Piece:
    trigger_m = entry.get("trigger_m")
    spawn_m = entry.get("spawn_m")
    polygons = [_polygon(table["points_m"], table["surface"]) for table in entry.get("polygons", ())]
    sweeps: list[LaneSweep | PathSweep | ArcSweep] = []
    for table in entry.get("sweeps", ()):
        match table["way"]:
            case "grid":
                polygons += _grid(table)
            case "corner":
                rim_m, floor = _corner(table)
                polygons += floor
                sweeps.append(PathSweep(_section_of(table, sections), rim_m))
            case _:
                sweeps.append(_sweep(table, _section_of(table, sections)))
    return Piece(
        sweeps=tuple(sweeps),
        polygons=tuple(polygons),
        trigger_m=None if trigger_m is None else np.array(trigger_m, dtype=np.float64),
        spawn_m=None if spawn_m is None else np.array(spawn_m, dtype=np.float64),
        knowledge=entry["knowledge"],
        uncertainty_m=entry.get("uncertainty_m", 0.0),
        **{name: entry.get(name, False) for name in ("is_ground", "replaces_ground", "is_water", "is_scenery")},
    )


def _polygon(points_m: Any, surface: str) -> Polygon:
    return Polygon(np.array(points_m, dtype=np.float64), Surface[surface.upper()])


def _section_of(table: dict[str, Any], sections: dict[str, CrossSection]) -> CrossSection:
    section = sections.get(table["cross_section"])
    if section is None:
        raise ValueError(f"no file has a cross-section {table['cross_section']!r}")
    return section if "surface" not in table else CrossSection(section.points_m, Surface[table["surface"].upper()])


def _sweep(table: dict[str, Any], section: CrossSection) -> LaneSweep | PathSweep | ArcSweep:
    match table["way"]:
        case "lanes":
            return LaneSweep(section, table.get("facets", 1), table.get("fills_block", False))
        case "profile":
            profile_m = np.array(table["profile_m"], dtype=np.float64)
            if "slopes" in table:
                profile_m = _smooth(profile_m, table["slopes"], table["facets"])
            return PathSweep(section, np.insert(profile_m[:, ::-1], 0, table.get("at_m", 16.0), axis=1))
        case "path":
            return PathSweep(section, np.array(table["points_m"], dtype=np.float64))
        case "arc":
            return ArcSweep(
                section,
                np.array(table["center_m"], dtype=np.float64),
                float(table["radius_m"]),
                np.radians((table["from_deg"], table["to_deg"])),
                np.array(table["across_m"], dtype=np.float64),
                table["facets"],
            )
    raise ValueError(f"{table['way']!r} is not a way of sweeping: lanes, profile, path, arc, corner, grid")


def _grid(table: dict[str, Any]) -> list[Polygon]:
    """Return the triangles on a surface through heights (Z, X) over a grid."""
    x_m, z_m = np.meshgrid(table["x_m"], table["z_m"])
    points_m = np.stack((x_m, np.array(table["heights_m"], dtype=np.float64), z_m), axis=2)
    triangles: list[Polygon] = []
    for row, column in np.ndindex(points_m.shape[0] - 1, points_m.shape[1] - 1):
        (a, d), (b, c) = points_m[row : row + 2, column : column + 2]
        triangles += [_polygon((a, b, c), table["surface"]), _polygon((a, c, d), table["surface"])]
    return triangles


def _corner(table: dict[str, Any]) -> tuple[FloatArray, list[Polygon]]:
    """Return a border (N, 3) around one corner of a cell square, and the flat ground on one border side.

    It is a quarter circle, or a diagonal, with the ground to its right: towards the other sides (`in`), the corner
    (`out`), or none (`none`). The ground's plane rises along z.
    """
    size_m = table["cells"] * CELL_M
    radius_m = table["radius_m"]
    facets = table["facets"]
    angle = np.linspace(0.0, np.pi / 2.0, facets + 1)
    ray = np.stack((np.cos(angle), np.sin(angle)), axis=1)
    rim_m = radius_m * (ray / ray.sum(axis=1, keepdims=True) if table.get("is_diagonal", False) else ray)
    edge_m = size_m * ray / ray.max(axis=1, keepdims=True)
    corner = np.array(table["corner"])
    height_m, rise = table["plane"]

    def placed(points_m: FloatArray) -> FloatArray:
        x_m, z_m = (corner * size_m + (1 - 2 * corner) * points_m).T
        return np.stack((x_m, height_m + rise * z_m, z_m), axis=1)

    outwards = placed(edge_m)
    inwards = placed(rim_m)
    match table["ground"]:
        case "in":
            strips = [(inwards[k], outwards[k], outwards[k + 1], inwards[k + 1]) for k in range(facets)]
        case "out":
            strips = [(*inwards, *placed(np.zeros((1, 2))))]
        case _:
            strips = []
    # Counter-clockwise, seen from above, is from z to x; a mirrored corner turns it round.
    is_mirrored = bool(corner.sum() % 2)
    strips = [strip if is_mirrored else strip[::-1] for strip in strips]
    is_reversed = is_mirrored != (table["ground"] == "in")
    return inwards[::-1] if is_reversed else inwards, [_polygon(strip, table["surface"]) for strip in strips]


def _smooth(ends_m: FloatArray, slopes: list[float], facets: int) -> FloatArray:
    """Return a profile (facets + 1, 2) between two points: the cubic with these end slopes."""
    u = np.linspace(0.0, 1.0, facets + 1)
    length_m = ends_m[1, 0] - ends_m[0, 0]
    height_m = hermite(u, length_m, (ends_m[0, 1], ends_m[1, 1]), (slopes[0], slopes[1]))
    return np.stack((ends_m[0, 0] + u * length_m, height_m), axis=1)


def hermite(u: FloatArray, length_m: Any, values: tuple[Any, Any], slopes: tuple[Any, Any]) -> FloatArray:
    """Return the cubic over a length with these end values and end slopes, at length shares `u`."""
    return np.asarray(
        (1 + 2 * u) * (1 - u) ** 2 * values[0]
        + u * (1 - u) ** 2 * length_m * slopes[0]
        + u**2 * (3 - 2 * u) * values[1]
        + u**2 * (u - 1) * length_m * slopes[1]
    )
