"""Car collision with a mesh: wheels and body, all ellipsoids, against the faces near the car.

A part touches a face if its deepest point is over it. It also touches a face if it overlaps the face's edge, unless
that edge is in another touched face's plane (a seam). It is then pushed along the face's normal, too. Each wheel and
body ellipsoid counts only the deepest contacts with ground and wall. Vectors are in car axes unless noted.

Most functions are inlined: a call with a mesh counts array references, which costs more than the geometry.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.physics.contacts import (
    begin_pass,
    dot,
    end_pass,
    extent,
    set_vector,
    touch_ground,
    touch_wall,
    touch_with_body,
    touching_arm,
)
from trackmania_rl.simulator.physics.rigid_body import Vector, to_car, to_world
from trackmania_rl.simulator.physics.vehicle_state import CarRecord, ParametersRecord
from trackmania_rl.simulator.tracks.surface_mesh import (
    CORNERS,
    MOST_NEAR,
    PART_M,
    REACH_M,
    SurfaceMesh,
    is_inside,
    is_over_grass,
    members_near,
)
from trackmania_rl.simulator.tracks.world import Surface

SLACK_M: Final = 1.0
"""Faces are gathered this far beyond the car's reach, and again when it has moved that far."""
SHELL_M: Final = 0.25
"""A part whose centre is less than this behind a face is pushed back through it; a deeper one missed it."""
SEAM_M: Final = 0.02  # an edge at most this far out of a touched face is a seam
PARALLEL: Final = 1.0 - 1e-9
"""Cosine between planes that part less than 0.1 mm within a car's reach."""
LEAST_BODY_UP: Final = 0.7
"""Vertical part, in car axes, of ground normals for the body; other faces are walls."""

_GRASS: Final = int(Surface.GRASS)
_TURBO = int(Surface.TURBO)
_TURBO2 = int(Surface.TURBO2)
_ROULETTE = int(Surface.TURBO_ROULETTE)
_NONE: Final = -1
_ON_GRASS: Final = -2  # instead of a face number

# Ghosts in loops are followed best if contacts are taken by their places along the world's x, the largest first. So the
# order depends on which is further apart along it, left and right or front and rear, and on the signs.
WHEEL_ORDERS: Final = np.array(
    [
        [[[2, 3, 1, 0], [3, 2, 0, 1]], [[1, 0, 2, 3], [0, 1, 3, 2]]],
        [[[2, 1, 3, 0], [3, 0, 2, 1]], [[1, 2, 0, 3], [0, 3, 1, 2]]],
    ]
)

Faces = npt.NDArray[np.void]  # (T,) of FACE_DTYPE


class _Contact(NamedTuple):
    """Deepest contact so far."""

    depth_m: float  # 0 for none
    normal: Vector  # car axes
    face: int


@compiled(inline="always")
def collide_with_mesh(car: CarRecord, parameters: ParametersRecord, mesh: SurfaceMesh) -> None:
    """Run one collision pass."""
    position = car.position_m
    near = mesh.near[0]
    faces = mesh.records
    begin_pass(car)
    _gather(mesh, near, position)
    _see_from_car(faces, near, car, parameters)
    over_grass = position[1] - mesh.grass_height_m < REACH_M and is_over_grass(mesh, position[0], position[2])
    floor_m = mesh.grass_height_m if over_grass else -np.inf
    points = parameters.wheel_points_m
    across = car.rotation[0, 0]
    along = car.rotation[0, 2]
    is_by_side = abs(across) * (points[0, 0] - points[1, 0]) > abs(along) * (points[0, 2] - points[3, 2])
    order = WHEEL_ORDERS[int(is_by_side), int(along > 0.0), int(across > 0.0)]
    for wheel in order:
        _collide_wheel(car, parameters, faces, near, floor_m, wheel)
    if near.n_at_body > 0 or over_grass:
        for part in range(parameters.body_centers_m.shape[0]):
            _collide_body_part(car, parameters, faces, near, floor_m, part)
    end_pass(car, parameters)


