"""Springs, steering, lateral grip, yaw, air control, and bumps on grass and dirt.

The game's bump texture is not public. This one resembles it as far as ghosts show: smooth, mostly dark, repeated
over the whole world.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import inner
from trackmania_rl.simulator.physics.engine import GRIP_FACTOR, KMH_PER_M_S, adherence
from trackmania_rl.simulator.physics.rigid_body import add_force, add_torque, push_at, to_car, to_world
from trackmania_rl.simulator.physics.vehicle_parameters import linear_value, step_value
from trackmania_rl.simulator.physics.vehicle_state import FRONT_WHEELS, WHEELS, CarRecord, ParametersRecord
from trackmania_rl.simulator.tracks.world import Surface

CELLS: Final = 128  # per side of the texture
BRIGHTEST: Final = 255
DARK_SHARE: Final = 0.7
_BLUR_CELLS: Final = 5
_BLURS: Final = 3
"""Three averages over 5 cells are nearly a Gaussian with a standard deviation of 2.4 cells."""
_SEED: Final = 1

_GRASS = int(Surface.GRASS)
_DIRT = int(Surface.DIRT)


def make_texture(seed: int = _SEED) -> npt.NDArray[np.uint8]:
    """Return a (128, 128) bump texture by cell in x and z, 0 to 255.

    It is smooth integer noise, so it is the same on every machine; one standard deviation is 255.
    """
    x, z = np.meshgrid(np.arange(CELLS, dtype=np.uint64), np.arange(CELLS, dtype=np.uint64), indexing="ij")
    bits = (x * np.uint64(73856093) ^ z * np.uint64(19349663) ^ np.uint64(seed * 83492791)) & np.uint64(0xFFFFFFFF)
    for _ in range(2):
        bits = ((bits ^ (bits >> np.uint64(16))) * np.uint64(0x45D9F3B)) & np.uint64(0xFFFFFFFF)
    noise = (bits & np.uint64(0xFF)).astype(np.int64)
    reach = _BLUR_CELLS // 2
    for _ in range(_BLURS):
        for axis in (0, 1):
            noise = sum((np.roll(noise, shift, axis) for shift in range(-reach, reach + 1)), np.zeros_like(noise))
    from_mean = noise * CELLS**2 - noise.sum()
    deviation = math.isqrt(int(((from_mean // CELLS**2) ** 2).sum()) // CELLS**2) * CELLS**2
    dark = np.sort(from_mean.ravel())[int(DARK_SHARE * CELLS**2)]
    texture = np.clip(from_mean * BRIGHTEST // deviation, 0, BRIGHTEST)
    texture[from_mean < dark] = 0
    return texture.astype(np.uint8)


_TEXTURE: Final = make_texture()


@inner
def add_bumps(car: CarRecord, parameters: ParametersRecord) -> None:
    """Push each wheel on grass or dirt upwards, at its rest point; call this before the substep's forces."""
    begun = False
    for wheel in range(WHEELS):
        if not car.wheel_has_ground_contact[wheel]:
            continue
        material = car.wheel_material[wheel]
        if material != _GRASS and material != _DIRT:
            break  # as in the game: a wheel on the road ends it for those after it
        if not begun:
            begun = True
            velocity = car.velocity_m_s
            spin = car.angular_velocity_rad_s
            motion = car.motion_m_s
            local_spin = car.spin_rad_s
            motion[0], motion[1], motion[2] = to_car(car, velocity[0], velocity[1], velocity[2])
            local_spin[0], local_spin[1], local_spin[2] = to_car(car, spin[0], spin[1], spin[2])
        point = parameters.wheel_points_m[wheel]
        center = parameters.center_of_mass_m
        x, _, z = to_world(car, point[0], point[1], point[2])
        cell_x = int(abs(car.position_m[0] + x) / parameters.bump_cell_m) % CELLS
        cell_z = int(abs(car.position_m[2] + z) / parameters.bump_cell_m) % CELLS
        limit_m_s = parameters.bump_limit_grass_m_s if material == _GRASS else parameters.bump_limit_dirt_m_s
        height = _TEXTURE[cell_x, cell_z] / BRIGHTEST
        bump_m_s = min(limit_m_s, height * max(car.motion_m_s[2], 0.0) * parameters.bump_speed_share)
        if bump_m_s > 0.0:
            arm = (point[0] - center[0], point[1] - center[1], point[2] - center[2])
            push_at(car, parameters, arm, (0.0, 1.0, 0.0), parameters.landing_loss * bump_m_s)
    if begun:
        motion = car.motion_m_s
        local_spin = car.spin_rad_s
        x, y, z = to_world(car, motion[0], motion[1], motion[2])
        car.velocity_m_s[0], car.velocity_m_s[1], car.velocity_m_s[2] = x, y, z
        x, y, z = to_world(car, local_spin[0], local_spin[1], local_spin[2])
        spin = car.angular_velocity_rad_s
        spin[0], spin[1], spin[2] = x, y, z


