"""Mesh of faces that cars drive on, sorted into cells, and the road along a line through it.

A face is driven on from the side from which its corners go round counter-clockwise. The stadium's grass is a plane of
its own, with holes. Axes are the game's: x, y up, z.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.tracks.world import SURFACE_GRASS, Edge, Ground, Ribbon

CELL_M: Final = (32.0, 8.0, 32.0)
"""Size of a block's cell."""
PER_CELL: Final = 4
"""A cell is divided into so many parts along x and z: cubes of 8 m."""
PART_M: Final = 8.0
REACH_M: Final = 2.7
"""A car reaches no further from its origin: the faces of its own part are all that it may touch."""
MOST_CELLS: Final = 1 << 24
"""Of the box around all faces: the largest grid that a map's file can have."""

CORNERS: Final = 4
"""Of a face; a triangle's last one counts twice."""
FLAT_M: Final = 1e-6
"""Two triangles that stick out less than this from one plane are one face."""

FACE_DTYPE = np.dtype(
    [
        ("corners_m", np.float64, (CORNERS, 3)),
        ("inward", np.float64, (CORNERS, 3)),
        ("normal", np.float64, (3,)),
        ("forward", np.float64, (3,)),
        ("low_m", np.float64, (3,)),
        ("high_m", np.float64, (3,)),
        ("surface", np.int64),
    ],
    align=True,
)
"""One face. For each side, from a corner to the next, `inward` is the way into the face across it; `forward` is where
a pad that it belongs to pushes."""

MOST_NEAR: Final = 256
"""Limit of the faces near a car; the game's blocks have at most 60 there."""
NEAR_DTYPE = np.dtype(
    [
        ("numbers", np.int64, (MOST_NEAR,)),  # faces around the place `gathered_at_m`
        ("n_gathered", np.int64),
        ("gathered_at_m", np.float64, (3,)),
        ("seen", np.int64, (MOST_NEAR,)),  # of these, faces that the car may touch in this collision pass
        ("n_seen", np.int64),
        ("at_body", np.int64, (MOST_NEAR,)),  # rows of `seen` that the body may touch
        ("n_at_body", np.int64),
        ("normals", np.float64, (MOST_NEAR, 3)),  # of `seen`, car axes
        ("heights_m", np.float64, (MOST_NEAR,)),  # of the car's origin above the planes of `seen`
        ("edges", np.int64, (MOST_NEAR,)),  # rows of `seen` whose edges a part may touch
    ],
    align=True,
)
"""Working memory of a collision pass. One record, since compiled code hands on arrays at a cost."""

FloatArray = npt.NDArray[np.float64]


class SurfaceMesh(NamedTuple):
    """T faces in C occupied cells; numba takes it as it is.

    Attributes:
        records: (T,) of FACE_DTYPE.
        first_cell: (3,) int64, the lowest cell of the box around all faces.
        cells: (X, Y, Z) int32, number of an occupied cell, -1 where there is nothing.
        starts: (16 * C + 1,) int64, where in `members` the faces of each part of a cell begin.
        members: (M,) int32, faces, part by part.
        has_grass: (W, D) bool, by column of cells, whether the stadium's grass lies there; it does all around.
        grass_height_m: of the grass.
        near: (1,) of NEAR_DTYPE, working memory of collision passes; threads need a mesh each.
    """

    records: npt.NDArray[np.void]
    first_cell: npt.NDArray[np.int64]
    cells: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    members: npt.NDArray[np.int32]
    has_grass: npt.NDArray[np.bool_]
    grass_height_m: float
    near: npt.NDArray[np.void]


