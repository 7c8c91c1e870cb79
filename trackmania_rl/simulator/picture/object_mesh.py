"""Gates, car and the car's shadow as meshes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.picture.palette import PLAIN_LIGHT, Paint, color_at
from trackmania_rl.simulator.picture.rasterizer import Camera, Mesh, add_point, add_quad, depth_in_view
from trackmania_rl.simulator.picture.road_mesh import (
    GATE_LINE_SECTIONS,
    PLACES,
    Scenery,
    add_mark,
    add_place,
    add_section,
    visible_sections,
)
from trackmania_rl.simulator.tracks.world import Ribbon

_POST_WIDTH_M = 0.9
_BANNER_BOTTOM_M = 5.0
_BANNER_TOP_M = 7.4
_FINISH_COLUMNS = 12
_FINISH_POST_ROWS = 4
MOST_GATE_QUADS = 4 * _FINISH_COLUMNS + 2 * _FINISH_POST_ROWS
"""A finish's quadrilaterals: two check rows above, two on the road, and posts."""
MOST_GATE_POINTS = 4 * MOST_GATE_QUADS + 3 * PLACES

_CAR_BOXES_M = np.array(
    [
        [-0.90, 0.90, 0.20, 0.62, -1.90, 1.10],  # body
        [-0.55, 0.55, 0.20, 0.50, 1.10, 2.20],  # nose
        [-0.95, 0.95, 0.12, 0.26, 2.00, 2.35],  # front wing
        [-0.95, 0.95, 0.95, 1.05, -2.05, -1.65],  # rear wing
        [-0.50, 0.50, 0.62, 1.02, -1.00, 0.30],  # canopy
        [-0.80, -0.35, 0.42, 0.56, -1.93, -1.88],  # tail lights
        [0.35, 0.80, 0.42, 0.56, -1.93, -1.88],
        [0.68, 1.04, 0.00, 0.73, 1.42, 2.14],  # wheels
        [-1.04, -0.68, 0.00, 0.73, 1.42, 2.14],
        [0.70, 1.07, 0.00, 0.73, -1.57, -0.84],
        [-1.07, -0.70, 0.00, 0.73, -1.57, -0.84],
    ]
)
"""(11, 6) boxes in car axes: right, left, bottom, top, rear and front side. Wheels are at the model's places."""
_BODY_PAINTS = (Paint.CAR_TOP, Paint.CAR_SIDE, Paint.CAR_REAR)
_CAR_PAINTS = np.array(
    [_BODY_PAINTS] * 4
    + [(Paint.CAR_GLASS,) * 3]
    + [(Paint.TAIL_LIGHT,) * 3] * 2
    + [(Paint.TIRE_TOP, Paint.TIRE, Paint.TIRE)] * 4,
    dtype=np.int64,
)
"""(11, 3) paints for top, sides and ends."""
_SHADOW_HALF_WIDTH_M = 1.15
_SHADOW_REAR_M = -2.1
_SHADOW_FRONT_M = 2.4
_SHADOW_OVER_ROAD_M = 0.12  # keeps the shadow above an uneven road
HIGHEST_SHADOW_M = 30.0
MOST_CAR_POINTS = 8 * len(_CAR_BOXES_M) + 4
MOST_CAR_QUADS = 4 * len(_CAR_BOXES_M) + 1


@inner
def _add_upright(
    mesh: Mesh,
    ribbon: Ribbon,
    section: int,
    right_m: float,
    left_m: float,
    bottom_m: float,
    top_m: float,
    color: np.uint32,
) -> None:
    a = add_place(mesh, ribbon, section, right_m, bottom_m)
    b = add_place(mesh, ribbon, section, left_m, bottom_m)
    c = add_place(mesh, ribbon, section, left_m, top_m)
    d = add_place(mesh, ribbon, section, right_m, top_m)
    add_quad(mesh, a, b, c, d, color)


