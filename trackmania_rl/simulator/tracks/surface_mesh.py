"""A world of triangles: what a map's blocks make to drive on, sorted into cells so that few are looked at.

Triangles are driven on from one side, that from which their corners go round counter-clockwise. The stadium's grass is
a plane of its own, with holes. Axes are the game's: x, y up, z.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.tracks.world import SURFACE_GRASS, Ground

CELL_M: Final = (32.0, 8.0, 32.0)
"""Size of a block's cell."""
PER_CELL: Final = 4
"""A cell is divided into so many parts along x and z: cubes of 8 m."""
PART_M: Final = 8.0
REACH_M: Final = 2.7
"""A car reaches no further from its origin: the triangles of its own part are all that it may touch."""
MOST_CELLS: Final = 1 << 24
"""Of the box around all triangles: the largest grid that a map's file can have."""

TRIANGLE_DTYPE = np.dtype(
    [
        ("corners_m", np.float64, (3, 3)),
        ("normal", np.float64, (3,)),
        ("forward", np.float64, (3,)),
        ("low_m", np.float64, (3,)),
        ("high_m", np.float64, (3,)),
        ("surface", np.int64),
    ],
    align=True,
)
"""One triangle; `forward` is the way in which a pad that it belongs to pushes."""

FloatArray = npt.NDArray[np.float64]


class SurfaceMesh(NamedTuple):
    """T triangles in C occupied cells; numba takes it as it is.

    Attributes:
        triangles: (T,) of TRIANGLE_DTYPE.
        first_cell: (3,) int64, the lowest cell of the box around all triangles.
        cells: (X, Y, Z) int32, number of an occupied cell, -1 where there is nothing.
        starts: (16 * C + 1,) int64, where in `members` the triangles of each part of a cell begin.
        members: (M,) int32, triangles, part by part.
        has_grass: (W, D) bool, by column of cells, whether the stadium's grass lies there; it does all around.
        grass_height_m: of the grass.
    """

    triangles: npt.NDArray[np.void]
    first_cell: npt.NDArray[np.int64]
    cells: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    members: npt.NDArray[np.int32]
    has_grass: npt.NDArray[np.bool_]
    grass_height_m: float


def build_surface_mesh(
    corners_m: FloatArray,
    surface: npt.NDArray[np.int64],
    forward: FloatArray,
    has_grass: npt.NDArray[np.bool_],
    grass_height_m: float,
) -> SurfaceMesh:
    """Sort triangles into cells.

    Args:
        corners_m: (T, 3, 3) world metres; no triangle without an area.
        surface: (T,) TMNF material ids.
        forward: (T, 3) unit vectors.
        has_grass: (W, D) by column of cells from the world's corner.
        grass_height_m: of the grass.

    Raises:
        ValueError: if the triangles are further apart than the largest map is wide.
    """
    triangles = np.zeros(len(corners_m), TRIANGLE_DTYPE)
    normals = np.cross(corners_m[:, 1] - corners_m[:, 0], corners_m[:, 2] - corners_m[:, 0])
    triangles["corners_m"] = corners_m
    triangles["normal"] = normals / np.linalg.norm(normals, axis=1, keepdims=True)
    triangles["forward"], triangles["surface"] = forward, surface
    triangles["low_m"], triangles["high_m"] = corners_m.min(axis=1), corners_m.max(axis=1)
    part, member = _parts_and_members(triangles)
    cell = part // (PER_CELL, 1, PER_CELL)
    first = cell.min(axis=0) if len(cell) else np.zeros(3, dtype=np.int64)
    size = (cell.max(axis=0) if len(cell) else first) - first + 1
    if math.prod(size.tolist()) > MOST_CELLS:
        raise ValueError(f"triangles in {size.tolist()} cells: more than the {MOST_CELLS} of the largest map")
    flat = np.ravel_multi_index(tuple((cell - first).T), tuple(size))
    occupied, number = np.unique(flat, return_inverse=True)
    cells = np.full(math.prod(size.tolist()), -1, dtype=np.int32)
    cells[occupied] = np.arange(len(occupied))
    slot = number * PER_CELL * PER_CELL + part[:, 0] % PER_CELL * PER_CELL + part[:, 2] % PER_CELL
    order = np.argsort(slot, kind="stable")
    starts = np.searchsorted(slot[order], np.arange(len(occupied) * PER_CELL * PER_CELL + 1))
    return SurfaceMesh(
        triangles,
        first.astype(np.int64),
        cells.reshape(tuple(size)),
        starts.astype(np.int64),
        member[order].astype(np.int32),
        np.ascontiguousarray(has_grass),
        float(grass_height_m),
    )


