"""Rasterizer: the chase camera, meshes made from coloured quadrilaterals, and drawing them with a depth test.

Camera axes are x right, y down (as picture rows) and z ahead. The camera is fixed to the car.

Depth is kept as its inverse, which is linear on the picture: 0 is infinitely far. Among surfaces in one plane, the one
added first is visible, so a mark on the road is added before the road.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.picture.palette import COLORS, HAZE_LEVELS, HAZE_LEVELS_PER_M, SKY_LEVELS, Colors

BEHIND_CAR_M = 7.5  # from the car's origin, along the car
ABOVE_CAR_M = 3.4  # from the car's origin, along the car's up
PITCH_DOWN_RAD = math.radians(11.0)  # below the car's forward axis
VERTICAL_FIELD_OF_VIEW_RAD = math.radians(60.0)
"""4:3 pictures show 75 degrees from left to right."""

_COS_PITCH = math.cos(PITCH_DOWN_RAD)
_SIN_PITCH = math.sin(PITCH_DOWN_RAD)
_FOCAL_LENGTH_HEIGHTS = 0.5 / math.tan(0.5 * VERTICAL_FIELD_OF_VIEW_RAD)


class Camera(NamedTuple):
    """Pinhole camera."""

    position_m: npt.NDArray[np.float64]  # (3,) world
    axes: npt.NDArray[np.float64]  # (3, 3); rows are the camera's right, down and ahead in world axes


def focal_length_px(height_px: int) -> float:
    """Return the focal length for this picture height; pixels are square."""
    return _FOCAL_LENGTH_HEIGHTS * height_px


@compiled
def chase_camera(car_position_m: npt.NDArray[np.float64], car_rotation: npt.NDArray[np.float64]) -> Camera:
    """Return the camera behind a car at a world position (3,) with a car-to-world matrix (3, 3), both float64."""
    position = np.empty(3)
    axes = np.empty((3, 3))
    for axis in range(3):
        left = car_rotation[axis, 0]
        up = car_rotation[axis, 1]
        forward = car_rotation[axis, 2]
        position[axis] = car_position_m[axis] - BEHIND_CAR_M * forward + ABOVE_CAR_M * up
        axes[0, axis] = -left
        axes[1, axis] = -_COS_PITCH * up - _SIN_PITCH * forward
        axes[2, axis] = _COS_PITCH * forward - _SIN_PITCH * up
    return Camera(position, axes)


@inner
def depth_in_view(camera: Camera, points_m: npt.NDArray[np.float64], row: int) -> float:
    """Return the distance (m) for world points (N, 3) ahead of the camera; negative behind it."""
    position = camera.position_m
    axes = camera.axes
    return (
        (points_m[row, 0] - position[0]) * axes[2, 0]
        + (points_m[row, 1] - position[1]) * axes[2, 1]
        + (points_m[row, 2] - position[2]) * axes[2, 2]
    )


@inner
def to_camera_axes(camera: Camera, points_m: npt.NDArray[np.float64], count: int, seen_m: npt.NDArray) -> None:
    """Write the first `count` world points (3, N) to `seen_m` (3, N) in camera axes, metres."""
    position = camera.position_m
    axes = camera.axes
    for axis in range(3):
        along_x = axes[axis, 0]
        along_y = axes[axis, 1]
        along_z = axes[axis, 2]
        for column in range(count):
            x = points_m[0, column] - position[0]
            y = points_m[1, column] - position[1]
            z = points_m[2, column] - position[2]
            seen_m[axis, column] = along_x * x + along_y * y + along_z * z


class Mesh(NamedTuple):
    """Points and quadrilaterals between them, with room for more.

    Points are columns, so loops over points are compiled to vector instructions.
    """

    points_m: npt.NDArray[np.float64]  # (3, P) world metres
    # (3, P) in camera axes (right, down, ahead), once the mesh is drawn
    seen_m: npt.NDArray[np.float64]
    # (3, P) x and y in pixels and inverse depth in 1/m; only for points beyond the near plane
    on_picture: npt.NDArray[np.float64]
    # (P,) first row whose centre is at or below the point, clipped to 0..height
    first_row: npt.NDArray[np.int32]
    corners: npt.NDArray[np.int32]  # (Q, 4) columns of `points_m`, in order around
    colors: npt.NDArray[np.uint32]  # (Q,) pixels
    counts: npt.NDArray[np.int64]  # (2,) points and quadrilaterals in use
    palette: Colors


def new_mesh(most_points: int, most_quads: int, palette: Colors = COLORS) -> Mesh:
    """Return an empty mesh. Adding does not check for room."""
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


@inner
def add_point(mesh: Mesh, x: float, y: float, z: float) -> int:
    """Add a point; return its column."""
    column = mesh.counts[0]
    mesh.counts[0] = column + 1
    mesh.points_m[0, column] = x
    mesh.points_m[1, column] = y
    mesh.points_m[2, column] = z
    return column


@inner
def add_quad(mesh: Mesh, a: int, b: int, c: int, d: int, color: np.uint32) -> None:
    """Add the quadrilateral between four points, given in order around it."""
    row = mesh.counts[1]
    mesh.counts[1] = row + 1
    mesh.corners[row, 0] = a
    mesh.corners[row, 1] = b
    mesh.corners[row, 2] = c
    mesh.corners[row, 3] = d
    mesh.colors[row] = color


# Numba counts references to arrays taken from tuples or passed to functions, so inner functions are inlined
# and get plain arrays. Vector instructions need unsigned indices (no test for negative ones), no branches (hence
# `a if b else c`), and no loads from a table that might overlap the target (hence the background's tints first and
# their colours second).

NEAR_M = 0.2  # near plane's distance
_MOST_CORNERS = 6  # for a quadrilateral cut by a plane: five if convex, six if crossed
_COPLANAR = np.float32(1.002)  # factor by which a surface must be nearer than an earlier one

_SKY_LEVELS_PER_SLOPE = np.float32(SKY_LEVELS / 0.8)
_TILES_PER_M = np.float32(1.0 / 32.0)  # tiles of 32 m, as in the game
_LEAST_HEIGHT_OVER_GROUND_M = 1.0  # camera's, for drawing the ground
_FARTHEST_GROUND_M = np.float32(1e5)
_LEAST_SLOPE = np.float32(1e-9)
_NO_TINT = np.int32(-1)
_HAZE_LEVELS_PER_M = np.float32(HAZE_LEVELS_PER_M)


class Canvas(NamedTuple):
    """Picture being drawn, with working memory."""

    pixels: npt.NDArray[np.uint32]  # (H, W)
    inverse_depth_1_m: npt.NDArray[np.float32]  # (H, W) 0 where no mesh is drawn yet
    # (H, 4) per polygon row: left end in pixels, inverse depth there, right end, inverse depth there
    spans: npt.NDArray[np.float64]
    # (6, 4) x and y in pixels, inverse depth, first row as in `Mesh.first_row`
    polygon: npt.NDArray[np.float64]
    columns: npt.NDArray[np.float32]  # (W,) 0, 1, 2,
    tints: npt.NDArray[np.int32]  # (W,) a row's background colour numbers
    focal_px: float


def new_canvas(width_px: int, height_px: int) -> Canvas:
    """Return a canvas with uninitialised pixels and depths."""
    return Canvas(
        pixels=np.empty((height_px, width_px), dtype=np.uint32),
        inverse_depth_1_m=np.empty((height_px, width_px), dtype=np.float32),
        spans=np.empty((height_px, 4)),
        polygon=np.empty((_MOST_CORNERS, 4)),
        columns=np.arange(width_px, dtype=np.float32),
        tints=np.empty(width_px, dtype=np.int32),
        focal_px=focal_length_px(height_px),
    )


@compiled(inline="always")
def _first_center_after(edge_px: float, size_px: int) -> int:
    """Return the first pixel whose centre is at or after a place, clipped."""
    first = edge_px - 0.5 if edge_px > 0.5 else 0.0
    return int(np.ceil(first if first < size_px else float(size_px)))


@inner
def _project_points(canvas: Canvas, mesh: Mesh, camera: Camera) -> None:
    count = mesh.counts[0]
    seen = mesh.seen_m
    on_picture = mesh.on_picture
    first_row = mesh.first_row
    to_camera_axes(camera, mesh.points_m, count, seen)
    height_px, width_px = canvas.pixels.shape
    middle_x = 0.5 * width_px
    middle_y = 0.5 * height_px
    focal_px = canvas.focal_px
    for column in range(count):
        z = seen[2, column]
        w = 1.0 / (z if z > NEAR_M else NEAR_M)
        on_picture[0, column] = middle_x + focal_px * seen[0, column] * w
        y = middle_y + focal_px * seen[1, column] * w
        on_picture[1, column] = y
        on_picture[2, column] = w
        first_row[column] = _first_center_after(y, height_px)


@inner
def _clip_quad(canvas: Canvas, mesh: Mesh, quad: int) -> int:
    """Project a quadrilateral's part beyond the near plane to canvas.polygon; return the corner count."""
    height_px, width_px = canvas.pixels.shape
    seen = mesh.seen_m
    on_picture = mesh.on_picture
    polygon = canvas.polygon
    count = 0
    w = 1.0 / NEAR_M
    for position in range(4):
        start = mesh.corners[quad, position]
        end = mesh.corners[quad, (position + 1) & 3]
        z = seen[2, start]
        end_z = seen[2, end]
        if z >= NEAR_M:
            for axis in range(3):
                polygon[count, axis] = on_picture[axis, start]
            polygon[count, 3] = mesh.first_row[start]
            count += 1
        if (z >= NEAR_M) != (end_z >= NEAR_M):
            fraction = (NEAR_M - z) / (end_z - z)
            cut_x = seen[0, start] + fraction * (seen[0, end] - seen[0, start])
            cut_y = seen[1, start] + fraction * (seen[1, end] - seen[1, start])
            polygon[count, 0] = 0.5 * width_px + canvas.focal_px * cut_x * w
            polygon[count, 1] = 0.5 * height_px + canvas.focal_px * cut_y * w
            polygon[count, 2] = w
            polygon[count, 3] = _first_center_after(polygon[count, 1], height_px)
            count += 1
    return count