_LEAST_NORMAL_ACROSS = 1e-3
"""A contact this nearly straight ahead or behind (a car on its nose) has no sideways grip direction."""


@inner
def update_steering(car: CarRecord, parameters: ParametersRecord, dt: float) -> None:
    """Move the front wheels towards the steering input."""
    step = parameters.steer_ramp_per_s * dt
    car.turning_rate += min(max(car.steer - car.turning_rate, -step), step)


@inner
def add_gravity_and_drag(car: CarRecord, parameters: ParametersRecord) -> None:
    """Add gravity, and drag in flight, by the previous substep's contacts."""
    velocity = car.velocity_m_s
    drag = 0.0 if car.was_grounded else parameters.air_drag_per_s
    scale = parameters.gravity_scale_ground if car.was_grounded else parameters.gravity_scale_air
    weight = parameters.gravity_m_s2 * scale
    x, y, z = to_car(car, -drag * velocity[0], -drag * velocity[1] - weight, -drag * velocity[2])
    add_force(car, x, y, z)


@inner
def add_wall_slow_down(car: CarRecord, parameters: ParametersRecord) -> None:
    """Add the deceleration that lasts after a wheel touched a wall."""
    if car.clock_ms - car.last_lateral_contact_time_ms >= 1000.0 * parameters.side_contact_slow_down_s:
        return
    velocity = car.local_speed_m_s
    speed_m_s = math.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1] + velocity[2] * velocity[2])
    if speed_m_s > 0.0:
        share = step_value(parameters.side_contact_curve_kmh, KMH_PER_M_S * speed_m_s) / speed_m_s
        add_force(car, -share * velocity[0], -share * velocity[1], -share * velocity[2])


@inner
def add_springs(car: CarRecord, parameters: ParametersRecord, dt: float) -> None:
    """Relax the dampers; add the grounded wheels' springs and the small lever of the last substep's forces."""
    center = parameters.center_of_mass_m
    lever = parameters.force_lever
    last_x = car.force_m_s2[0]
    last_y = car.force_m_s2[1]
    last_z = car.force_m_s2[2]
    spring_sum = 0.0
    for wheel in range(WHEELS):
        point = parameters.wheel_points_m[wheel]
        before_m = car.wheel_damper_absorb_m[wheel]
        pushed_m = before_m - car.wheel_push_m[wheel]
        car.wheel_push_m[wheel] = 0.0
        share = parameters.damper_relaxation_per_s * dt
        absorb_m = pushed_m + (parameters.damper_travel_m - pushed_m) * share
        car.wheel_damper_absorb_m[wheel] = absorb_m
        if not car.wheel_has_ground_contact[wheel]:
            continue
        arm_x = point[0] - center[0]
        arm_z = point[2] - center[2]
        spring = parameters.spring_per_s2 * (parameters.damper_travel_m - absorb_m)
        spring -= parameters.damping_per_s * (absorb_m - before_m) / dt
        spring_sum += spring
        add_torque(car, -arm_z * spring, 0.0, arm_x * spring)
        arm_y = point[1] - absorb_m - parameters.wheel_radii_m[1] - center[1]
        add_torque(
            car,
            lever[0] * (arm_y * last_z - arm_z * last_y),
            lever[1] * (arm_z * last_x - arm_x * last_z),
            lever[2] * (arm_x * last_y - arm_y * last_x),
        )
    for i in range(3):
        car.force_m_s2[i] = 0.0
    add_force(car, 0.0, spring_sum, 0.0)