def build_surface_mesh(
    corners_m: FloatArray,
    surface: npt.NDArray[np.int64],
    forward: FloatArray,
    has_grass: npt.NDArray[np.bool_],
    grass_height_m: float,
) -> SurfaceMesh:
    """Make faces of triangles, and sort them into cells.

    Args:
        corners_m: (T, 3, 3) world metres; no triangle without an area. Two in a row that make a flat convex
            quadrilateral become one face.
        surface: (T,) TMNF material ids.
        forward: (T, 3) unit vectors.
        has_grass: (W, D) by column of cells from the world's corner.
        grass_height_m: of the grass.

    Raises:
        ValueError: if the faces are further apart than the largest map is wide.
    """
    faces = _faces_of(corners_m, surface, forward)
    part, member = _parts_and_members(faces)
    cell = part // (PER_CELL, 1, PER_CELL)
    first = cell.min(axis=0) if len(cell) else np.zeros(3, dtype=np.int64)
    size = (cell.max(axis=0) if len(cell) else first) - first + 1
    if math.prod(size.tolist()) > MOST_CELLS:
        raise ValueError(f"faces in {size.tolist()} cells: more than the {MOST_CELLS} of the largest map")
    flat = np.ravel_multi_index(tuple((cell - first).T), tuple(size))
    occupied, number = np.unique(flat, return_inverse=True)
    cells = np.full(math.prod(size.tolist()), -1, dtype=np.int32)
    cells[occupied] = np.arange(len(occupied))
    slot = number * PER_CELL * PER_CELL + part[:, 0] % PER_CELL * PER_CELL + part[:, 2] % PER_CELL
    order = np.argsort(slot, kind="stable")
    starts = np.searchsorted(slot[order], np.arange(len(occupied) * PER_CELL * PER_CELL + 1))
    near = np.zeros(1, NEAR_DTYPE)
    near["gathered_at_m"] = np.inf
    return SurfaceMesh(
        faces,
        first.astype(np.int64),
        cells.reshape(tuple(size)),
        starts.astype(np.int64),
        member[order].astype(np.int32),
        np.ascontiguousarray(has_grass),
        float(grass_height_m),
        near,
    )


def _faces_of(corners_m: FloatArray, surface: npt.NDArray[np.int64], forward: FloatArray) -> npt.NDArray[np.void]:
    """(F,) of FACE_DTYPE: triangles, and quadrilaterals in place of two of them."""
    normal = np.cross(corners_m[:, 1] - corners_m[:, 0], corners_m[:, 2] - corners_m[:, 0])
    normal = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    one, other = corners_m[:-1], corners_m[1:]
    quad_m = np.stack((one[:, 0], one[:, 1], one[:, 2], other[:, 2]), axis=1)  # (T - 1, 4, 3)
    side_m = np.roll(quad_m, -1, axis=1) - quad_m
    turn = np.einsum("tcx,tx->tc", np.cross(side_m, np.roll(side_m, -1, axis=1)), normal[:-1])
    is_pair = (
        (one[:, 0] == other[:, 0]).all(axis=1)
        & (one[:, 2] == other[:, 1]).all(axis=1)
        & (surface[:-1] == surface[1:])
        & (forward[:-1] == forward[1:]).all(axis=1)
        & (np.abs(np.einsum("tx,tx->t", other[:, 2] - one[:, 0], normal[:-1])) <= FLAT_M)
        & (turn >= 0.0).all(axis=1)
    )
    # Of several in a row, the first two are one, then the next two.
    number = np.arange(len(is_pair))
    begin = np.maximum.accumulate(np.where(is_pair, 0, number + 1)) if len(number) else number
    is_first = np.append(is_pair & ((number - begin) % 2 == 0), False)[: len(corners_m)]
    kept = ~np.concatenate(([False], is_first[:-1]))[: len(corners_m)]
    corners4_m = np.concatenate((corners_m, corners_m[:, 2:]), axis=1)
    corners4_m[is_first] = quad_m[is_first[: len(quad_m)]]
    faces = np.zeros(int(kept.sum()), FACE_DTYPE)
    faces["corners_m"], faces["normal"] = corners4_m[kept], normal[kept]
    sides_m = np.roll(faces["corners_m"], -1, axis=1) - faces["corners_m"]
    faces["inward"] = np.cross(faces["normal"][:, None], sides_m)
    faces["forward"], faces["surface"] = forward[kept], surface[kept]
    faces["low_m"], faces["high_m"] = faces["corners_m"].min(axis=1), faces["corners_m"].max(axis=1)
    return faces