@inner
def _add_checkpoint(mesh: Mesh, scenery: Scenery, section: int, is_passed: bool, depth_m: float) -> None:
    ribbon = scenery.ribbon
    places_m = scenery.places_m
    half_m = ribbon.half_width_m[section]
    frame = color_at(mesh.palette, Paint.PASSED_CHECKPOINT if is_passed else Paint.CHECKPOINT, PLAIN_LIGHT, depth_m)
    stripe = color_at(
        mesh.palette, Paint.PASSED_CHECKPOINT if is_passed else Paint.CHECKPOINT_STRIPE, PLAIN_LIGHT, depth_m
    )
    margin_m = (_BANNER_TOP_M - _BANNER_BOTTOM_M) / 3.0
    outer_m = half_m + _POST_WIDTH_M
    _add_upright(mesh, ribbon, section, -half_m, half_m, _BANNER_BOTTOM_M + margin_m, _BANNER_TOP_M - margin_m, stripe)
    _add_upright(mesh, ribbon, section, -half_m, half_m, _BANNER_BOTTOM_M, _BANNER_TOP_M, frame)
    _add_upright(mesh, ribbon, section, -outer_m, -half_m, 0.0, _BANNER_TOP_M, frame)
    _add_upright(mesh, ribbon, section, half_m, outer_m, 0.0, _BANNER_TOP_M, frame)
    near = add_section(mesh.points_m, mesh.counts, places_m, section)
    far = add_section(
        mesh.points_m, mesh.counts, places_m, min(section + GATE_LINE_SECTIONS, ribbon.station_m.shape[0] - 1)
    )
    if ribbon.has_road[section]:
        add_mark(mesh, near, far, 0.0, 1.0, 0.0, 1.0, stripe)


