"""Contact effects on the car, in car axes: corrections that move it out, impulses that reduce its speed."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.physics.rigid_body import Vector, push_at, speed_at, to_car, to_world
from trackmania_rl.simulator.physics.vehicle_state import CarRecord, ParametersRecord


@inner
def begin_pass(car: CarRecord) -> None:
    """Begin a collision pass: velocities in car axes, no correction yet."""
    velocity = car.velocity_m_s
    spin = car.angular_velocity_rad_s
    set_vector(car.motion_m_s, to_car(car, velocity[0], velocity[1], velocity[2]))
    set_vector(car.spin_rad_s, to_car(car, spin[0], spin[1], spin[2]))
    for i in range(3):
        car.correction_m[i] = 0.0
    car.has_any_lateral_contact = 0


@inner
def end_pass(car: CarRecord, parameters: ParametersRecord) -> None:
    """End a collision pass: velocities back in world axes, the body moved by the corrections' sum."""
    position = car.position_m
    velocity = car.velocity_m_s
    spin = car.angular_velocity_rad_s
    set_vector(velocity, to_world(car, car.motion_m_s[0], car.motion_m_s[1], car.motion_m_s[2]))
    set_vector(spin, to_world(car, car.spin_rad_s[0], car.spin_rad_s[1], car.spin_rad_s[2]))
    correction = car.correction_m
    length_m = math.sqrt(correction[0] ** 2 + correction[1] ** 2 + correction[2] ** 2)
    if length_m > parameters.tolerated_depth_m:
        share = (length_m - parameters.tolerated_depth_m) / length_m
        x, y, z = to_world(car, share * correction[0], share * correction[1], share * correction[2])
        position[0] += x
        position[1] += y
        position[2] += z


@inner
def set_vector(target: npt.NDArray[np.float64], vector: Vector) -> None:
    """Write a vector to an array."""
    target[0], target[1], target[2] = vector


@inner
def add_correction(car: CarRecord, x: float, y: float, z: float) -> None:
    """Add a correction to the pass's sum, less the sum's component along it."""
    length_m = math.sqrt(x * x + y * y + z * z)
    if length_m < 1e-12:
        return
    x = x / length_m
    y = y / length_m
    z = z / length_m
    total = car.correction_m
    lacking_m = length_m - (total[0] * x + total[1] * y + total[2] * z)
    if lacking_m > 0.0:
        total[0] += lacking_m * x
        total[1] += lacking_m * y
        total[2] += lacking_m * z


@compiled
def extent(radii_m: npt.NDArray[np.float64], normal: Vector) -> float:
    """Return an ellipsoid's reach from the centre against a plane's normal."""
    x = radii_m[0] * normal[0]
    y = radii_m[1] * normal[1]
    z = radii_m[2] * normal[2]
    return math.sqrt(x * x + y * y + z * z)


@inner
def touching_arm(
    parameters: ParametersRecord, center: Vector, radii_m: npt.NDArray[np.float64], normal: Vector, extent_m: float
) -> Vector:
    """Return the ellipsoid's deepest point, from the mass centre."""
    mass = parameters.center_of_mass_m
    return (
        center[0] - radii_m[0] * radii_m[0] * normal[0] / extent_m - mass[0],
        center[1] - radii_m[1] * radii_m[1] * normal[1] / extent_m - mass[1],
        center[2] - radii_m[2] * radii_m[2] * normal[2] / extent_m - mass[2],
    )


@inner
def touch_ground(
    car: CarRecord,
    parameters: ParametersRecord,
    wheel: int,
    center: Vector,
    arm: Vector,
    normal: Vector,
    depth_m: float,
) -> None:
    """Let the damper take the correction's upward part as far as possible; a bottomed-out wheel loses speed."""
    absorb_m = car.wheel_damper_absorb_m[wheel]
    push_m = min(max(depth_m * normal[1], 0.0), absorb_m)
    car.wheel_push_m[wheel] = push_m
    add_correction(car, depth_m * normal[0], depth_m * normal[1] - push_m, depth_m * normal[2])
    bottomed_out = push_m < depth_m * normal[1] or normal[1] <= 0.0
    if bottomed_out:
        approach_m_s = speed_at(car, arm, normal)
    else:
        # The damper also takes the approach speed's upward part, on level ground all.
        mass = parameters.center_of_mass_m
        arm = (center[0] - mass[0], center[1] - mass[1], center[2] - mass[2])
        approach_m_s = speed_at(car, arm, normal) * (1.0 - normal[1] * normal[1])
    if approach_m_s < 0.0:
        push_at(car, parameters, arm, normal, -parameters.landing_loss * approach_m_s)


@inner
def touch_wall(car: CarRecord, parameters: ParametersRecord, arm: Vector, normal: Vector, depth_m: float) -> None:
    """Apply a wheel's contact with a wall: beside the car a side contact that slows it, ahead or behind a bump."""
    add_correction(car, depth_m * normal[0], depth_m * normal[1], depth_m * normal[2])
    loss = parameters.landing_loss
    if abs(normal[0]) >= parameters.side_contact_min_normal_x:
        car.has_any_lateral_contact = 1
        car.last_lateral_contact_time_ms = car.clock_ms
        loss = parameters.side_contact_loss
        arm = (arm[0], 0.0, arm[2])  # at the mass centre's height
    approach_m_s = speed_at(car, arm, normal)
    if approach_m_s < 0.0:
        push_at(car, parameters, arm, normal, -loss * approach_m_s)


@compiled
def dot(a: Vector, b: Vector) -> float:
    """Return the scalar product."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@inner
def touch_with_body(
    car: CarRecord,
    parameters: ParametersRecord,
    center: Vector,
    radii_m: npt.NDArray[np.float64],
    normal: Vector,
    depth_m: float,
) -> None:
    """Push the body out; it loses half the approach speed, with some friction along the surface."""
    add_correction(car, depth_m * normal[0], depth_m * normal[1], depth_m * normal[2])
    arm = touching_arm(parameters, center, radii_m, normal, extent(radii_m, normal))
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
    push_at(car, parameters, arm, direction, parameters.body_contact_loss * -dot(speed, direction))
