"""Drawing a mesh: projection, near-plane clipping, scanlines, depth test; and what is seen where no mesh is.

Depth is kept as its inverse, which is linear on the picture: 0 is infinitely far, and larger is nearer. Of surfaces
that lie in each other, the one that was added first is seen; so a mark on the road is added before the road.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.camera import Camera, focal_length_px, to_camera_axes
from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.mesh import Mesh
from trackmania_rl.simulator.palette import GROUND_TILES, HAZE_LEVELS, HAZE_LEVELS_PER_M, SKY, SKY_LEVELS

# Numba counts references to arrays that a function hands on; inlined, the inner loops are a third faster. The error
# model "numpy" (a division by zero gives inf) also lets it drop most of that counting.

NEAR_M = 0.2
"""Nearer than this to the camera's plane, nothing is drawn."""
_MOST_CORNERS = 6
"""Of a quadrilateral that a plane cut: five when it is convex, six when it is crossed."""
_COPLANAR = np.float32(1.002)
"""By this factor a surface must be nearer than what is drawn already."""

_SKY_LEVELS_PER_SLOPE = np.float32(SKY_LEVELS / 0.8)
_TILES_PER_M = np.float32(1.0 / 32.0)
"""The stadium's ground is laid in squares of 32 m, as in the game."""
_LEAST_HEIGHT_OVER_GROUND_M = 1.0
"""The ground gives way to a camera that would dive into it."""
_FARTHEST_GROUND_M = np.float32(1e5)
_HAZE_LEVELS_PER_M = np.float32(HAZE_LEVELS_PER_M)


class Canvas(NamedTuple):
    """A picture being drawn, with the scratch memory for it.

    Attributes:
        pixels: (H, W) uint32.
        inverse_depth_1_m: (H, W) float32, 0 where nothing is drawn yet.
        spans: (H, 4) float64, scratch: left end of a polygon's row in pixels, its inverse depth, right end, its inverse
            depth.
        polygon: (6, 3) float64, scratch: a polygon's corners; x and y in pixels, inverse depth.
        focal_px: focal length.
    """

    pixels: npt.NDArray[np.uint32]
    inverse_depth_1_m: npt.NDArray[np.float32]
    spans: npt.NDArray[np.float64]
    polygon: npt.NDArray[np.float64]
    focal_px: float


def new_canvas(width_px: int, height_px: int) -> Canvas:
    """A canvas whose pixels and depths are still to be set."""
    return Canvas(
        pixels=np.empty((height_px, width_px), dtype=np.uint32),
        inverse_depth_1_m=np.empty((height_px, width_px), dtype=np.float32),
        spans=np.empty((height_px, 4)),
        polygon=np.empty((_MOST_CORNERS, 3)),
        focal_px=focal_length_px(height_px),
    )


@compiled(inline="always")
def _project_corner(canvas: Canvas, corner: int, x_m: float, y_m: float, z_m: float) -> None:
    height, width = canvas.pixels.shape
    w = 1.0 / z_m
    canvas.polygon[corner, 0] = 0.5 * width + canvas.focal_px * x_m * w
    canvas.polygon[corner, 1] = 0.5 * height + canvas.focal_px * y_m * w
    canvas.polygon[corner, 2] = w


@compiled(inline="always")
def _project_quad(canvas: Canvas, mesh: Mesh, quad: int) -> int:
    """Projects the part of a quadrilateral beyond the near plane to canvas.polygon; returns its number of corners."""
    points, count = mesh.seen_m, 0
    for position in range(4):
        start, end = mesh.corners[quad, position], mesh.corners[quad, (position + 1) & 3]
        x, y, z = points[start, 0], points[start, 1], points[start, 2]
        end_z = points[end, 2]
        if z >= NEAR_M:
            _project_corner(canvas, count, x, y, z)
            count += 1
        if (z >= NEAR_M) != (end_z >= NEAR_M):
            fraction = (NEAR_M - z) / (end_z - z)
            cut_x = x + fraction * (points[end, 0] - x)
            cut_y = y + fraction * (points[end, 1] - y)
            _project_corner(canvas, count, cut_x, cut_y, NEAR_M)
            count += 1
    return count


@compiled(inline="always")
def _first_center_after(edge_px: float, size_px: int) -> int:
    """Number of the first pixel whose centre is at or after a place, held to 0..size_px."""
    return math.ceil(min(max(edge_px - 0.5, 0.0), float(size_px)))


@compiled(inline="always")
def _trace_edge(spans: npt.NDArray, polygon: npt.NDArray, a: int, b: int, height_px: int) -> None:
    """Widens the spans of the rows that an edge crosses; always from its upper end, so that neighbours share it."""
    if polygon[a, 1] > polygon[b, 1]:
        a, b = b, a
    x, y, w = polygon[a, 0], polygon[a, 1], polygon[a, 2]
    first = _first_center_after(y, height_px)
    end = _first_center_after(polygon[b, 1], height_px)
    per_row = 1.0 / (polygon[b, 1] - y)
    x_step = (polygon[b, 0] - x) * per_row
    w_step = (polygon[b, 2] - w) * per_row
    for row in range(first, end):
        below = row + 0.5 - y
        row_x = x + below * x_step
        row_w = w + below * w_step
        if row_x < spans[row, 0]:
            spans[row, 0] = row_x
            spans[row, 1] = row_w
        if row_x > spans[row, 2]:
            spans[row, 2] = row_x
            spans[row, 3] = row_w


