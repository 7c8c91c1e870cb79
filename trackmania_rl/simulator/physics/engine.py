"""Engine, gearbox, drive, brakes and coasting.

The car has no drive during a gear change, which lasts until the engine reaches the new gear's speed.
"""

from __future__ import annotations

import math
from enum import IntEnum

from trackmania_rl.simulator.compiled import inner
from trackmania_rl.simulator.physics.rigid_body import add_force, add_torque
from trackmania_rl.simulator.physics.vehicle_parameters import linear_value, step_value
from trackmania_rl.simulator.physics.vehicle_state import FRONT_WHEELS, WHEELS, CarRecord, ParametersRecord
from trackmania_rl.simulator.tracks.world import Surface

KMH_PER_M_S = 3.6
MAX_SPEED_FACTOR, DRIVE_FACTOR, BRAKE_FACTOR, GRIP_FACTOR = range(4)
"""Columns in `VehicleParameters.material_factors`."""


class GearboxState(IntEnum):
    """Gearbox state."""

    DRIVING = 0
    CHANGING = 1
    TAKING_OFF = 2
    TAKING_OFF_BACKWARDS = 3


REVERSE_GEAR, FIRST_GEAR, LAST_GEAR = 0, 1, 5
_DRIVING = int(GearboxState.DRIVING)
_CHANGING = int(GearboxState.CHANGING)
_TAKING_OFF = int(GearboxState.TAKING_OFF)
_TAKING_OFF_BACKWARDS = int(GearboxState.TAKING_OFF_BACKWARDS)
_DIRT = int(Surface.DIRT)


@inner
def driving_input(car: CarRecord) -> float:
    """Return the pedal that drives: the throttle, or the brake while reversing."""
    return car.brake if car.is_reversing else car.gas


@inner
def adherence(car: CarRecord, none: float, full: float) -> float:
    """Return the share of tyre force left when the car's up leans away from the world's."""
    uprightness = abs(car.rotation[1, 1])
    if uprightness >= full:
        return 1.0
    if uprightness <= none:
        return 0.0
    return 1.0 - math.cos(0.5 * math.pi * (uprightness - none) / (full - none))


@inner
def _approach(value: float, target: float, step_up: float, step_down: float) -> float:
    return min(value + step_up, target) if value < target else max(value - step_down, target)


@inner
def _change_gear(car: CarRecord, parameters: ParametersRecord, gear: int) -> None:
    car.gear = gear
    car.gearbox_state = _CHANGING
    car.gear_timer_s = parameters.gear_timer_s


@inner
def _select_gear(car: CarRecord, parameters: ParametersRecord, speed_m_s: float) -> None:
    pressed = driving_input(car) > 0.0
    if car.is_reversing:
        if pressed and -parameters.take_off_below_m_s < speed_m_s < -parameters.take_off_above_m_s:
            car.gearbox_state = _TAKING_OFF_BACKWARDS
    elif car.actual_rpm > parameters.shift_up_share[car.gear] * parameters.max_rpm:
        _change_gear(car, parameters, car.gear + 1)
    elif car.actual_rpm < parameters.shift_down_share[car.gear] * parameters.max_rpm:
        _change_gear(car, parameters, car.gear - 1)
    elif pressed and parameters.take_off_above_m_s < speed_m_s < parameters.take_off_below_m_s:
        car.gearbox_state = _TAKING_OFF


@inner
def _rpm_fall_per_s(car: CarRecord, parameters: ParametersRecord, pressed: bool) -> float:
    if not pressed:
        return parameters.change_rpm_down_coasting_per_s
    return parameters.change_rpm_down_sliding_per_s if car.is_sliding else parameters.change_rpm_down_per_s


@inner
def _turn_direction(car: CarRecord, parameters: ParametersRecord, pressed: bool, dt: float) -> None:
    """Slow the engine down between forward gears and reverse, without drive.

    [engine] in two public reconstructions; no replay shows it.
    """
    car.gearbox_state = _CHANGING
    car.actual_rpm = 0.0
    car.clamped_rpm = max(car.clamped_rpm - _rpm_fall_per_s(car, parameters, pressed) * dt, 0.0)
    if car.clamped_rpm < parameters.turn_direction_below_rpm:
        _change_gear(car, parameters, REVERSE_GEAR if car.is_reversing else FIRST_GEAR)


