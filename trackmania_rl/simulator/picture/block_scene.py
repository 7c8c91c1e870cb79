"""Block world picture: groups of coloured quadrilaterals, each with a near and a far version.

A group is a block. Groups are culled by the view, so the cost does not grow with the map. Corners go
counter-clockwise as seen from a quadrilateral's painted side; the other side is an underside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.picture.object_mesh import HIGHEST_SHADOW_M, add_shadow_on
from trackmania_rl.simulator.picture.palette import LIGHT_LEVELS, LIGHT_STEP, PLAIN_LIGHT, Paint, haze_at
from trackmania_rl.simulator.picture.rasterizer import Camera, Mesh
from trackmania_rl.simulator.tracks.world_file import MeshWorld

VIEW_M: Final = 300.0  # groups farther from the camera are not drawn
FAR_M_PER_PX: Final = 0.9
"""Distance per focal-length pixel from which far versions are drawn: lines are thinner than a pixel."""
MOST_DRAWN: Final = 1 << 15  # limit per picture; further groups beyond it are left out
NO_GATE: Final = -1
NEVER_PASSED: Final = np.iinfo(np.int64).max

_SUN = np.array((0.35, 0.85, 0.40)) / math.sqrt(0.35**2 + 0.85**2 + 0.40**2)
_LIGHT_LEVELS_PER_COSINE: Final = 0.45 / LIGHT_STEP
_FEET_M: Final = 0.5  # a car this deep in the ground still has a shadow
_UNDERSIDE: Final = int(Paint.UNDERSIDE)
_PASSED: Final = int(Paint.PASSED_CHECKPOINT)

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Quads:
    """Q quadrilaterals in one group between P points, marks first."""

    points_m: FloatArray  # (P, 3) world metres
    corners: npt.NDArray[np.int64]  # (Q, 4) rows of `points_m`, counter-clockwise from the painted side
    paint: npt.NDArray[np.int64]  # (Q,) values of `Paint`
    # `NO_GATE` or the checkpoint's number; gates have both sides painted
    gate: int = NO_GATE


class BlockScene(NamedTuple):
    """G quadrilateral groups; a type for numba."""

    points_m: FloatArray  # (3, P) world metres
    corners: npt.NDArray[np.int32]  # (Q, 4) columns of `points_m`
    paint: npt.NDArray[np.int64]  # (Q,) `Paint` values
    light: npt.NDArray[np.int64]  # (Q,) levels
    normal: FloatArray  # (Q, 3) unit vectors to the painted side; 0 without area
    gate: npt.NDArray[np.int64]  # (Q,) as in `Quads`
    # (G, 3) columns of `points_m`: a group's near version begin, far version begin, and end
    first_point: npt.NDArray[np.int64]
    first_quad: npt.NDArray[np.int64]  # (G, 3) likewise in `corners`
    center_m: FloatArray  # (G, 3) a bounding ball's middle
    radius_m: FloatArray  # (G,)
    ground_height_m: float


def make_block_scene(groups: list[tuple[Quads, Quads]], ground_height_m: float) -> BlockScene:
    """Prepare groups, each a near and a far version, for drawing; leave out empty groups."""
    groups = [(near, far) for near, far in groups if len(near.paint) > 0]
    both = [quads for group in groups for quads in group]
    points_before = np.cumsum([0, *(len(quads.points_m) for quads in both)])
    quads_before = np.cumsum([0, *(len(quads.paint) for quads in both)])
    points_m = np.concatenate([np.zeros((0, 3)), *(quads.points_m for quads in both)])
    none = np.zeros(0, dtype=np.int64)
    corners = np.concatenate([none.reshape(0, 4), *(quads.corners for quads in both)])
    return prepare_scene(
        points_m,
        corners + np.repeat(points_before[:-1], np.diff(quads_before))[:, None],
        np.concatenate([none, *(quads.paint for quads in both)]),
        np.repeat([quads.gate for quads in both], np.diff(quads_before)).astype(np.int64),
        _ranges(points_before),
        _ranges(quads_before),
        ground_height_m,
    )


def prepare_scene(
    points_m: FloatArray,
    corners: npt.NDArray[np.int64],
    paint: npt.NDArray[np.int64],
    gate: npt.NDArray[np.int64],
    first_point: npt.NDArray[np.int64],
    first_quad: npt.NDArray[np.int64],
    ground_height_m: float,
) -> BlockScene:
    """Prepare a scene's arrays, as in `MeshWorld`, for drawing."""
    a, b, c, d = points_m[corners.T]
    normal = np.cross(c - a, d - b)
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    normal = np.divide(normal, length, out=np.zeros_like(normal), where=length > 0.0)
    brighter = np.rint((normal @ _SUN - _SUN[1]) * _LIGHT_LEVELS_PER_COSINE).astype(np.int64)
    low_m = np.zeros((len(first_point), 3))
    high_m = np.zeros((len(first_point), 3))
    for group, (begin, end, _) in enumerate(first_point):
        low_m[group] = points_m[begin:end].min(axis=0)
        high_m[group] = points_m[begin:end].max(axis=0)
    return BlockScene(
        np.ascontiguousarray(points_m.T),
        corners.astype(np.int32),
        np.ascontiguousarray(paint),
        np.clip(PLAIN_LIGHT + brighter, 0, LIGHT_LEVELS - 1),
        normal,
        np.ascontiguousarray(gate),
        np.ascontiguousarray(first_point),
        np.ascontiguousarray(first_quad),
        0.5 * (low_m + high_m),
        0.5 * np.linalg.norm(high_m - low_m, axis=1),
        float(ground_height_m),
    )