def _parts_and_members(faces: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(M, 3) cubes of 8 m and (M,) the face that a car in each may touch, for all such pairs."""
    lowest = np.floor((faces["low_m"] - REACH_M) / PART_M).astype(np.int64)
    size = np.floor((faces["high_m"] + REACH_M) / PART_M).astype(np.int64) - lowest + 1
    count = size.prod(axis=1)
    member = np.repeat(np.arange(len(faces)), count)
    within = np.arange(len(member)) - np.repeat(np.cumsum(count) - count, count)
    width, depth = size[member, 0], size[member, 2]
    part = lowest[member] + np.stack((within % width, within // (width * depth), within // width % depth), axis=1)
    # Of the cubes in the box around a tilted face, most are far from its plane.
    middle_m = (part + 0.5) * PART_M - faces["corners_m"][member, 0]
    apart_m = np.abs(np.einsum("ij,ij->i", middle_m, faces["normal"][member]))
    half_m = 0.5 * PART_M * np.abs(faces["normal"]).sum(axis=1) + REACH_M
    near = apart_m <= half_m[member]
    return part[near], member[near]


@compiled(inline="always")
def members_near(mesh: SurfaceMesh, x: float, y: float, z: float) -> tuple[int, int]:
    """Where in `members` those faces begin and end that a car with its origin at a place may touch."""
    cell_x = math.floor(x / CELL_M[0]) - mesh.first_cell[0]
    cell_y = math.floor(y / CELL_M[1]) - mesh.first_cell[1]
    cell_z = math.floor(z / CELL_M[2]) - mesh.first_cell[2]
    shape = mesh.cells.shape
    if not (0 <= cell_x < shape[0] and 0 <= cell_y < shape[1] and 0 <= cell_z < shape[2]):
        return 0, 0
    cell = mesh.cells[cell_x, cell_y, cell_z]
    if cell < 0:
        return 0, 0
    part_x = math.floor(x / PART_M) & (PER_CELL - 1)
    part_z = math.floor(z / PART_M) & (PER_CELL - 1)
    slot = cell * PER_CELL * PER_CELL + part_x * PER_CELL + part_z
    return mesh.starts[slot], mesh.starts[slot + 1]


@compiled(inline="always")
def is_over_grass(mesh: SurfaceMesh, x: float, z: float) -> bool:
    """Whether the stadium's grass lies under a place, or would."""
    column_x, column_z = math.floor(x / CELL_M[0]), math.floor(z / CELL_M[2])
    width, depth = mesh.has_grass.shape
    if 0 <= column_x < width and 0 <= column_z < depth:
        return bool(mesh.has_grass[column_x, column_z])
    return True


@compiled(inline="always")
def is_inside(face: Any, x: float, y: float, z: float) -> bool:
    """Whether a point of a face's plane lies within the face; world axes."""
    corner, inward = face.corners_m, face.inward
    for side in range(CORNERS):
        to_x, to_y, to_z = x - corner[side, 0], y - corner[side, 1], z - corner[side, 2]
        if to_x * inward[side, 0] + to_y * inward[side, 1] + to_z * inward[side, 2] < 0.0:
            return False
    return True


@compiled
def ground_under(mesh: SurfaceMesh, x: float, y: float, z: float, most_m: float) -> Ground:
    """The surface nearest to a point, measured along its normal, within `most_m` above it and half of that below."""
    faces, nearest = mesh.records, Ground(False, most_m, (0.0, 1.0, 0.0), 0)
    first, end = members_near(mesh, x, y, z)
    for place in range(first, end):
        face = faces[mesh.members[place]]
        corner, outward = face.corners_m, face.normal
        height_m = (x - corner[0, 0]) * outward[0] + (y - corner[0, 1]) * outward[1] + (z - corner[0, 2]) * outward[2]
        if height_m < -0.5 * most_m or height_m >= nearest.height_m:
            continue
        if is_inside(face, x - height_m * outward[0], y - height_m * outward[1], z - height_m * outward[2]):
            nearest = Ground(True, height_m, (outward[0], outward[1], outward[2]), face.surface)
    height_m = y - mesh.grass_height_m
    if -0.5 * most_m <= height_m < nearest.height_m and is_over_grass(mesh, x, z):
        nearest = Ground(True, height_m, (0.0, 1.0, 0.0), SURFACE_GRASS)
    return nearest


STEP_M: Final = 0.5
MOST_M: Final = 16.0
"""So far is looked to each side: half of a block, which is half of the widest road without borders."""
LOOK_FROM_M: Final = 0.5
"""Above the road. A wall is what is nearer than the road from there."""
LOOK_DOWN_M: Final = 1.5
"""Where the road is lower than that, the way is in the air. Half of it is looked back through faces: less than borders
are thick."""
STEEPEST: Final = 0.7
"""Cosine between the road's normal and that of what still is road; what is steeper is a wall."""
FOLD_M: Final = 0.25
"""A place above the fold between two faces may be above neither: a border is one so much further as well."""

_ROAD: Final = -1
_WALL, _GRASS, _DROP = int(Edge.WALL), int(Edge.GRASS), int(Edge.DROP)


class RoadProfile(NamedTuple):
    """A road at each of P cross-sections: how far it goes to both sides, and what it is.

    Attributes:
        to_left_m: (P,) float64, from the middle of the cross-section to the border on its left.
        to_right_m: (P,) float64.
        surface: (P,) int64, TMNF material id.
        edge: (P,) int64, one of `Edge`, of the nearer border.
        has_road: (P,) bool, False where there is nothing below.
    """

    to_left_m: npt.NDArray[np.float64]
    to_right_m: npt.NDArray[np.float64]
    surface: npt.NDArray[np.int64]
    edge: npt.NDArray[np.int64]
    has_road: npt.NDArray[np.bool_]


def measure_road(ribbon: Ribbon, mesh: SurfaceMesh) -> RoadProfile:
    """Look to both sides of the way through a world.

    Args:
        ribbon: the way; only where its cross-sections are counts.
        mesh: the world.
    """
    n_sections = len(ribbon.station_m)
    measured = RoadProfile(
        to_left_m=np.full(n_sections, MOST_M),
        to_right_m=np.full(n_sections, MOST_M),
        surface=np.zeros(n_sections, dtype=np.int64),
        edge=np.full(n_sections, _DROP),
        has_road=np.zeros(n_sections, dtype=np.bool_),
    )
    _measure(mesh, ribbon, measured)
    return measured


@compiled
def _measure(mesh: SurfaceMesh, ribbon: Ribbon, measured: RoadProfile) -> None:
    """Write what is found; where there is no road, what is there stays."""
    for section in range(len(ribbon.station_m)):
        under = _look(mesh, ribbon, section, 0.0)
        if not under.exists:
            continue
        measured.has_road[section], measured.surface[section] = True, under.material
        left_m, on_left = _border(mesh, ribbon, section, 1.0, under.material)
        right_m, on_right = _border(mesh, ribbon, section, -1.0, under.material)
        measured.to_left_m[section], measured.to_right_m[section] = left_m, right_m
        measured.edge[section] = on_left if left_m < right_m else on_right


@compiled
def _border(mesh: SurfaceMesh, ribbon: Ribbon, section: int, side: float, material: int) -> tuple[float, int]:
    """How far the road goes to one side, 1 for left, and what is there."""
    reached_m, up = 0.0, ribbon.up[section]
    while reached_m < MOST_M:
        aside_m = reached_m + STEP_M
        seen = _look(mesh, ribbon, section, side * aside_m)
        beyond = _what_is_at(seen, up, material)
        if beyond == _WALL:
            return aside_m + seen.height_m, beyond
        if beyond != _ROAD:
            further = _look(mesh, ribbon, section, side * (aside_m + FOLD_M))
            if _what_is_at(further, up, material) != _ROAD:
                return reached_m, beyond
        reached_m = aside_m
    return MOST_M, _DROP


@compiled
def _what_is_at(ground: Ground, up: npt.NDArray[np.float64], material: int) -> int:
    """The road itself, or which of `Edge`."""
    if not ground.exists:
        return _DROP
    normal = ground.normal
    if normal[0] * up[0] + normal[1] * up[1] + normal[2] * up[2] < STEEPEST:
        return _WALL if ground.height_m >= 0.0 else _DROP  # who is behind a face does not see it
    return _GRASS if ground.material == SURFACE_GRASS and material != SURFACE_GRASS else _ROAD


@compiled
def _look(mesh: SurfaceMesh, ribbon: Ribbon, section: int, aside_m: float) -> Ground:
    """The ground beside the middle of a cross-section."""
    place_m = ribbon.center_m[section] + aside_m * ribbon.left[section] + LOOK_FROM_M * ribbon.up[section]
    return ground_under(mesh, place_m[0], place_m[1], place_m[2], LOOK_DOWN_M)