@inner
def update_engine(car: CarRecord, parameters: ParametersRecord, grounded: bool, dt: float) -> None:
    """Advance the engine's speed and the gearbox by one substep, by the previous substep's forward speed."""
    pressed = driving_input(car) > 0.0
    if car.is_freewheeling:
        car.actual_rpm = 0.0
        car.clamped_rpm = 0.0
        return
    car.gear_timer_s = max(car.gear_timer_s - dt, 0.0)
    if car.gear_timer_s > 0.0 or not grounded:
        free = parameters.free_rpm_up_per_s if pressed else -parameters.free_rpm_down_per_s
        car.clamped_rpm = min(max(car.clamped_rpm + free * dt, 0.0), parameters.max_rpm)
        return
    if car.is_sliding and pressed:
        car.slide_factor += parameters.slide_factor_per_s * (parameters.slide_factor_max - car.slide_factor) * dt
    else:
        car.slide_factor = 1.0
    if (car.is_reversing == 1) != (car.gear == REVERSE_GEAR):
        _turn_direction(car, parameters, pressed, dt)
        return
    speed_m_s = car.local_speed_m_s[2]
    car.actual_rpm = abs(speed_m_s * car.slide_factor) * parameters.rpm_per_m_s[car.gear]
    wanted_rpm = min(car.actual_rpm, parameters.max_rpm)
    if car.gearbox_state == _CHANGING:
        falling = _rpm_fall_per_s(car, parameters, pressed)
        car.clamped_rpm = _approach(car.clamped_rpm, wanted_rpm, parameters.change_rpm_up_per_s * dt, falling * dt)
        if car.clamped_rpm == wanted_rpm:
            car.gearbox_state = _DRIVING
    elif car.gearbox_state == _DRIVING:
        car.clamped_rpm = wanted_rpm
        _select_gear(car, parameters, speed_m_s)
    else:
        along_m_s = speed_m_s if car.gearbox_state == _TAKING_OFF else -speed_m_s
        if pressed and parameters.take_off_above_m_s < along_m_s < parameters.take_off_below_m_s:
            car.clamped_rpm = min(car.clamped_rpm + parameters.take_off_rpm_up_per_s * dt, parameters.max_rpm)
        else:
            car.clamped_rpm -= parameters.take_off_rpm_down_per_s * dt
            if car.clamped_rpm <= wanted_rpm:
                car.clamped_rpm = wanted_rpm
                car.gearbox_state = _DRIVING


@inner
def update_reversing(car: CarRecord, parameters: ParametersRecord) -> None:
    """Set whether the brake key drives backwards."""
    forward_m_s = car.local_speed_m_s[2]
    sideways_m_s = abs(car.local_speed_m_s[0])
    gas = car.gas > parameters.key_threshold
    brake = car.brake > parameters.key_threshold
    if car.turbo_remaining_s > 0.0 and forward_m_s > 0.0:
        car.is_reversing = 0
    elif gas:
        if forward_m_s > 0.0 or sideways_m_s > parameters.reverse_max_sideways_m_s:
            car.is_reversing = 0
    elif brake:
        if forward_m_s < parameters.reverse_below_m_s and sideways_m_s < parameters.reverse_max_sideways_m_s:
            car.is_reversing = 1
    else:
        car.is_reversing = 1 if forward_m_s < parameters.take_off_above_m_s else 0


@inner
def add_coast(car: CarRecord, parameters: ParametersRecord) -> None:
    """Add friction while the driving pedal is released, on the ground and in the air."""
    velocity = car.local_speed_m_s
    speed_m_s = math.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1] + velocity[2] * velocity[2])
    if speed_m_s < 1e-6:
        return
    if car.is_freewheeling:
        per_s = parameters.coast_constant_m_s2 / speed_m_s
    elif driving_input(car) == 0.0:
        per_s = parameters.coast_constant_m_s2 / speed_m_s + parameters.coast_linear_per_s
    else:
        return
    add_force(car, -per_s * velocity[0], -per_s * velocity[1], -per_s * velocity[2])


@inner
def _traction(car: CarRecord, parameters: ParametersRecord) -> float:
    """Return 1 while the wheels grip, down to 0 in a full slide; set the car's `is_sliding`."""
    limit_curve = linear_value(parameters.side_friction_limit_curve_kmh, KMH_PER_M_S * car.local_speed_m_s[2])
    requested, limits = 0.0, 0.0
    for wheel in range(WHEELS):
        if not car.wheel_has_ground_contact[wheel]:
            continue
        lever = parameters.half_wheel_base_m if wheel < FRONT_WHEELS else -parameters.half_wheel_base_m
        side_m_s = car.local_speed_m_s[0] + lever * car.spin_rad_s[1]
        side_force = parameters.side_friction_per_s * abs(side_m_s)
        limit = limit_curve * parameters.material_factors[car.wheel_material[wheel], GRIP_FACTOR]
        if side_force > limit:
            requested += side_force
            limits += limit
    car.is_sliding = 1 if requested > 0.0 else 0
    if requested == 0.0:
        return 1.0
    return max(0.0, 1.0 - (requested - limits) / limits) if limits > 0.0 else 0.0