@compiled(inline="always")
def _gather(mesh: SurfaceMesh, near: Any, position: npt.NDArray[np.float64]) -> None:
    """Write the faces that a car may touch, unless the previous ones are still valid."""
    at = near.gathered_at_m
    moved_m2 = 0.0
    is_same = True
    for axis in range(3):
        moved_m2 += (position[axis] - at[axis]) ** 2
        if math.floor(position[axis] / PART_M) != math.floor(at[axis] / PART_M):
            is_same = False
            break
    if is_same and moved_m2 < SLACK_M * SLACK_M:
        return
    reach_m = REACH_M + SLACK_M
    faces = mesh.records
    members = mesh.members
    numbers = near.numbers
    first, end = members_near(mesh, position[0], position[1], position[2])
    count = 0
    for place in range(first, end):
        face = faces[members[place]]
        low = face.low_m
        high = face.high_m
        if not (
            low[0] - reach_m < position[0] < high[0] + reach_m
            and low[1] - reach_m < position[1] < high[1] + reach_m
            and low[2] - reach_m < position[2] < high[2] + reach_m
        ):
            continue
        apart_m = 0.0
        corner = face.corners_m
        normal = face.normal
        for axis in range(3):
            apart_m += (position[axis] - corner[0, axis]) * normal[axis]
        if abs(apart_m) < reach_m and count < MOST_NEAR:
            numbers[count] = members[place]
            count += 1
    near.n_gathered = count
    for axis in range(3):
        at[axis] = position[axis]


@compiled(inline="always")
def _see_from_car(faces: Faces, near: Any, car: CarRecord, parameters: ParametersRecord) -> None:
    """Write which gathered faces the car may touch now, in car axes."""
    position = car.position_m
    normals = near.normals
    middle_m, half_m = _box_of_body(parameters)
    count = n_at_body = 0
    for place in range(near.n_gathered):
        number = near.numbers[place]
        face = faces[number]
        corner = face.corners_m
        outward = face.normal
        low = face.low_m
        high = face.high_m
        height_m, is_near = 0.0, True
        for axis in range(3):
            height_m += (position[axis] - corner[0, axis]) * outward[axis]
            is_near &= low[axis] - REACH_M < position[axis] < high[axis] + REACH_M
        if is_near and abs(height_m) < REACH_M:
            normal = to_car(car, outward[0], outward[1], outward[2])
            near.seen[count] = number
            near.heights_m[count] = height_m
            set_vector(normals[count], normal)
            reach_m = half_m[0] * abs(normal[0]) + half_m[1] * abs(normal[1]) + half_m[2] * abs(normal[2])
            if height_m + dot(middle_m, normal) < reach_m:
                near.at_body[n_at_body] = count
                n_at_body += 1
            count += 1
    near.n_seen, near.n_at_body = count, n_at_body


@inner
def _box_of_body(parameters: ParametersRecord) -> tuple[Vector, Vector]:
    """Return the body bounding box's middle and half sides, in car axes."""
    x = _extent_of_body(parameters, 0)
    y = _extent_of_body(parameters, 1)
    z = _extent_of_body(parameters, 2)
    middle = (0.5 * (x[0] + x[1]), 0.5 * (y[0] + y[1]), 0.5 * (z[0] + z[1]))
    half = (0.5 * (x[1] - x[0]), 0.5 * (y[1] - y[0]), 0.5 * (z[1] - z[0]))
    return middle, half


@inner
def _extent_of_body(parameters: ParametersRecord, axis: int) -> tuple[float, float]:
    low = np.inf
    high = -np.inf
    for part in range(parameters.body_centers_m.shape[0]):
        center_m = parameters.body_centers_m[part, axis]
        radius_m = parameters.body_radii_m[part, axis]
        low = min(low, center_m - radius_m)
        high = max(high, center_m + radius_m)
    return low, high


@compiled(inline="always")
def _collide_wheel(
    car: CarRecord, parameters: ParametersRecord, faces: Faces, near: Any, floor_m: float, wheel: int
) -> None:
    point = parameters.wheel_points_m[wheel]
    radii_m = parameters.wheel_radii_m
    center = (point[0], point[1] - car.wheel_damper_absorb_m[wheel], point[2])
    car.wheel_has_ground_contact[wheel] = 0
    car.wheel_material[wheel] = 0
    steepest = parameters.side_contact_min_normal_x
    ground, wall = _contacts(car, faces, near, floor_m, center, radii_m, steepest, 0, False)
    if ground.depth_m > 0.0:
        normal = ground.normal
        arm = touching_arm(parameters, center, radii_m, normal, extent(radii_m, normal))
        touch_ground(car, parameters, wheel, center, arm, normal, ground.depth_m)
        car.wheel_has_ground_contact[wheel] = 1
        set_vector(car.wheel_contact_normal[wheel], normal)
        if ground.face == _ON_GRASS:
            car.wheel_material[wheel] = _GRASS
        else:
            surface = faces[ground.face].surface
            car.wheel_material[wheel] = surface
            if surface in (_TURBO, _TURBO2, _ROULETTE):
                car.surface_index = ground.face  # the face whose pad pushes
    if wall.depth_m > 0.0:
        arm = touching_arm(parameters, center, radii_m, wall.normal, extent(radii_m, wall.normal))
        touch_wall(car, parameters, arm, wall.normal, wall.depth_m)


