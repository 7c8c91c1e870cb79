"""Mesh with faces that cars drive on, sorted into cells, and the road along a line through it.

A face is driven on the side on which its corners go counter-clockwise. The stadium's grass is a separate plane
with holes. Axes are the game's: x, y up, z.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.tracks.world import SURFACE_GRASS, Edge, Ground, Ribbon

CELL_M: Final = (32.0, 8.0, 32.0)
PER_CELL: Final = 4  # a cell's parts along x and z: 8 m cubes
PART_M: Final = 8.0
REACH_M: Final = 2.7
"""Upper bound for a car's reach from the origin."""
MOST_CELLS: Final = 1 << 24  # in the box around all faces: the largest grid in a map file

CORNERS: Final = 4  # per face; a triangle's last one counts twice
FLAT_M: Final = 1e-6  # tolerance for two triangles that are one face

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
"""One face. For each side, from a corner to the next, `inward` points across it into the face; a pad pushes along
`forward`."""

MOST_NEAR: Final = 256  # near a car; the game's blocks have at most 60
NEAR_DTYPE = np.dtype(
    [
        ("numbers", np.int64, (MOST_NEAR,)),  # faces around the place `gathered_at_m`
        ("n_gathered", np.int64),
        ("gathered_at_m", np.float64, (3,)),
        ("seen", np.int64, (MOST_NEAR,)),  # those that the car may touch in this collision pass
        ("n_seen", np.int64),
        ("at_body", np.int64, (MOST_NEAR,)),  # rows in `seen` that the body may touch
        ("n_at_body", np.int64),
        ("normals", np.float64, (MOST_NEAR, 3)),  # of `seen` faces, car axes
        ("heights_m", np.float64, (MOST_NEAR,)),  # from the planes of `seen` up to the car's origin
        ("edges", np.int64, (MOST_NEAR,)),  # rows in `seen` whose edges a part may touch
    ],
    align=True,
)
"""Collision pass's working memory; one record, since each array slows down compiled calls."""

FloatArray = npt.NDArray[np.float64]


class SurfaceMesh(NamedTuple):
    """T faces in C occupied cells; a type for numba."""

    records: npt.NDArray[np.void]  # (T,) FACE_DTYPE
    first_cell: npt.NDArray[np.int64]  # (3,) lowest cell in the box around all faces
    cells: npt.NDArray[np.int32]  # (X, Y, Z) occupied cell's number, -1 for empty ones
    starts: npt.NDArray[np.int64]  # (16 * C + 1,) where each cell part's faces begin in `members`
    members: npt.NDArray[np.int32]  # (M,) faces, part by part
    # (W, D) True in cell columns with the stadium's grass, which is all around
    has_grass: npt.NDArray[np.bool_]
    grass_height_m: float
    near: npt.NDArray[np.void]  # (1,) NEAR_DTYPE; threads need a mesh each


