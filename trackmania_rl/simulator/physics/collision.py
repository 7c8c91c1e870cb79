"""What the car touches: wheels and body against the ground and the walls of the ribbon.

Wheels and body are ellipsoids; ground and walls are planes where the ribbon is near the part that touches. A collision
pass runs after every substep: it sets the contact flags that the next substep drives with, takes speed away and moves
the body out. All vectors are in car axes unless they say otherwise.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.physics.rigid_body import Vector, push_at, speed_at, to_car, to_world
from trackmania_rl.simulator.physics.vehicle_state import WHEELS, CarRecord, ParametersRecord
from trackmania_rl.simulator.tracks.world import (
    WALL_HEIGHT_M,
    WALL_THICKNESS_M,
    Place,
    ground_at,
    has_wall,
    locate,
)


@compiled
def collide(car: CarRecord, parameters: ParametersRecord, sections: npt.NDArray[np.void]) -> None:
    """One collision pass."""
    position, velocity = car.position_m, car.velocity_m_s
    place = locate(sections, car.ribbon_index, position[0], position[1], position[2])
    car.ribbon_index = place.section
    car.station_m = place.station_m
    _set_vector(car.motion_m_s, to_car(car, velocity[0], velocity[1], velocity[2]))
    spin = car.angular_velocity_rad_s
    _set_vector(car.spin_rad_s, to_car(car, spin[0], spin[1], spin[2]))
    car.correction_m[:] = 0.0
    car.has_any_lateral_contact = 0
    for wheel in range(WHEELS):
        _collide_wheel(car, parameters, sections, wheel)
    _collide_body(car, parameters, sections, place)
    _set_vector(velocity, to_world(car, car.motion_m_s[0], car.motion_m_s[1], car.motion_m_s[2]))
    _set_vector(spin, to_world(car, car.spin_rad_s[0], car.spin_rad_s[1], car.spin_rad_s[2]))
    correction = car.correction_m
    length_m = math.sqrt(correction[0] ** 2 + correction[1] ** 2 + correction[2] ** 2)
    if length_m > parameters.tolerated_depth_m:
        share = (length_m - parameters.tolerated_depth_m) / length_m
        x, y, z = to_world(car, share * correction[0], share * correction[1], share * correction[2])
        position[0] += x
        position[1] += y
        position[2] += z


@compiled
def _set_vector(target: npt.NDArray[np.float64], vector: Vector) -> None:
    target[0], target[1], target[2] = vector


@compiled
def _add_correction(car: CarRecord, x: float, y: float, z: float) -> None:
    """Merges one correction into the pass's sum: only what the sum lacks along it."""
    length_m = math.sqrt(x * x + y * y + z * z)
    if length_m < 1e-12:
        return
    x, y, z = x / length_m, y / length_m, z / length_m
    total = car.correction_m
    lacking_m = length_m - (total[0] * x + total[1] * y + total[2] * z)
    if lacking_m > 0.0:
        total[0] += lacking_m * x
        total[1] += lacking_m * y
        total[2] += lacking_m * z


@compiled
def _extent(radii_m: npt.NDArray[np.float64], normal: Vector) -> float:
    """How far an ellipsoid reaches from its centre against a plane's normal."""
    x, y, z = radii_m[0] * normal[0], radii_m[1] * normal[1], radii_m[2] * normal[2]
    return math.sqrt(x * x + y * y + z * z)


@compiled
def _touching_arm(
    parameters: ParametersRecord, center: Vector, radii_m: npt.NDArray[np.float64], normal: Vector, extent_m: float
) -> Vector:
    """The ellipsoid's deepest point, seen from the centre of mass."""
    mass = parameters.center_of_mass_m
    return (
        center[0] - radii_m[0] * radii_m[0] * normal[0] / extent_m - mass[0],
        center[1] - radii_m[1] * radii_m[1] * normal[1] / extent_m - mass[1],
        center[2] - radii_m[2] * radii_m[2] * normal[2] / extent_m - mass[2],
    )


@compiled
def _collide_wheel(car: CarRecord, parameters: ParametersRecord, sections: npt.NDArray[np.void], wheel: int) -> None:
    point, radii_m = parameters.wheel_points_m[wheel], parameters.wheel_radii_m
    center = (point[0], point[1] - car.wheel_damper_absorb_m[wheel], point[2])
    x, y, z = to_world(car, center[0], center[1], center[2])
    x, y, z = car.position_m[0] + x, car.position_m[1] + y, car.position_m[2] + z
    place = locate(sections, car.ribbon_index, x, y, z)
    car.wheel_has_ground_contact[wheel] = 0
    car.wheel_material[wheel] = 0
    ground = ground_at(sections, place)
    # A wheel whose centre is below the surface has missed the road: it passes underneath.
    if ground.exists and ground.height_m > 0.0:
        normal = to_car(car, ground.normal[0], ground.normal[1], ground.normal[2])
        extent_m = _extent(radii_m, normal)
        if extent_m > ground.height_m:
            arm = _touching_arm(parameters, center, radii_m, normal, extent_m)
            _touch_ground(car, parameters, wheel, center, arm, normal, extent_m - ground.height_m)
            if abs(normal[0]) < parameters.side_contact_min_normal_x:
                car.wheel_has_ground_contact[wheel] = 1
                car.wheel_material[wheel] = ground.material
                _set_vector(car.wheel_contact_normal[wheel], normal)
    if has_wall(sections, place) and abs(place.height_m) < WALL_HEIGHT_M:
        outside_m = abs(place.lateral_m) - place.half_width_m
        if outside_m > -2.0 * radii_m[1] and outside_m < WALL_THICKNESS_M:
            side = -math.copysign(1.0, place.lateral_m)
            normal = to_car(car, side * place.left[0], side * place.left[1], side * place.left[2])
            extent_m = _extent(radii_m, normal)
            if outside_m + extent_m > 0.0:
                arm = _touching_arm(parameters, center, radii_m, normal, extent_m)
                _touch_wall(car, parameters, arm, normal, outside_m + extent_m)