@compiled(inline="always")
def _fill_row(canvas: Canvas, row: int, color: np.uint32) -> None:
    """Paints the pixels of a polygon's row that are nearer than what is there."""
    width_px = canvas.pixels.shape[1]
    x, w, end_x, end_w = canvas.spans[row, 0], canvas.spans[row, 1], canvas.spans[row, 2], canvas.spans[row, 3]
    first = _first_center_after(x, width_px)
    end = _first_center_after(end_x, width_px)
    step = (end_w - w) / (end_x - x)
    first_w = np.float32(w + (first + 0.5 - x) * step)
    step_w = np.float32(step)
    for column in range(first, end):
        column_w = first_w + np.float32(column - first) * step_w
        if column_w > canvas.inverse_depth_1_m[row, column] * _COPLANAR:
            canvas.inverse_depth_1_m[row, column] = column_w
            canvas.pixels[row, column] = color


@compiled(inline="always")
def _draw_polygon(canvas: Canvas, n_corners: int, color: np.uint32) -> None:
    """Draws the polygon in canvas.polygon."""
    height_px, width_px = canvas.pixels.shape
    spans, polygon = canvas.spans, canvas.polygon
    left, right, top, bottom = polygon[0, 0], polygon[0, 0], polygon[0, 1], polygon[0, 1]
    for corner in range(1, n_corners):
        left, right = min(left, polygon[corner, 0]), max(right, polygon[corner, 0])
        top, bottom = min(top, polygon[corner, 1]), max(bottom, polygon[corner, 1])
    first_row = _first_center_after(top, height_px)
    end_row = _first_center_after(bottom, height_px)
    if right > 0.0 and left < width_px and first_row < end_row:
        for row in range(first_row, end_row):
            spans[row, 0] = math.inf
            spans[row, 2] = -math.inf
        previous = n_corners - 1
        for corner in range(n_corners):
            _trace_edge(spans, polygon, previous, corner, height_px)
            previous = corner
        for row in range(first_row, end_row):
            _fill_row(canvas, row, color)


@compiled
def draw_mesh(canvas: Canvas, mesh: Mesh, camera: Camera) -> None:
    """Draws the quadrilaterals of a mesh as the camera sees them, each in its one colour.

    One may be bent or crossed: every row of the picture is filled from its leftmost to its rightmost point.
    """
    to_camera_axes(camera, mesh.points_m, mesh.counts[0], mesh.seen_m)
    for quad in range(mesh.counts[1]):
        n_corners = _project_quad(canvas, mesh, quad)
        if n_corners >= 3:
            _draw_polygon(canvas, n_corners, mesh.colors[quad])


@compiled
def draw_background(canvas: Canvas, camera: Camera, ground_height_m: float) -> None:
    """Fills every pixel that nothing was drawn on with sky or with the stadium's ground."""
    height_px, width_px = canvas.pixels.shape
    axes, position = camera.axes, camera.position_m
    over_ground_m = np.float32(max(position[1] - ground_height_m, _LEAST_HEIGHT_OVER_GROUND_M))
    camera_x, camera_z = np.float32(position[0]), np.float32(position[2])
    per_px = 1.0 / canvas.focal_px
    # A ray's world direction changes by the same amount from pixel to pixel.
    step_x = np.float32(axes[0, 0] * per_px)
    step_y = np.float32(axes[0, 1] * per_px)
    step_z = np.float32(axes[0, 2] * per_px)
    for row in range(height_px):
        across, below = 0.5 * (1 - width_px) * per_px, (row + 0.5 - 0.5 * height_px) * per_px
        row_x = np.float32(axes[2, 0] + below * axes[1, 0] + across * axes[0, 0])
        row_y = np.float32(axes[2, 1] + below * axes[1, 1] + across * axes[0, 1])
        row_z = np.float32(axes[2, 2] + below * axes[1, 2] + across * axes[0, 2])
        for column in range(width_px):
            if canvas.inverse_depth_1_m[row, column] > 0.0:
                continue
            steps = np.float32(column)
            ray_y = row_y + steps * step_y
            if ray_y >= 0.0:
                level = np.int32(min(ray_y * _SKY_LEVELS_PER_SLOPE, np.float32(SKY_LEVELS - 1)))
                canvas.pixels[row, column] = SKY[level]
            else:
                depth_m = min(over_ground_m / -ray_y, _FARTHEST_GROUND_M)
                tile_x = np.int32(np.floor((camera_x + depth_m * (row_x + steps * step_x)) * _TILES_PER_M))
                tile_z = np.int32(np.floor((camera_z + depth_m * (row_z + steps * step_z)) * _TILES_PER_M))
                haze = np.int32(min(depth_m * _HAZE_LEVELS_PER_M, np.float32(HAZE_LEVELS - 1)))
                canvas.pixels[row, column] = GROUND_TILES[(tile_x + tile_z) & 1, haze]