def build_surface_mesh(
    corners_m: FloatArray,
    surface: npt.NDArray[np.int64],
    forward: FloatArray,
    has_grass: npt.NDArray[np.bool_],
    grass_height_m: float,
) -> SurfaceMesh:
    """Make faces from triangles, and sort them into cells.

    Args:
        corners_m: (T, 3, 3) world metres; no triangle without an area. Two in a row that make a flat convex
            quadrilateral become one face.
        surface: (T,) TMNF material ids.
        forward: (T, 3) unit vectors.
        has_grass: (W, D) by cell column from the world's corner.
        grass_height_m: in world axes.

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
    """Return (F,) FACE_DTYPE: triangles, and quadrilaterals that each replace two triangles."""
    normal = np.cross(corners_m[:, 1] - corners_m[:, 0], corners_m[:, 2] - corners_m[:, 0])
    normal = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    one = corners_m[:-1]
    other = corners_m[1:]
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
    # If several are in a row, the first two are one, then the next two.
    number = np.arange(len(is_pair))
    begin = np.maximum.accumulate(np.where(is_pair, 0, number + 1)) if len(number) else number
    is_first = np.append(is_pair & ((number - begin) % 2 == 0), False)[: len(corners_m)]
    kept = ~np.concatenate(([False], is_first[:-1]))[: len(corners_m)]
    corners4_m = np.concatenate((corners_m, corners_m[:, 2:]), axis=1)
    corners4_m[is_first] = quad_m[is_first[: len(quad_m)]]
    faces = np.zeros(int(kept.sum()), FACE_DTYPE)
    faces["corners_m"] = corners4_m[kept]
    faces["normal"] = normal[kept]
    sides_m = np.roll(faces["corners_m"], -1, axis=1) - faces["corners_m"]
    faces["inward"] = np.cross(faces["normal"][:, None], sides_m)
    faces["forward"] = forward[kept]
    faces["surface"] = surface[kept]
    faces["low_m"] = faces["corners_m"].min(axis=1)
    faces["high_m"] = faces["corners_m"].max(axis=1)
    return faces


def _parts_and_members(faces: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return M pairs: an 8 m cube, (M, 3), and a face, (M,), that a car in it may touch."""
    lowest = np.floor((faces["low_m"] - REACH_M) / PART_M).astype(np.int64)
    size = np.floor((faces["high_m"] + REACH_M) / PART_M).astype(np.int64) - lowest + 1
    count = size.prod(axis=1)
    member = np.repeat(np.arange(len(faces)), count)
    within = np.arange(len(member)) - np.repeat(np.cumsum(count) - count, count)
    width = size[member, 0]
    depth = size[member, 2]
    part = lowest[member] + np.stack((within % width, within // (width * depth), within // width % depth), axis=1)
    # Most cubes in a tilted face's bounding box are far from its plane.
    middle_m = (part + 0.5) * PART_M - faces["corners_m"][member, 0]
    apart_m = np.abs(np.einsum("ij,ij->i", middle_m, faces["normal"][member]))
    half_m = 0.5 * PART_M * np.abs(faces["normal"]).sum(axis=1) + REACH_M
    near = apart_m <= half_m[member]
    return part[near], member[near]


@compiled(inline="always")
def members_near(mesh: SurfaceMesh, x: float, y: float, z: float) -> tuple[int, int]:
    """Return the `members` range that a car with the origin at a place may touch."""
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
    """Return whether the stadium's grass is at a place's column."""
    column_x = math.floor(x / CELL_M[0])
    column_z = math.floor(z / CELL_M[2])
    width, depth = mesh.has_grass.shape
    if 0 <= column_x < width and 0 <= column_z < depth:
        return bool(mesh.has_grass[column_x, column_z])
    return True


@compiled(inline="always")
def is_inside(face: Any, x: float, y: float, z: float) -> bool:
    """Return whether a point on a face's plane is within the face; world axes."""
    corner = face.corners_m
    inward = face.inward
    for side in range(CORNERS):
        to_x = x - corner[side, 0]
        to_y = y - corner[side, 1]
        to_z = z - corner[side, 2]
        if to_x * inward[side, 0] + to_y * inward[side, 1] + to_z * inward[side, 2] < 0.0:
            return False
    return True


@compiled
def ground_under(mesh: SurfaceMesh, x: float, y: float, z: float, most_m: float) -> Ground:
    """Return the surface nearest to a point along its normal, at most `most_m` below it or half that above it."""
    faces = mesh.records
    nearest = Ground(False, most_m, (0.0, 1.0, 0.0), 0)
    first, end = members_near(mesh, x, y, z)
    for place in range(first, end):
        face = faces[mesh.members[place]]
        corner = face.corners_m
        outward = face.normal
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
MOST_M: Final = 16.0  # to each side: half a block, as the widest road without borders
PROBE_FROM_M: Final = 0.5  # above the road; a nearer surface is a wall
PROBE_DEPTH_M: Final = 1.5
"""A deeper road counts as none. Half the depth, less than a border's thickness, is the reach back through faces."""
STEEPEST: Final = 0.7  # cosine between the road's normal and that of road beside it; steeper is a wall
FOLD_M: Final = 0.25
"""A place above the fold between two faces may be above neither, so a border must continue this far."""

_ROAD: Final = -1
_WALL = int(Edge.WALL)
_GRASS = int(Edge.GRASS)
_DROP = int(Edge.DROP)


class RoadProfile(NamedTuple):
    """Road at each of P cross-sections."""

    to_left_m: npt.NDArray[np.float64]  # (P,) from the cross-section's middle to the border
    to_right_m: npt.NDArray[np.float64]  # (P,)
    surface: npt.NDArray[np.int64]  # (P,) TMNF material id
    edge: npt.NDArray[np.int64]  # (P,) `Edge` value, nearer border
    has_road: npt.NDArray[np.bool_]


def measure_road(ribbon: Ribbon, mesh: SurfaceMesh) -> RoadProfile:
    """Measure a mesh's road along a ribbon; only the ribbon's cross-section places count."""
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
    for section in range(len(ribbon.station_m)):
        under = _ground_at(mesh, ribbon, section, 0.0)
        if not under.exists:
            continue
        measured.has_road[section] = True
        measured.surface[section] = under.material
        left_m, on_left = _border(mesh, ribbon, section, 1.0, under.material)
        right_m, on_right = _border(mesh, ribbon, section, -1.0, under.material)
        measured.to_left_m[section], measured.to_right_m[section] = left_m, right_m
        measured.edge[section] = on_left if left_m < right_m else on_right


@compiled
def _border(mesh: SurfaceMesh, ribbon: Ribbon, section: int, side: float, material: int) -> tuple[float, int]:
    """Return the road's reach to one side (1 is left) and the border kind."""
    reached_m = 0.0
    up = ribbon.up[section]
    while reached_m < MOST_M:
        aside_m = reached_m + STEP_M
        seen = _ground_at(mesh, ribbon, section, side * aside_m)
        beyond = _what_is_at(seen, up, material)
        if beyond == _WALL:
            return aside_m + seen.height_m, beyond
        if beyond != _ROAD:
            further = _ground_at(mesh, ribbon, section, side * (aside_m + FOLD_M))
            if _what_is_at(further, up, material) != _ROAD:
                return reached_m, beyond
        reached_m = aside_m
    return MOST_M, _DROP


@inner
def _what_is_at(ground: Ground, up: npt.NDArray[np.float64], material: int) -> int:
    if not ground.exists:
        return _DROP
    normal = ground.normal
    if normal[0] * up[0] + normal[1] * up[1] + normal[2] * up[2] < STEEPEST:
        return _WALL if ground.height_m >= 0.0 else _DROP  # no surface is visible from behind a face
    return _GRASS if ground.material == SURFACE_GRASS and material != SURFACE_GRASS else _ROAD


@inner
def _ground_at(mesh: SurfaceMesh, ribbon: Ribbon, section: int, aside_m: float) -> Ground:
    place_m = ribbon.center_m[section] + aside_m * ribbon.left[section] + PROBE_FROM_M * ribbon.up[section]
    return ground_under(mesh, place_m[0], place_m[1], place_m[2], PROBE_DEPTH_M)
