"""A list of coloured quadrilaterals in the world: what the things of a scene become before they are drawn.

Collecting first and drawing later keeps the drawing loop in one place: each of its callers would be compiled with a
copy of it, and a new user waits for that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.picture.palette import COLORS, Colors


class Mesh(NamedTuple):
    """Room for points and for quadrilaterals between them.

    Points are columns, so that a loop over points works on neighbouring numbers and is compiled to vector instructions.

    Attributes:
        points_m: (3, P) float64, world metres.
        seen_m: (3, P) float64, the same points in camera axes (right, down, ahead), once the mesh is drawn.
        on_picture: (3, P) float64, their places on the picture: x and y in pixels, inverse depth in 1/m; only of points
            beyond the near plane.
        first_row: (P,) int32, the picture's first row whose centre is at or below the point, held to 0..height.
        corners: (Q, 4) int32, columns of `points_m`, once around each quadrilateral.
        colors: (Q,) uint32 pixels.
        counts: (2,) int64, how many points and quadrilaterals are in use.
        palette: the colours to choose from.
    """

    points_m: npt.NDArray[np.float64]
    seen_m: npt.NDArray[np.float64]
    on_picture: npt.NDArray[np.float64]
    first_row: npt.NDArray[np.int32]
    corners: npt.NDArray[np.int32]
    colors: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.int64]
    palette: Colors


def new_mesh(most_points: int, most_quads: int, palette: Colors = COLORS) -> Mesh:
    """An empty mesh. Whoever fills it sees to it that there is room."""
    return Mesh(
        points_m=np.empty((3, most_points)),
        seen_m=np.empty((3, most_points)),
        on_picture=np.empty((3, most_points)),
        first_row=np.empty(most_points, dtype=np.int32),
        corners=np.empty((most_quads, 4), dtype=np.int32),
        colors=np.empty(most_quads, dtype=np.uint32),
        counts=np.zeros(2, dtype=np.int64),
        palette=palette,
    )


@compiled
def add_point(mesh: Mesh, x: float, y: float, z: float) -> int:
    """Adds a point and returns its column."""
    column = mesh.counts[0]
    mesh.counts[0] = column + 1
    mesh.points_m[0, column] = x
    mesh.points_m[1, column] = y
    mesh.points_m[2, column] = z
    return column


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
