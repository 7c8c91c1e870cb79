"""Car collision with either kind of world, and with a ribbon's ground and walls.

A collision pass follows every substep: it sets the next one's contact flags, reduces speed and moves the body out.
Wheels and body are ellipsoids; a ribbon's ground and walls are planes near the touching part. Vectors are in car axes
unless noted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import overload

from trackmania_rl.simulator.compiled import inner
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
from trackmania_rl.simulator.physics.mesh_collision import collide_with_mesh
from trackmania_rl.simulator.physics.rigid_body import to_car, to_world
from trackmania_rl.simulator.physics.vehicle_state import WHEELS, CarRecord, ParametersRecord
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh
from trackmania_rl.simulator.tracks.world import (
    WALL_HEIGHT_M,
    WALL_THICKNESS_M,
    Place,
    Road,
    ground_at,
    has_wall,
    locate,
)

World = Road | SurfaceMesh
"""World that cars drive on. Both have `records`, which a car's `surface_index` indexes."""


def collide(car: CarRecord, parameters: ParametersRecord, world: World) -> None:
    """Run one collision pass; the world's kind is chosen when the caller is compiled."""
    raise NotImplementedError("only compiled functions call this")


@overload(collide, strict=False)
def _compiled_collide(car: types.Type, parameters: types.Type, world: types.Type) -> Any:
    if getattr(world, "instance_class", None) is SurfaceMesh:
        return lambda car, parameters, world: collide_with_mesh(car, parameters, world)
    return lambda car, parameters, world: _collide_with_ribbon(car, parameters, world.records)


@inner
def _collide_with_ribbon(car: CarRecord, parameters: ParametersRecord, sections: npt.NDArray[np.void]) -> None:
    position = car.position_m
    place = locate(sections, car.surface_index, position[0], position[1], position[2])
    car.surface_index = place.section
    car.station_m = place.station_m
    begin_pass(car)
    for wheel in range(WHEELS):
        _collide_wheel(car, parameters, sections, wheel)
    _collide_body(car, parameters, sections, place)
    end_pass(car, parameters)


@inner
def _collide_wheel(car: CarRecord, parameters: ParametersRecord, sections: npt.NDArray[np.void], wheel: int) -> None:
    point = parameters.wheel_points_m[wheel]
    radii_m = parameters.wheel_radii_m
    center = (point[0], point[1] - car.wheel_damper_absorb_m[wheel], point[2])
    x, y, z = to_world(car, center[0], center[1], center[2])
    x = car.position_m[0] + x
    y = car.position_m[1] + y
    z = car.position_m[2] + z
    place = locate(sections, car.surface_index, x, y, z)
    car.wheel_has_ground_contact[wheel] = 0
    car.wheel_material[wheel] = 0
    ground = ground_at(sections, place)
    # A wheel whose centre is below the surface passes underneath.
    if ground.exists and ground.height_m > 0.0:
        normal = to_car(car, ground.normal[0], ground.normal[1], ground.normal[2])
        extent_m = extent(radii_m, normal)
        if extent_m > ground.height_m:
            arm = touching_arm(parameters, center, radii_m, normal, extent_m)
            touch_ground(car, parameters, wheel, center, arm, normal, extent_m - ground.height_m)
            if abs(normal[0]) < parameters.side_contact_min_normal_x:
                car.wheel_has_ground_contact[wheel] = 1
                car.wheel_material[wheel] = ground.material
                set_vector(car.wheel_contact_normal[wheel], normal)
    if has_wall(sections, place) and abs(place.height_m) < WALL_HEIGHT_M:
        outside_m = abs(place.lateral_m) - place.half_width_m
        if outside_m > -2.0 * radii_m[1] and outside_m < WALL_THICKNESS_M:
            side = -math.copysign(1.0, place.lateral_m)
            normal = to_car(car, side * place.left[0], side * place.left[1], side * place.left[2])
            extent_m = extent(radii_m, normal)
            if outside_m + extent_m > 0.0:
                arm = touching_arm(parameters, center, radii_m, normal, extent_m)
                touch_wall(car, parameters, arm, normal, outside_m + extent_m)


@inner
def _collide_body(car: CarRecord, parameters: ParametersRecord, sections: npt.NDArray[np.void], place: Place) -> None:
    ground = ground_at(sections, place)
    ground_normal = to_car(car, ground.normal[0], ground.normal[1], ground.normal[2])
    left = to_car(car, place.left[0], place.left[1], place.left[2])
    walled = has_wall(sections, place) and abs(place.height_m) < WALL_HEIGHT_M
    for part in range(parameters.body_centers_m.shape[0]):
        offset = parameters.body_centers_m[part]
        radii_m = parameters.body_radii_m[part]
        center = (offset[0], offset[1], offset[2])
        if ground.exists and ground.height_m > -parameters.wheel_radii_m[1]:
            depth_m = extent(radii_m, ground_normal) - ground.height_m - dot(center, ground_normal)
            if depth_m > 0.0:
                touch_with_body(car, parameters, center, radii_m, ground_normal, depth_m)
        if walled:
            lateral_m = place.lateral_m + dot(center, left)
            outside_m = abs(lateral_m) - place.half_width_m
            depth_m = outside_m + extent(radii_m, left)
            if depth_m > 0.0 and outside_m < WALL_THICKNESS_M:
                side = -math.copysign(1.0, lateral_m)
                normal = (side * left[0], side * left[1], side * left[2])
                touch_with_body(car, parameters, center, radii_m, normal, depth_m)