def _parts_and_members(triangles: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(M, 3) cubes of 8 m and (M,) the triangle that a car in each may touch, for all such pairs."""
    lowest = np.floor((triangles["low_m"] - REACH_M) / PART_M).astype(np.int64)
    size = np.floor((triangles["high_m"] + REACH_M) / PART_M).astype(np.int64) - lowest + 1
    count = size.prod(axis=1)
    member = np.repeat(np.arange(len(triangles)), count)
    within = np.arange(len(member)) - np.repeat(np.cumsum(count) - count, count)
    width, depth = size[member, 0], size[member, 2]
    part = lowest[member] + np.stack((within % width, within // (width * depth), within // width % depth), axis=1)
    # Of the cubes in the box around a tilted triangle, most are far from its plane.
    middle_m = (part + 0.5) * PART_M - triangles["corners_m"][member, 0]
    apart_m = np.abs(np.einsum("ij,ij->i", middle_m, triangles["normal"][member]))
    half_m = 0.5 * PART_M * np.abs(triangles["normal"]).sum(axis=1) + REACH_M
    near = apart_m <= half_m[member]
    return part[near], member[near]


@compiled
def members_near(mesh: SurfaceMesh, x: float, y: float, z: float) -> tuple[int, int]:
    """Where in `members` those triangles begin and end that a car with its origin at a place may touch."""
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


@compiled
def is_over_grass(mesh: SurfaceMesh, x: float, z: float) -> bool:
    """Whether the stadium's grass lies under a place, or would."""
    column_x, column_z = math.floor(x / CELL_M[0]), math.floor(z / CELL_M[2])
    width, depth = mesh.has_grass.shape
    if 0 <= column_x < width and 0 <= column_z < depth:
        return bool(mesh.has_grass[column_x, column_z])
    return True


@compiled
def is_inside(corner: Any, face: Any, x: float, y: float, z: float) -> bool:
    """Whether a point of a triangle's plane lies within the triangle; world axes."""
    for begin in range(3):
        end = (begin + 1) % 3
        edge_x, edge_y, edge_z = (
            corner[end, 0] - corner[begin, 0],
            corner[end, 1] - corner[begin, 1],
            corner[end, 2] - corner[begin, 2],
        )
        to_x, to_y, to_z = x - corner[begin, 0], y - corner[begin, 1], z - corner[begin, 2]
        turn = (
            face[0] * (edge_y * to_z - edge_z * to_y)
            + face[1] * (edge_z * to_x - edge_x * to_z)
            + face[2] * (edge_x * to_y - edge_y * to_x)
        )
        if turn < 0.0:
            return False
    return True


@compiled
def ground_under(mesh: SurfaceMesh, x: float, y: float, z: float, most_m: float) -> Ground:
    """The surface nearest to a point, measured along its normal, within `most_m` above it and half of that below."""
    triangles, nearest = mesh.triangles, Ground(False, most_m, (0.0, 1.0, 0.0), 0)
    first, end = members_near(mesh, x, y, z)
    for place in range(first, end):
        triangle = triangles[mesh.members[place]]
        corner, face = triangle.corners_m, triangle.normal
        height_m = (x - corner[0, 0]) * face[0] + (y - corner[0, 1]) * face[1] + (z - corner[0, 2]) * face[2]
        if height_m < -0.5 * most_m or height_m >= nearest.height_m:
            continue
        if is_inside(corner, face, x - height_m * face[0], y - height_m * face[1], z - height_m * face[2]):
            nearest = Ground(True, height_m, (face[0], face[1], face[2]), triangle.surface)
    height_m = y - mesh.grass_height_m
    if -0.5 * most_m <= height_m < nearest.height_m and is_over_grass(mesh, x, z):
        nearest = Ground(True, height_m, (0.0, 1.0, 0.0), SURFACE_GRASS)
    return nearest