def scene_of_world(world: MeshWorld) -> BlockScene:
    """Prepare a world for drawing."""
    return prepare_scene(
        world.scene_points_m,
        world.scene_corners,
        world.scene_paint,
        world.scene_gate,
        world.scene_first_point,
        world.scene_first_quad,
        float(world.grass_height_m[0]),
    )


def _ranges(before: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Convert all parts' begins and the end (2 G + 1,) to (G, 3), as in `BlockScene.first_point`."""
    return np.ascontiguousarray(np.stack((before[:-1:2], before[1::2], before[2::2]), axis=1))


def room_of(scene: BlockScene) -> tuple[int, int]:
    """Return the room for points and quadrilaterals that a scene's picture needs."""
    most_quads = min(len(scene.corners), MOST_DRAWN)
    return min(scene.points_m.shape[1], 4 * most_quads), most_quads


@compiled
def add_blocks(
    mesh: Mesh, scene: BlockScene, camera: Camera, focal_px: float, size_px: tuple[int, int], passed_checkpoints: int
) -> None:
    """Add the groups in view; checkpoints with a number below `passed_checkpoints` are drawn as passed."""
    position = camera.position_m
    axes = camera.axes
    center = scene.center_m
    radius = scene.radius_m
    # A ball is out of view if the middle is farther than the radius beyond a view side.
    height_per_m = 0.5 * size_px[0] / focal_px
    width_per_m = 0.5 * size_px[1] / focal_px
    far_m = FAR_M_PER_PX * focal_px
    across = math.sqrt(1.0 + width_per_m * width_per_m)
    down = math.sqrt(1.0 + height_per_m * height_per_m)
    for group in range(radius.shape[0]):
        x = center[group, 0] - position[0]
        y = center[group, 1] - position[1]
        z = center[group, 2] - position[2]
        distance_m = math.sqrt(x * x + y * y + z * z) - radius[group]
        ahead_m = x * axes[2, 0] + y * axes[2, 1] + z * axes[2, 2]
        if distance_m > VIEW_M or ahead_m < -radius[group]:
            continue
        right_m = abs(x * axes[0, 0] + y * axes[0, 1] + z * axes[0, 2])
        below_m = abs(x * axes[1, 0] + y * axes[1, 1] + z * axes[1, 2])
        if right_m - width_per_m * ahead_m > radius[group] * across:
            continue
        if below_m - height_per_m * ahead_m > radius[group] * down:
            continue
        _add_group(mesh, scene, camera, group, 1 if distance_m > far_m else 0, passed_checkpoints)


@inner
def _add_group(mesh: Mesh, scene: BlockScene, camera: Camera, group: int, detail: int, passed_checkpoints: int) -> None:
    points_m = mesh.points_m
    counts = mesh.counts
    corners = mesh.corners
    colors = mesh.colors
    paints = mesh.palette.paints
    first_point = scene.first_point[group, detail]
    end_point = scene.first_point[group, detail + 1]
    first_quad = scene.first_quad[group, detail]
    end_quad = scene.first_quad[group, detail + 1]
    n_points = end_point - first_point
    n_quads = end_quad - first_quad
    if counts[0] + n_points > points_m.shape[1] or counts[1] + n_quads > corners.shape[0]:
        return
    moved = counts[0] - first_point
    for axis in range(3):
        for point in range(first_point, end_point):
            points_m[axis, moved + point] = scene.points_m[axis, point]
    position = camera.position_m
    ahead = camera.axes[2]
    quad = counts[1]
    for number in range(first_quad, end_quad):
        corner = scene.corners[number, 0]
        normal = scene.normal[number]
        facing, depth_m = 0.0, 0.0
        for axis in range(3):
            away_m = scene.points_m[axis, corner] - position[axis]
            facing -= away_m * normal[axis]
            depth_m += away_m * ahead[axis]
        paint = scene.paint[number]
        light = scene.light[number]
        gate = scene.gate[number]
        if gate != NO_GATE:
            paint = _PASSED if gate < passed_checkpoints else paint
        elif facing < 0.0:
            paint, light = _UNDERSIDE, PLAIN_LIGHT
        for place in range(4):
            corners[quad, place] = moved + scene.corners[number, place]
        colors[quad] = paints[paint, light, haze_at(depth_m)]
        quad += 1
    counts[0] += n_points
    counts[1] = quad


@compiled
def add_block_shadow(mesh: Mesh, scene: BlockScene, position_m: FloatArray, rotation: FloatArray) -> None:
    """Add the car's shadow on the surface below it, in car axes; call this before the blocks are added."""
    point_m = np.empty(3)
    normal = np.empty(3)
    nearest_m = HIGHEST_SHADOW_M
    up_y = rotation[1, 1]
    if up_y > 0.1:
        over_m = (position_m[1] - scene.ground_height_m) / up_y
        if -_FEET_M < over_m < nearest_m:
            nearest_m = over_m
            normal[0], normal[1], normal[2] = 0.0, 1.0, 0.0
    for group in range(scene.radius_m.shape[0]):
        squares_m2 = 0.0
        above_m = 0.0
        radius_m = scene.radius_m[group]
        for axis in range(3):
            away_m = position_m[axis] - scene.center_m[group, axis]
            squares_m2 += away_m * away_m
            above_m += away_m * rotation[axis, 1]
        if squares_m2 - above_m * above_m > radius_m * radius_m or not -radius_m < above_m < radius_m + nearest_m:
            continue  # the line straight below the car misses the group's ball, or the ball is too far
        for number in range(scene.first_quad[group, 0], scene.first_quad[group, 1]):
            over_m = _over_quad_m(scene, number, position_m, rotation)
            if -_FEET_M < over_m < nearest_m:
                nearest_m = over_m
                for axis in range(3):
                    normal[axis] = scene.normal[number, axis]
    if nearest_m < HIGHEST_SHADOW_M:
        for axis in range(3):
            point_m[axis] = position_m[axis] - nearest_m * rotation[axis, 1]
        add_shadow_on(mesh, point_m, normal, position_m, rotation)


@inner
def _over_quad_m(scene: BlockScene, number: int, position_m: FloatArray, rotation: FloatArray) -> float:
    """Return the car's height above a quadrilateral, along the car's up; infinite if not above the painted side."""
    points_m = scene.points_m
    corners = scene.corners
    normal = scene.normal[number]
    against, over_m = 0.0, 0.0
    for axis in range(3):
        against += normal[axis] * rotation[axis, 1]
        over_m += normal[axis] * (position_m[axis] - points_m[axis, corners[number, 0]])
    if against < 0.1:
        return math.inf
    over_m /= against
    x = position_m[0] - over_m * rotation[0, 1]
    y = position_m[1] - over_m * rotation[1, 1]
    z = position_m[2] - over_m * rotation[2, 1]
    for place in range(4):
        a = corners[number, place]
        b = corners[number, (place + 1) & 3]
        edge_x = points_m[0, b] - points_m[0, a]
        edge_y = points_m[1, b] - points_m[1, a]
        edge_z = points_m[2, b] - points_m[2, a]
        to_x = x - points_m[0, a]
        to_y = y - points_m[1, a]
        to_z = z - points_m[2, a]
        inside = (
            normal[0] * (edge_y * to_z - edge_z * to_y)
            + normal[1] * (edge_z * to_x - edge_x * to_z)
            + normal[2] * (edge_x * to_y - edge_y * to_x)
        )
        if inside < -1e-6:
            return math.inf
    return over_m
