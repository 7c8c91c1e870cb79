"""A list of coloured quadrilaterals in the world: what the things of a scene become before they are drawn.

Collecting first and drawing later keeps the drawing loop in one place: each of its callers would be compiled with a
copy of it, and a new user waits for that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled


class Mesh(NamedTuple):
    """Room for points and for quadrilaterals between them.

    Attributes:
        points_m: (P, 3) float64, world metres.
        seen_m: (P, 3) float64, the same points in camera axes (right, down, ahead), once the mesh is drawn.
        corners: (Q, 4) int32, rows of `points_m`, once around each quadrilateral.
        colors: (Q,) uint32 pixels.
        counts: (2,) int64, how many points and quadrilaterals are in use.
    """

    points_m: npt.NDArray[np.float64]
    seen_m: npt.NDArray[np.float64]
    corners: npt.NDArray[np.int32]
    colors: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.int64]


def new_mesh(most_points: int, most_quads: int) -> Mesh:
    """An empty mesh. Whoever fills it sees to it that there is room."""
    return Mesh(
        points_m=np.empty((most_points, 3)),
        seen_m=np.empty((most_points, 3)),
        corners=np.empty((most_quads, 4), dtype=np.int32),
        colors=np.empty(most_quads, dtype=np.uint32),
        counts=np.zeros(2, dtype=np.int64),
    )


@compiled
def add_point(mesh: Mesh, x: float, y: float, z: float) -> int:
    """Adds a point and returns its row."""
    row = mesh.counts[0]
    mesh.counts[0] = row + 1
    mesh.points_m[row, 0] = x
    mesh.points_m[row, 1] = y
    mesh.points_m[row, 2] = z
    return row


@compiled
def add_quad(mesh: Mesh, a: int, b: int, c: int, d: int, color: np.uint32) -> None:
    """Adds the quadrilateral between four points, given in order around it."""
    row = mesh.counts[1]
    mesh.counts[1] = row + 1
    mesh.corners[row, 0] = a
    mesh.corners[row, 1] = b
    mesh.corners[row, 2] = c
    mesh.corners[row, 3] = d
    mesh.colors[row] = color