@inner
def add_lateral_grip(car: CarRecord, parameters: ParametersRecord) -> None:
    """Add each wheel's resistance to slipping sideways, up to the grip limit, at the centre of mass."""
    velocity = car.local_speed_m_s
    limit_curve = linear_value(parameters.side_friction_limit_curve_kmh, KMH_PER_M_S * velocity[2])
    slope_share = adherence(car, parameters.adherence_none, parameters.adherence_full)
    braking = car.brake > parameters.key_threshold
    angle = -car.turning_rate * math.asin(
        1.0 / (parameters.wheel_angle_base + parameters.wheel_angle_slope_s_m * abs(velocity[2]))
    )
    sine = math.sin(angle)
    cosine = math.cos(angle)
    reference_m = parameters.grip_damper_reference_m
    car.any_wheel_over_limit = 0
    for wheel in range(WHEELS):
        if not car.wheel_has_ground_contact[wheel]:
            continue
        normal = car.wheel_contact_normal[wheel]
        across = math.sqrt(normal[0] * normal[0] + normal[1] * normal[1])
        if across < _LEAST_NORMAL_ACROSS:
            continue
        scale = 1.0 / across
        axis_x = normal[1] * scale
        axis_y = -normal[0] * scale
        axis_z = 0.0
        if wheel < FRONT_WHEELS:
            axis_x = cosine * axis_x
            axis_y = cosine * axis_y
            axis_z = -sine
        slip_m_s = velocity[0] * axis_x + velocity[1] * axis_y + velocity[2] * axis_z
        requested = parameters.side_friction_per_s * abs(slip_m_s)
        modulation = (reference_m - car.wheel_damper_absorb_m[wheel]) / reference_m
        limit = limit_curve * slope_share * linear_value(parameters.grip_damper_curve, modulation)
        limit *= parameters.material_factors[car.wheel_material[wheel], GRIP_FACTOR]
        if car.wheel_is_sliding[wheel]:
            limit *= parameters.sliding_grip_factor
            if braking:
                limit *= parameters.sliding_brake_grip_factor
        force = requested
        car.wheel_is_sliding[wheel] = 0
        if requested > limit:
            car.wheel_is_sliding[wheel] = 1
            car.any_wheel_over_limit = 1
            excess = parameters.sliding_excess_share
            force = (1.0 - excess) * limit + excess * requested
        force = -math.copysign(force, slip_m_s)
        add_force(car, force * axis_x, force * axis_y, force * axis_z)


@inner
def add_yaw_and_roll(car: CarRecord, parameters: ParametersRecord) -> None:
    """Add the steering's torque against the wheels' yaw friction, lifted wheels included, and the body's lean."""
    side_m_s = car.local_speed_m_s[0]
    forward_m_s = car.local_speed_m_s[2]
    speed_m_s = math.sqrt(side_m_s * side_m_s + car.local_speed_m_s[1] ** 2 + forward_m_s * forward_m_s)
    if speed_m_s < parameters.steer_torque_min_speed_m_s:
        growth = 0.0
    else:
        growth = math.sin(0.5 * math.pi * min(speed_m_s / parameters.steer_torque_full_speed_m_s, 1.0))
    torque = linear_value(parameters.steer_torque_curve_kmh, KMH_PER_M_S * forward_m_s) * growth * car.turning_rate
    if car.is_reversing:
        torque = -torque
    # The wheels' sideways speeds cancel between the axles; the rest damps the yaw rate.
    lever_m = parameters.half_wheel_base_m
    damping = WHEELS * lever_m * lever_m * parameters.yaw_friction
    add_torque(car, 0.0, -damping * car.spin_rad_s[1] - FRONT_WHEELS * lever_m * torque, 0.0)
    lean = linear_value(parameters.roll_torque_curve, KMH_PER_M_S * side_m_s * side_m_s / (abs(forward_m_s) + 1.0))
    add_torque(car, 0.0, 0.0, -math.copysign(lean, side_m_s))


@inner
def add_air_control(car: CarRecord, parameters: ParametersRecord) -> None:
    """Damp the spin in flight: steering with a turn keeps it, against it stops it, and braking stops a dive."""
    spin = car.spin_rad_s
    stored = car.stored_angular_velocity_rad_s
    argument_factor = 1.0
    with_the_turn = car.steer * stored[1] < 0.0
    if with_the_turn and abs(spin[1]) <= parameters.air_yaw_hold_limit_rad_s:
        spin[1] = stored[1]
    else:
        if car.steer * stored[1] != 0.0:
            argument_factor = parameters.air_counter_steer_factor
        stored[1] = spin[1]  # also without steering: steering does not restore a turn that died away
    if car.brake > parameters.key_threshold and stored[0] > 0.0:
        spin[0] = 0.0
    stored[0] = spin[0]
    world_x, world_y, world_z = to_world(car, spin[0], spin[1], spin[2])
    car.angular_velocity_rad_s[0] = world_x
    car.angular_velocity_rad_s[1] = world_y
    car.angular_velocity_rad_s[2] = world_z
    rate = math.sqrt(spin[0] * spin[0] + spin[1] * spin[1] + spin[2] * spin[2])
    per_rate = argument_factor * (
        parameters.air_spin_drag + parameters.air_spin_drag_quadratic * argument_factor * rate
    )
    add_torque(car, -per_rate * spin[0], -per_rate * spin[1], -per_rate * spin[2])