@compiled(inline="always")
def _collide_body_part(
    car: CarRecord, parameters: ParametersRecord, faces: Faces, near: Any, floor_m: float, part: int
) -> None:
    offset = parameters.body_centers_m[part]
    radii_m = parameters.body_radii_m[part]
    center = (offset[0], offset[1], offset[2])
    ground, wall = _contacts(car, faces, near, floor_m, center, radii_m, LEAST_BODY_UP, 1, True)
    if ground.depth_m > 0.0:
        touch_with_body(car, parameters, center, radii_m, ground.normal, ground.depth_m)
    if wall.depth_m > 0.0:
        touch_with_body(car, parameters, center, radii_m, wall.normal, wall.depth_m)


@compiled(inline="always")
def _contacts(
    car: CarRecord,
    faces: Faces,
    near: Any,
    floor_m: float,
    center: Vector,
    radii_m: npt.NDArray[np.float64],
    limit: float,
    axis: int,
    of_body: bool,
) -> tuple[_Contact, _Contact]:
    """Return an ellipsoid's deepest contacts with ground and wall.

    `limit`, on the normal's component along the car's `axis`, separates them: the body's ground is above it (upwards),
    a wheel's below it (sideways). `floor_m` is the grass height, -inf for none.
    """
    normals = near.normals
    edges = near.edges
    ground = _Contact(0.0, (0.0, 1.0, 0.0), _NONE)
    wall = _Contact(0.0, (0.0, 1.0, 0.0), _NONE)
    x, y, z = to_world(car, center[0], center[1], center[2])
    x = car.position_m[0] + x
    y = car.position_m[1] + y
    z = car.position_m[2] + z
    reach_m = max(radii_m[0], max(radii_m[1], radii_m[2]))
    n_edges = 0
    for index in range(near.n_at_body if of_body else near.n_seen):
        place = near.at_body[index] if of_body else index
        normal = (normals[place, 0], normals[place, 1], normals[place, 2])
        height_m = near.heights_m[place] + dot(center, normal)
        if height_m < -SHELL_M or height_m >= reach_m:
            continue
        extent_m = extent(radii_m, normal)
        if height_m >= extent_m:
            continue
        number = near.seen[place]
        face = faces[number]
        if not _is_within_reach(face, x, y, z, reach_m):
            continue
        # The plane's deepest point within the ellipsoid, in the ellipsoid's metric.
        share = height_m / (extent_m * extent_m)
        down_x, down_y, down_z = to_world(
            car,
            share * radii_m[0] * radii_m[0] * normal[0],
            share * radii_m[1] * radii_m[1] * normal[1],
            share * radii_m[2] * radii_m[2] * normal[2],
        )
        if not is_inside(face, x - down_x, y - down_y, z - down_z):
            if height_m > 0.0:
                edges[n_edges] = place
                n_edges += 1
            continue
        contact = _Contact(extent_m - height_m, normal, number)
        ground, wall = _deepest(ground, wall, contact, limit, axis, of_body)
    if floor_m > -np.inf:
        ground = _deeper_grass(car, ground, center, radii_m, floor_m)
    for index in range(n_edges):
        place = edges[index]
        normal = (normals[place, 0], normals[place, 1], normals[place, 2])
        if _is_level_with(ground, normal, near.heights_m[place] + dot(center, normal), radii_m):
            continue
        number = near.seen[place]
        face = faces[number]
        contact, point = _edge_contact(car, face.corners_m, face.normal, number, x, y, z, radii_m)
        if contact.depth_m <= 0.0 or _is_seam(ground, point, radii_m) or _is_seam(wall, point, radii_m):
            continue
        ground, wall = _deepest(ground, wall, contact, limit, axis, of_body)
    return ground, wall


@compiled(inline="always")
def _is_within_reach(face: Any, x: float, y: float, z: float, reach_m: float) -> bool:
    low = face.low_m
    high = face.high_m
    if x < low[0] - reach_m or x > high[0] + reach_m or z < low[2] - reach_m or z > high[2] + reach_m:
        return False
    return bool(low[1] - reach_m <= y <= high[1] + reach_m)


