"""Car as a rigid body: axes, integration, and impulses at a point."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.physics.vehicle_state import CarRecord, ParametersRecord

Vector = tuple[float, float, float]


@compiled
def to_car(car: CarRecord, x: float, y: float, z: float) -> Vector:
    """Return a world vector in car axes."""
    r = car.rotation
    return (
        r[0, 0] * x + r[1, 0] * y + r[2, 0] * z,
        r[0, 1] * x + r[1, 1] * y + r[2, 1] * z,
        r[0, 2] * x + r[1, 2] * y + r[2, 2] * z,
    )


@compiled
def to_world(car: CarRecord, x: float, y: float, z: float) -> Vector:
    """Return a car vector in world axes."""
    r = car.rotation
    return (
        r[0, 0] * x + r[0, 1] * y + r[0, 2] * z,
        r[1, 0] * x + r[1, 1] * y + r[1, 2] * z,
        r[2, 0] * x + r[2, 1] * y + r[2, 2] * z,
    )


@inner
def set_rotation_from_quaternion(car: CarRecord) -> None:
    """Normalise the quaternion and compute the matrix from it."""
    q = car.quaternion
    scale = 1.0 / math.sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3])
    for i in range(4):
        q[i] *= scale
    w = q[0]
    x = q[1]
    y = q[2]
    z = q[3]
    r = car.rotation
    r[0, 0], r[0, 1], r[0, 2] = 1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)
    r[1, 0], r[1, 1], r[1, 2] = 2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)
    r[2, 0], r[2, 1], r[2, 2] = 2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)


@inner
def add_force(car: CarRecord, x: float, y: float, z: float) -> None:
    """Add a central force, car axes."""
    car.force_m_s2[0] += x
    car.force_m_s2[1] += y
    car.force_m_s2[2] += z


@inner
def add_torque(car: CarRecord, x: float, y: float, z: float) -> None:
    """Add a torque, car axes."""
    car.torque_rad_s2[0] += x
    car.torque_rad_s2[1] += y
    car.torque_rad_s2[2] += z


@inner
def _limit_length(vector: npt.NDArray[np.float64], limit: float) -> None:
    length = math.sqrt(vector[0] * vector[0] + vector[1] * vector[1] + vector[2] * vector[2])
    if length > limit:
        for i in range(3):
            vector[i] *= limit / length


@inner
def integrate(car: CarRecord, parameters: ParametersRecord, dt: float) -> None:
    """Make one explicit Euler step. The body turns about the mass centre; the position is that of the origin."""
    center = parameters.center_of_mass_m
    before_x, before_y, before_z = to_world(car, center[0], center[1], center[2])
    force_x, force_y, force_z = to_world(car, car.force_m_s2[0], car.force_m_s2[1], car.force_m_s2[2])
    inverse_inertia = parameters.inverse_inertia
    turn_x, turn_y, turn_z = to_world(
        car,
        inverse_inertia[0] * car.torque_rad_s2[0],
        inverse_inertia[1] * car.torque_rad_s2[1],
        inverse_inertia[2] * car.torque_rad_s2[2],
    )
    velocity = car.velocity_m_s
    spin = car.angular_velocity_rad_s
    q = car.quaternion
    for i in range(3):
        car.position_m[i] += velocity[i] * dt
    w = q[0]
    x = q[1]
    y = q[2]
    z = q[3]
    half = 0.5 * dt
    q[0] -= half * (spin[0] * x + spin[1] * y + spin[2] * z)
    q[1] += half * (spin[0] * w + spin[1] * z - spin[2] * y)
    q[2] += half * (spin[1] * w + spin[2] * x - spin[0] * z)
    q[3] += half * (spin[2] * w + spin[0] * y - spin[1] * x)
    set_rotation_from_quaternion(car)
    velocity[0] += force_x * dt
    velocity[1] += force_y * dt
    velocity[2] += force_z * dt
    spin[0] += turn_x * dt
    spin[1] += turn_y * dt
    spin[2] += turn_z * dt
    _limit_length(velocity, parameters.max_speed_m_s)
    _limit_length(spin, parameters.max_angular_speed_rad_s)
    after_x, after_y, after_z = to_world(car, center[0], center[1], center[2])
    car.position_m[0] -= after_x - before_x
    car.position_m[1] -= after_y - before_y
    car.position_m[2] -= after_z - before_z


@inner
def speed_at(car: CarRecord, arm: Vector, direction: Vector) -> float:
    """Return the speed along `direction` at a point `arm` from the mass centre in a collision pass; car axes."""
    spin = car.spin_rad_s
    motion = car.motion_m_s
    return (
        direction[0] * (motion[0] + spin[1] * arm[2] - spin[2] * arm[1])
        + direction[1] * (motion[1] + spin[2] * arm[0] - spin[0] * arm[2])
        + direction[2] * (motion[2] + spin[0] * arm[1] - spin[1] * arm[0])
    )


@inner
def push_at(
    car: CarRecord, parameters: ParametersRecord, arm: Vector, direction: Vector, speed_change_m_s: float
) -> None:
    """Change the speed at the body's point `arm` along `direction` by an impulse there; car axes.

    The body yields by turning as well as by moving; the game scales the turn by `contact_spin_factor`.
    """
    inverse_inertia = parameters.inverse_inertia
    turn_x = inverse_inertia[0] * (arm[1] * direction[2] - arm[2] * direction[1])
    turn_y = inverse_inertia[1] * (arm[2] * direction[0] - arm[0] * direction[2])
    turn_z = inverse_inertia[2] * (arm[0] * direction[1] - arm[1] * direction[0])
    yielding = (
        1.0
        + direction[0] * (turn_y * arm[2] - turn_z * arm[1])
        + direction[1] * (turn_z * arm[0] - turn_x * arm[2])
        + direction[2] * (turn_x * arm[1] - turn_y * arm[0])
    )
    impulse = speed_change_m_s / yielding
    for i in range(3):
        car.motion_m_s[i] += impulse * direction[i]
    kept = parameters.contact_spin_factor * impulse
    car.spin_rad_s[0] += kept * turn_x
    car.spin_rad_s[1] += kept * turn_y
    car.spin_rad_s[2] += kept * turn_z