@inner
def _add_finish(mesh: Mesh, scenery: Scenery, section: int, depth_m: float) -> None:
    ribbon = scenery.ribbon
    places_m = scenery.places_m
    light = color_at(mesh.palette, Paint.FINISH_LIGHT, PLAIN_LIGHT, depth_m)
    dark = color_at(mesh.palette, Paint.FINISH_DARK, PLAIN_LIGHT, depth_m)
    half_m = ribbon.half_width_m[section]
    last = ribbon.station_m.shape[0] - 1
    near = add_section(mesh.points_m, mesh.counts, places_m, section)
    middle = add_section(mesh.points_m, mesh.counts, places_m, min(section + GATE_LINE_SECTIONS // 2, last))
    far = add_section(mesh.points_m, mesh.counts, places_m, min(section + GATE_LINE_SECTIONS, last))
    banner_middle_m = 0.5 * (_BANNER_BOTTOM_M + _BANNER_TOP_M)
    for column in range(_FINISH_COLUMNS):
        right = column / _FINISH_COLUMNS
        left = (column + 1) / _FINISH_COLUMNS
        right_m = (2.0 * right - 1.0) * half_m
        left_m = (2.0 * left - 1.0) * half_m
        first, second = (light, dark) if column % 2 == 0 else (dark, light)
        _add_upright(mesh, ribbon, section, right_m, left_m, _BANNER_BOTTOM_M, banner_middle_m, first)
        _add_upright(mesh, ribbon, section, right_m, left_m, banner_middle_m, _BANNER_TOP_M, second)
        if ribbon.has_road[section]:
            add_mark(mesh, near, middle, right, left, right, left, first)
            add_mark(mesh, middle, far, right, left, right, left, second)
    row_m = _BANNER_TOP_M / _FINISH_POST_ROWS
    outer_m = half_m + _POST_WIDTH_M
    for row in range(_FINISH_POST_ROWS):
        color = light if row % 2 == 0 else dark
        _add_upright(mesh, ribbon, section, -outer_m, -half_m, row * row_m, (row + 1) * row_m, color)
        _add_upright(mesh, ribbon, section, half_m, outer_m, row * row_m, (row + 1) * row_m, color)


@compiled
def add_gates(mesh: Mesh, scenery: Scenery, camera: Camera, car_section: int, passed_checkpoints: int) -> None:
    """Add the gates in view; call this before the road is added."""
    ribbon = scenery.ribbon
    first, last = visible_sections(ribbon, car_section, camera)
    finish = scenery.gate_section.shape[0] - 1
    for gate in range(finish + 1):
        section = scenery.gate_section[gate]
        if first <= section <= last:
            depth_m = depth_in_view(camera, ribbon.center_m, section)
            if gate == finish:
                _add_finish(mesh, scenery, section, depth_m)
            else:
                _add_checkpoint(mesh, scenery, section, gate < passed_checkpoints, depth_m)


@inner
def _add_car_point(
    mesh: Mesh, position_m: npt.NDArray, rotation: npt.NDArray, left_m: float, up_m: float, forward_m: float
) -> int:
    return add_point(
        mesh,
        position_m[0] + left_m * rotation[0, 0] + up_m * rotation[0, 1] + forward_m * rotation[0, 2],
        position_m[1] + left_m * rotation[1, 0] + up_m * rotation[1, 1] + forward_m * rotation[1, 2],
        position_m[2] + left_m * rotation[2, 0] + up_m * rotation[2, 1] + forward_m * rotation[2, 2],
    )


@compiled
def add_car(mesh: Mesh, position_m: npt.NDArray, rotation: npt.NDArray) -> None:
    """Add a car's visible parts at a world position (3,) with a car-to-world matrix (3, 3)."""
    for box in range(_CAR_BOXES_M.shape[0]):
        first = mesh.counts[0]
        # A corner's number is 1 for left + 2 for top + 4 for front.
        for corner in range(8):
            left_m = _CAR_BOXES_M[box, corner & 1]
            up_m = _CAR_BOXES_M[box, 2 + (corner >> 1 & 1)]
            forward_m = _CAR_BOXES_M[box, 4 + (corner >> 2)]
            _add_car_point(mesh, position_m, rotation, left_m, up_m, forward_m)
        side = color_at(mesh.palette, _CAR_PAINTS[box, 1], PLAIN_LIGHT, 0.0)
        add_quad(
            mesh,
            first + 2,
            first + 3,
            first + 7,
            first + 6,
            color_at(mesh.palette, _CAR_PAINTS[box, 0], PLAIN_LIGHT, 0.0),
        )
        add_quad(
            mesh, first, first + 1, first + 3, first + 2, color_at(mesh.palette, _CAR_PAINTS[box, 2], PLAIN_LIGHT, 0.0)
        )
        add_quad(mesh, first, first + 2, first + 6, first + 4, side)
        add_quad(mesh, first + 1, first + 3, first + 7, first + 5, side)


@compiled
def add_shadow(mesh: Mesh, ribbon: Ribbon, car_section: int, position_m: npt.NDArray, rotation: npt.NDArray) -> None:
    """Add the car's shadow on the road; call this before the road is added."""
    center = ribbon.center_m
    left = ribbon.left
    up = ribbon.up
    height_m, lateral_m = 0.0, 0.0
    for axis in range(3):
        height_m += (position_m[axis] - center[car_section, axis]) * up[car_section, axis]
        lateral_m += (position_m[axis] - center[car_section, axis]) * left[car_section, axis]
    is_over_road = ribbon.has_road[car_section] and abs(lateral_m) < ribbon.half_width_m[car_section]
    if not is_over_road or not 0.0 <= height_m <= HIGHEST_SHADOW_M:
        return
    add_shadow_on(mesh, center[car_section], up[car_section], position_m, rotation)


@inner
def add_shadow_on(
    mesh: Mesh, point_m: npt.NDArray, normal: npt.NDArray, position_m: npt.NDArray, rotation: npt.NDArray
) -> None:
    """Add the car's shadow on the plane through a point (3,) with a normal (3,)."""
    first = mesh.counts[0]
    for corner in range(4):
        left_m = _SHADOW_HALF_WIDTH_M if corner == 1 or corner == 2 else -_SHADOW_HALF_WIDTH_M
        forward_m = _SHADOW_FRONT_M if corner >= 2 else _SHADOW_REAR_M
        row = _add_car_point(mesh, position_m, rotation, left_m, 0.0, forward_m)
        over_shadow_m = -_SHADOW_OVER_ROAD_M
        for axis in range(3):
            over_shadow_m += (mesh.points_m[axis, row] - point_m[axis]) * normal[axis]
        for axis in range(3):
            mesh.points_m[axis, row] -= over_shadow_m * normal[axis]
    add_quad(mesh, first, first + 1, first + 2, first + 3, color_at(mesh.palette, Paint.SHADOW, PLAIN_LIGHT, 0.0))