@inner
def _brake_force(
    car: CarRecord,
    pedal: float,
    rolling_m_s: float,
    surface_cap: float,
    surface_cap_sliding: float,
    parameters: ParametersRecord,
) -> float:
    """Return one pedal's deceleration when used as a brake; reaching the cap makes all wheels slide."""
    sliding = 0
    for wheel in range(WHEELS):
        sliding += car.wheel_is_sliding[wheel]
    wanted = (parameters.brake_constant_m_s2 + parameters.brake_linear_per_s * rolling_m_s) * pedal
    wanted *= parameters.brake_sliding_factor**sliding
    cap = surface_cap_sliding if car.any_wheel_over_limit else surface_cap
    if wanted < cap:
        return wanted
    for wheel in range(WHEELS):
        car.wheel_is_sliding[wheel] = 1
    car.is_sliding = 1
    return cap


@inner
def add_drive_and_brakes(car: CarRecord, parameters: ParametersRecord) -> None:
    """Add the pedals' force along the car, if a wheel is on the ground.

    The surface's factors are those under the front-left wheel (asphalt while it is lifted), as in the game.
    """
    forward_m_s = car.local_speed_m_s[2]
    forward_kmh = KMH_PER_M_S * forward_m_s
    factors = parameters.material_factors[car.wheel_material[0]]
    traction = _traction(car, parameters)
    drive_curve = step_value(parameters.drive_curve_kmh, forward_kmh)
    net = 0.0
    if not car.is_freewheeling and car.gearbox_state != _CHANGING:
        slipping = (1.0 - traction) * parameters.slipping_drive_m_s2
        if car.is_reversing:
            pull = slipping + traction * linear_value(parameters.reverse_drive_curve_kmh, forward_kmh)
            net = -car.brake * factors[DRIVE_FACTOR] * pull
        else:
            net = car.gas * factors[DRIVE_FACTOR] * (slipping + traction * drive_curve)
    if car.turbo_remaining_s > 0.0:
        net += car.turbo_boost_factor * drive_curve
    brake = factors[BRAKE_FACTOR]
    if forward_m_s > 0.0 and car.brake > 0.0:  # also while the brake key already drives backwards
        cap = parameters.brake_cap_m_s2
        cap_sliding = parameters.brake_cap_sliding_m_s2
        net -= _brake_force(car, car.brake, forward_m_s, brake * cap, brake * cap_sliding, parameters)
    elif forward_m_s < 0.0 and car.gas > 0.0:
        cap = parameters.gas_brake_cap_m_s2
        cap_sliding = parameters.gas_brake_cap_sliding_m_s2
        net += _brake_force(car, car.gas, -forward_m_s, brake * cap, brake * cap_sliding, parameters)
    if forward_m_s > parameters.max_speed_m_s * factors[MAX_SPEED_FACTOR]:
        net = min(net, 0.0) - parameters.overspeed_brake_m_s2
    elif forward_m_s < -parameters.max_speed_backwards_m_s * factors[MAX_SPEED_FACTOR]:
        net = max(net, 0.0) + parameters.overspeed_brake_m_s2
    grip = adherence(car, parameters.adherence_none_longitudinal, parameters.adherence_full)
    add_force(car, 0.0, 0.0, net * grip)


@inner
def add_dirt_extra(car: CarRecord, parameters: ParametersRecord) -> None:
    """Add drag to a braked car with all wheels on dirt; drive and turn a sliding one a little."""
    velocity = car.local_speed_m_s
    if velocity[2] <= parameters.dirt_min_speed_m_s:
        return
    for wheel in range(WHEELS):
        if not car.wheel_has_ground_contact[wheel] or car.wheel_material[wheel] != _DIRT:
            return
    if car.brake > parameters.key_threshold:
        drag = parameters.dirt_brake_per_s
        add_force(car, -drag * velocity[0], -drag * velocity[1], -drag * velocity[2])
    elif car.gas > 0.0:
        speed_m_s = math.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1] + velocity[2] * velocity[2])
        sideways = velocity[0] / speed_m_s
        pull = car.gas * abs(sideways) * (20.0 * abs(sideways) + 1.0) * parameters.dirt_slide_drive
        pull /= (velocity[2] + 1.0) ** 2
        side = parameters.dirt_slide_side * sideways / (1.0 + parameters.dirt_slide_side_gas * car.gas)
        for wheel in range(WHEELS):
            if not car.wheel_is_sliding[wheel]:
                continue
            is_front = wheel < FRONT_WHEELS
            _add_force_at_wheel(
                car,
                parameters,
                wheel,
                -side if is_front else side,
                pull * (parameters.dirt_slide_front_factor if is_front else 1.0),
            )


@inner
def _add_force_at_wheel(car: CarRecord, parameters: ParametersRecord, wheel: int, x: float, z: float) -> None:
    point = parameters.wheel_points_m[wheel]
    center = parameters.center_of_mass_m
    arm_x = point[0] - center[0]
    arm_y = point[1] - center[1]
    arm_z = point[2] - center[2]
    add_force(car, x, 0.0, z)
    add_torque(car, arm_y * z, arm_z * x - arm_x * z, -arm_y * x)