@compiled(inline="always")
def _trace_edge(spans: npt.NDArray, polygon: npt.NDArray, a: int, b: int) -> None:
    """Widen the spans of the rows that an edge crosses, from the upper end, so neighbours share it."""
    if polygon[a, 1] > polygon[b, 1]:
        a, b = b, a
    first = int(polygon[a, 3])
    end = int(polygon[b, 3])
    if first < end:
        x = polygon[a, 0]
        y = polygon[a, 1]
        w = polygon[a, 2]
        per_row = 1.0 / (polygon[b, 1] - y)
        x_step = (polygon[b, 0] - x) * per_row
        w_step = (polygon[b, 2] - w) * per_row
        for row in range(first, end):
            below = row + 0.5 - y
            row_x = x + below * x_step
            row_w = w + below * w_step
            span = np.uint64(row)
            if row_x < spans[span, 0]:
                spans[span, 0] = row_x
                spans[span, 1] = row_w
            if row_x > spans[span, 2]:
                spans[span, 2] = row_x
                spans[span, 3] = row_w


@compiled(inline="always")
def _fill_row(
    pixels: npt.NDArray, inverse_depth_1_m: npt.NDArray, spans: npt.NDArray, row: int, color: np.uint32
) -> None:
    on_row = np.uint64(row)
    x = spans[on_row, 0]
    w = spans[on_row, 1]
    end_x = spans[on_row, 2]
    end_w = spans[on_row, 3]
    first = _first_center_after(x, pixels.shape[1])
    end = _first_center_after(end_x, pixels.shape[1])
    if first < end:
        step = (end_w - w) / (end_x - x)
        first_w = np.float32(w + (first + 0.5 - x) * step)
        step_w = np.float32(step)
        for steps in range(end - first):
            column = np.uint64(first) + np.uint64(steps)
            column_w = first_w + np.float32(np.int32(steps)) * step_w
            seen_w = inverse_depth_1_m[on_row, column]
            is_nearer = column_w > seen_w * _COPLANAR
            inverse_depth_1_m[on_row, column] = column_w if is_nearer else seen_w
            pixels[on_row, column] = color if is_nearer else pixels[on_row, column]