@compiled
def _touch_ground(
    car: CarRecord,
    parameters: ParametersRecord,
    wheel: int,
    center: Vector,
    arm: Vector,
    normal: Vector,
    depth_m: float,
) -> None:
    """The damper takes the upward part of the correction as far as it goes; a bottomed-out wheel loses speed."""
    absorb_m = car.wheel_damper_absorb_m[wheel]
    push_m = min(max(depth_m * normal[1], 0.0), absorb_m)
    car.wheel_push_m[wheel] = push_m
    _add_correction(car, depth_m * normal[0], depth_m * normal[1] - push_m, depth_m * normal[2])
    bottomed_out = push_m < depth_m * normal[1] or normal[1] <= 0.0
    if bottomed_out:
        approach_m_s = speed_at(car, arm, normal)
    else:
        # The damper also takes the upward part of the approach speed, which on level ground is all of it.
        mass = parameters.center_of_mass_m
        arm = (center[0] - mass[0], center[1] - mass[1], center[2] - mass[2])
        approach_m_s = speed_at(car, arm, normal) * (1.0 - normal[1] * normal[1])
    if approach_m_s < 0.0:
        push_at(car, parameters, arm, normal, -parameters.landing_loss * approach_m_s)


@compiled
def _touch_wall(car: CarRecord, parameters: ParametersRecord, arm: Vector, normal: Vector, depth_m: float) -> None:
    """A wheel against a wall: beside the car a side contact with its slow-down, ahead or behind a plain bump."""
    _add_correction(car, depth_m * normal[0], depth_m * normal[1], depth_m * normal[2])
    loss = parameters.landing_loss
    if abs(normal[0]) >= parameters.side_contact_min_normal_x:
        car.has_any_lateral_contact = 1
        car.last_lateral_contact_time_ms = car.clock_ms
        loss = parameters.side_contact_loss
        arm = (arm[0], 0.0, arm[2])  # at the height of the centre of mass
    approach_m_s = speed_at(car, arm, normal)
    if approach_m_s < 0.0:
        push_at(car, parameters, arm, normal, -loss * approach_m_s)


@compiled
def _collide_body(car: CarRecord, parameters: ParametersRecord, sections: npt.NDArray[np.void], place: Place) -> None:
    """The body's ellipsoids against the ground's and the walls' planes at the car's place."""
    ground = ground_at(sections, place)
    ground_normal = to_car(car, ground.normal[0], ground.normal[1], ground.normal[2])
    left = to_car(car, place.left[0], place.left[1], place.left[2])
    walled = has_wall(sections, place) and abs(place.height_m) < WALL_HEIGHT_M
    for part in range(parameters.body_centers_m.shape[0]):
        offset, radii_m = parameters.body_centers_m[part], parameters.body_radii_m[part]
        center = (offset[0], offset[1], offset[2])
        if ground.exists and ground.height_m > -parameters.wheel_radii_m[1]:
            depth_m = _extent(radii_m, ground_normal) - ground.height_m - _dot(center, ground_normal)
            if depth_m > 0.0:
                _touch_with_body(car, parameters, center, radii_m, ground_normal, depth_m)
        if walled:
            lateral_m = place.lateral_m + _dot(center, left)
            outside_m = abs(lateral_m) - place.half_width_m
            depth_m = outside_m + _extent(radii_m, left)
            if depth_m > 0.0 and outside_m < WALL_THICKNESS_M:
                side = -math.copysign(1.0, lateral_m)
                normal = (side * left[0], side * left[1], side * left[2])
                _touch_with_body(car, parameters, center, radii_m, normal, depth_m)


@compiled
def _dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@compiled
def _touch_with_body(
    car: CarRecord,
    parameters: ParametersRecord,
    center: Vector,
    radii_m: npt.NDArray[np.float64],
    normal: Vector,
    depth_m: float,
) -> None:
    """The body is pushed out and loses half its approach speed, with some friction along the surface."""
    _add_correction(car, depth_m * normal[0], depth_m * normal[1], depth_m * normal[2])
    arm = _touching_arm(parameters, center, radii_m, normal, _extent(radii_m, normal))
    approach_m_s = -speed_at(car, arm, normal)
    if approach_m_s <= 0.0:
        return
    speed = (
        speed_at(car, arm, (1.0, 0.0, 0.0)),
        speed_at(car, arm, (0.0, 1.0, 0.0)),
        speed_at(car, arm, (0.0, 0.0, 1.0)),
    )
    slip_x = speed[0] + approach_m_s * normal[0]
    slip_y = speed[1] + approach_m_s * normal[1]
    slip_z = speed[2] + approach_m_s * normal[2]
    slip_m_s = math.sqrt(slip_x * slip_x + slip_y * slip_y + slip_z * slip_z)
    friction_m_s = min(slip_m_s, parameters.body_contact_friction * approach_m_s)
    share = friction_m_s / slip_m_s if slip_m_s > 0.0 else 0.0
    x = approach_m_s * normal[0] - share * slip_x
    y = approach_m_s * normal[1] - share * slip_y
    z = approach_m_s * normal[2] - share * slip_z
    length = math.sqrt(x * x + y * y + z * z)
    direction = (x / length, y / length, z / length)
    push_at(car, parameters, arm, direction, parameters.body_contact_loss * -_dot(speed, direction))