@compiled(inline="always")
def _deepest(
    ground: _Contact, wall: _Contact, contact: _Contact, limit: float, axis: int, of_body: bool
) -> tuple[_Contact, _Contact]:
    along = contact.normal[axis]
    is_ground = along > limit if of_body else abs(along) < limit
    if is_ground:
        return (contact if contact.depth_m > ground.depth_m else ground), wall
    return ground, (contact if contact.depth_m > wall.depth_m else wall)


@inner
def _is_level_with(contact: _Contact, normal: Vector, height_m: float, radii_m: npt.NDArray[np.float64]) -> bool:
    """Return whether a face is in a contact's plane, so the edges are seams."""
    if contact.depth_m <= 0.0 or dot(normal, contact.normal) < PARALLEL:
        return False
    return abs(extent(radii_m, contact.normal) - contact.depth_m - height_m) < 0.5 * SEAM_M


@inner
def _is_seam(contact: _Contact, point: Vector, radii_m: npt.NDArray[np.float64]) -> bool:
    """Return whether a point, from the ellipsoid's centre, is within `SEAM_M` of a contact's plane or behind it."""
    if contact.depth_m <= 0.0:
        return False
    normal = contact.normal
    height_m = extent(radii_m, normal) - contact.depth_m  # from the plane up to the centre
    return point[0] * normal[0] + point[1] * normal[1] + point[2] * normal[2] + height_m < SEAM_M


@inner
def _deeper_grass(
    car: CarRecord, ground: _Contact, center: Vector, radii_m: npt.NDArray[np.float64], grass_height_m: float
) -> _Contact:
    _, above_m, _ = to_world(car, center[0], center[1], center[2])
    height_m = car.position_m[1] + above_m - grass_height_m
    normal = to_car(car, 0.0, 1.0, 0.0)
    depth_m = extent(radii_m, normal) - height_m
    if height_m > -SHELL_M and depth_m > ground.depth_m:
        return _Contact(depth_m, normal, _ON_GRASS)
    return ground


@inner
def _edge_contact(
    car: CarRecord,
    corner: Any,
    outward: Any,
    number: int,
    x: float,
    y: float,
    z: float,
    radii_m: npt.NDArray[np.float64],
) -> tuple[_Contact, Vector]:
    """Return an ellipsoid's contact with the nearest point on a face's edges, and that point from the centre.

    In axes that make the ellipsoid a unit ball, the nearest point is the contact point.
    """
    nearest = 1.0
    best = (0.0, 0.0, 0.0)
    begin = _in_ball(car, corner, CORNERS - 1, x, y, z, radii_m)
    for at in range(CORNERS):
        end = _in_ball(car, corner, at, x, y, z, radii_m)
        edge_x = end[0] - begin[0]
        edge_y = end[1] - begin[1]
        edge_z = end[2] - begin[2]
        length = edge_x * edge_x + edge_y * edge_y + edge_z * edge_z
        share = -(begin[0] * edge_x + begin[1] * edge_y + begin[2] * edge_z) / max(length, 1e-12)
        share = min(max(share, 0.0), 1.0)
        point_x = begin[0] + share * edge_x
        point_y = begin[1] + share * edge_y
        point_z = begin[2] + share * edge_z
        apart = point_x * point_x + point_y * point_y + point_z * point_z
        if apart < nearest:
            nearest = apart
            best = (point_x, point_y, point_z)
        begin = end
    if nearest >= 1.0 or nearest < 1e-12:
        return _Contact(0.0, (0.0, 1.0, 0.0), number), best
    normal = to_car(car, outward[0], outward[1], outward[2])
    height_m = (x - corner[0, 0]) * outward[0] + (y - corner[0, 1]) * outward[1] + (z - corner[0, 2]) * outward[2]
    point = (best[0] * radii_m[0], best[1] * radii_m[1], best[2] * radii_m[2])
    return _Contact(extent(radii_m, normal) - height_m, normal, number), point


@inner
def _in_ball(
    car: CarRecord, corner: Any, number: int, x: float, y: float, z: float, radii_m: npt.NDArray[np.float64]
) -> Vector:
    """Return a face's corner from an ellipsoid's centre, in units of the radii."""
    own = to_car(car, corner[number, 0] - x, corner[number, 1] - y, corner[number, 2] - z)
    return own[0] / radii_m[0], own[1] / radii_m[1], own[2] / radii_m[2]