@compiled(inline="always")
def _draw_polygon(
    pixels: npt.NDArray,
    inverse_depth_1_m: npt.NDArray,
    spans: npt.NDArray,
    polygon: npt.NDArray,
    n_corners: int,
    color: np.uint32,
) -> None:
    left = polygon[0, 0]
    right = polygon[0, 0]
    top = polygon[0, 3]
    bottom = polygon[0, 3]
    for corner in range(1, n_corners):
        x = polygon[corner, 0]
        row_below = polygon[corner, 3]
        left = x if x < left else left
        right = x if x > right else right
        top = row_below if row_below < top else top
        bottom = row_below if row_below > bottom else bottom
    if right > 0.0 and left < pixels.shape[1]:
        first_row = int(top)
        end_row = int(bottom)
        for row in range(first_row, end_row):
            spans[np.uint64(row), 0] = math.inf
            spans[np.uint64(row), 2] = -math.inf
        previous = n_corners - 1
        for corner in range(n_corners):
            _trace_edge(spans, polygon, previous, corner)
            previous = corner
        for row in range(first_row, end_row):
            _fill_row(pixels, inverse_depth_1_m, spans, row, color)


@compiled
def draw_mesh(canvas: Canvas, mesh: Mesh, camera: Camera) -> None:
    """Draw a mesh's quadrilaterals.

    They may be bent or crossed: every row is filled from the leftmost to the rightmost point.
    """
    _project_points(canvas, mesh, camera)
    pixels = canvas.pixels
    inverse_depth_1_m = canvas.inverse_depth_1_m
    spans = canvas.spans
    polygon = canvas.polygon
    seen = mesh.seen_m
    on_picture = mesh.on_picture
    first_row = mesh.first_row
    corners = mesh.corners
    colors = mesh.colors
    for quad in range(mesh.counts[1]):
        a = corners[quad, 0]
        b = corners[quad, 1]
        c = corners[quad, 2]
        d = corners[quad, 3]
        in_front = 0
        for corner in range(4):
            in_front += seen[2, corners[quad, corner]] >= NEAR_M
        n_corners = in_front
        if in_front == 4:
            row = first_row[a]
            if row == first_row[b] and row == first_row[c] and row == first_row[d]:
                continue
            for corner in range(4):
                point = corners[quad, corner]
                for axis in range(3):
                    polygon[corner, axis] = on_picture[axis, point]
                polygon[corner, 3] = first_row[point]
        elif in_front > 0:
            n_corners = _clip_quad(canvas, mesh, quad)
        if n_corners >= 3:
            _draw_polygon(pixels, inverse_depth_1_m, spans, polygon, n_corners, colors[quad])


@compiled(inline="always")
def _tint_sky(tints: npt.NDArray, columns: npt.NDArray, row_y: np.float32, step_y: np.float32) -> None:
    top = np.float32(SKY_LEVELS - 1)
    for column in range(tints.shape[0]):
        level = (row_y + columns[column] * step_y) * _SKY_LEVELS_PER_SLOPE
        level = level if level > 0.0 else np.float32(0.0)
        tints[column] = np.int32(level if level < top else top)


@compiled(inline="always")
def _tint_ground(
    tints: npt.NDArray,
    columns: npt.NDArray,
    ray: tuple[np.float32, np.float32, np.float32],
    step: tuple[np.float32, np.float32, np.float32],
    camera: tuple[np.float32, np.float32, np.float32],
) -> None:
    """Write a row's ground tiles and hazes as one number each, or -1 for sky.

    `ray` is the first pixel's world direction, `step` the change per pixel; `camera` is x, height above ground and z.
    """
    last_haze = np.float32(HAZE_LEVELS - 1)
    for column in range(tints.shape[0]):
        steps = columns[column]
        ray_y = ray[1] + steps * step[1]
        depth_m = camera[1] / (-ray_y if ray_y < -_LEAST_SLOPE else _LEAST_SLOPE)
        depth_m = depth_m if depth_m < _FARTHEST_GROUND_M else _FARTHEST_GROUND_M
        tile_x = np.int32(np.floor((camera[0] + depth_m * (ray[0] + steps * step[0])) * _TILES_PER_M))
        tile_z = np.int32(np.floor((camera[2] + depth_m * (ray[2] + steps * step[2])) * _TILES_PER_M))
        level = depth_m * _HAZE_LEVELS_PER_M
        haze = np.int32(level if level < last_haze else last_haze)
        tint = ((tile_x + tile_z) & np.int32(1)) * np.int32(HAZE_LEVELS) + haze
        tints[column] = tint if ray_y < 0.0 else _NO_TINT


@compiled(inline="always")
def _color_row(pixels: npt.NDArray, row: int, tints: npt.NDArray, colors: npt.NDArray) -> None:
    for column in range(tints.shape[0]):
        tint = tints[column]
        if tint >= 0:
            pixels[row, column] = colors[np.uint32(tint)]


@inner
def draw_background(canvas: Canvas, camera: Camera, palette: Colors, ground_height_m: float) -> None:
    """Fill the picture with sky and the stadium's ground, at infinite depth."""
    pixels = canvas.pixels
    columns = canvas.columns
    tints = canvas.tints
    sky = palette.sky
    ground = palette.ground.ravel()
    height_px, width_px = pixels.shape
    axes = camera.axes
    position = camera.position_m
    over_ground_m = max(position[1] - ground_height_m, _LEAST_HEIGHT_OVER_GROUND_M)
    seen_from = (np.float32(position[0]), np.float32(over_ground_m), np.float32(position[2]))
    per_px = 1.0 / canvas.focal_px
    # A ray's world direction changes by the same amount per pixel.
    step = (np.float32(axes[0, 0] * per_px), np.float32(axes[0, 1] * per_px), np.float32(axes[0, 2] * per_px))
    canvas.inverse_depth_1_m[:] = 0.0
    for row in range(height_px):
        across = 0.5 * (1 - width_px) * per_px
        below = (row + 0.5 - 0.5 * height_px) * per_px
        ray = (
            np.float32(axes[2, 0] + below * axes[1, 0] + across * axes[0, 0]),
            np.float32(axes[2, 1] + below * axes[1, 1] + across * axes[0, 1]),
            np.float32(axes[2, 2] + below * axes[1, 2] + across * axes[0, 2]),
        )
        last_y = ray[1] + np.float32(width_px - 1) * step[1]
        if ray[1] >= 0.0 or last_y >= 0.0:
            _tint_sky(tints, columns, ray[1], step[1])
            _color_row(pixels, row, tints, sky)
        if ray[1] < 0.0 or last_y < 0.0:
            _tint_ground(tints, columns, ray, step, seen_from)
            _color_row(pixels, row, tints, ground)
