"""StadiumCar at 100 Hz: placement on a track, and one tick.

The order within a substep is the game's. Forces follow from the previous substep's contacts, so drive, grip and
gravity lag a contact by one substep.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.physics.chassis import (
    add_air_control,
    add_bumps,
    add_gravity_and_drag,
    add_lateral_grip,
    add_springs,
    add_wall_slow_down,
    add_yaw_and_roll,
    update_steering,
)
from trackmania_rl.simulator.physics.collision import World, collide
from trackmania_rl.simulator.physics.engine import (
    add_coast,
    add_dirt_extra,
    add_drive_and_brakes,
    update_engine,
    update_reversing,
)
from trackmania_rl.simulator.physics.rigid_body import integrate, set_rotation_from_quaternion, to_car
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.physics.vehicle_state import (
    NEVER_MS,
    VEHICLE_DTYPE,
    WHEELS,
    WORK_DTYPE,
    CarRecord,
    ParametersRecord,
    copy_state,
    is_grounded,
    new_vehicle,
)
from trackmania_rl.simulator.tracks.world import Surface, Track, locate

__all__ = ["NEVER_MS", "TICK_MS", "VEHICLE_DTYPE", "respawn_vehicle", "spawn_vehicle", "tick"]

TICK_MS = 10

_TURBO = int(Surface.TURBO)
_TURBO2 = int(Surface.TURBO2)
_ROULETTE = int(Surface.TURBO_ROULETTE)
_FREE_WHEEL = int(Surface.FREE_WHEEL)


def spawn_vehicle(track: Track, station_m: float = 0.0) -> npt.NDArray[np.void]:
    """Return a (1,) `VEHICLE_DTYPE` car at rest, 0.21 m above the road's centre line, as the game places it.

    At station 0 it is on the start line, in a block world at the start block's spawn.

    Raises:
        ValueError: if the station is not on the ribbon.
    """
    world = track.mesh_world
    if world is not None and station_m == 0.0:
        return _placed_vehicle(world.respawn_m[-1], world.respawn_rotation[-1])
    return _vehicle_above_road(track, station_m, float(STADIUM_CAR["spawn_height_m"][0]))


def respawn_vehicle(track: Track, gate: int) -> npt.NDArray[np.void]:
    """Return a (1,) `VEHICLE_DTYPE` car at rest after a respawn at a gate, counted over all laps, finish last."""
    world = track.mesh_world
    if world is not None:
        in_lap = gate % world.gates_per_lap
        return _placed_vehicle(world.respawn_m[in_lap], world.respawn_rotation[in_lap])
    stations_m = (*track.checkpoint_stations_m, track.finish_station_m)
    return _vehicle_above_road(track, stations_m[gate], float(STADIUM_CAR["respawn_height_m"][0]))


def _vehicle_above_road(track: Track, station_m: float, height_m: float) -> npt.NDArray[np.void]:
    ribbon = track.ribbon
    if not ribbon.station_m[0] <= station_m <= ribbon.station_m[-1]:
        first_m = ribbon.station_m[0]
        last_m = ribbon.station_m[-1]
        raise ValueError(f"station {station_m} m is not on {track.name}: give {first_m:.0f}..{last_m:.0f} m")
    section = int(np.argmin(np.abs(ribbon.station_m - station_m)))
    rotation = np.stack([ribbon.left[section], ribbon.up[section], ribbon.forward[section]], axis=1)
    position_m = ribbon.center_m[section] + height_m * ribbon.up[section]
    car = _placed_vehicle(position_m, rotation)
    place = locate(ribbon.records, section, *(float(x) for x in car["position_m"][0]))
    car["surface_index"] = place.section
    car["station_m"] = place.station_m
    return car


def _placed_vehicle(position_m: npt.NDArray[np.float64], rotation: npt.NDArray[np.float64]) -> npt.NDArray[np.void]:
    """Return a car at rest with the wheels pressed in."""
    car = new_vehicle()
    car["position_m"] = position_m
    car["rotation"] = rotation
    car["quaternion"] = quaternion_from_rotation(rotation)
    car["wheel_damper_absorb_m"] = STADIUM_CAR["damper_travel_m"]
    return car


def quaternion_from_rotation(rotation: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the (w, x, y, z) unit quaternion, w >= 0, for a (3, 3) rotation matrix.

    It starts from the largest component, so no precision is lost.
    """
    m = rotation
    squares = 0.25 * np.array(
        [
            1.0 + m[0, 0] + m[1, 1] + m[2, 2],
            1.0 + m[0, 0] - m[1, 1] - m[2, 2],
            1.0 - m[0, 0] + m[1, 1] - m[2, 2],
            1.0 - m[0, 0] - m[1, 1] + m[2, 2],
        ]
    )
    w_x = m[2, 1] - m[1, 2]
    w_y = m[0, 2] - m[2, 0]
    w_z = m[1, 0] - m[0, 1]
    x_y = m[1, 0] + m[0, 1]
    x_z = m[0, 2] + m[2, 0]
    y_z = m[2, 1] + m[1, 2]
    products = 0.25 * np.array([[0, w_x, w_y, w_z], [w_x, 0, x_y, x_z], [w_y, x_y, 0, y_z], [w_z, x_z, y_z, 0]])
    largest = int(np.argmax(squares))
    products[largest, largest] = squares[largest]
    quaternion = products[largest] / math.sqrt(squares[largest])
    return quaternion if quaternion[0] >= 0.0 else -quaternion


@compiled
def tick(
    car: npt.NDArray[np.void], gas: float, brake: float, steer: float, world: World, parameters: npt.NDArray[np.void]
) -> None:
    """Drive the (1,) `VEHICLE_DTYPE` car for 10 ms, in place; gas and brake 0..1, steer -1 left .. 1 right."""
    car_floats = car.view(np.float32)
    car_integers = car.view(np.int32)
    within_tick = np.zeros(1, WORK_DTYPE)
    work_floats = within_tick.view(np.float64)
    work_integers = within_tick.view(np.int64)
    work = within_tick[0]
    constants = parameters[0]
    copy_state(car_floats, car_integers, work_floats, work_integers)
    set_rotation_from_quaternion(work)
    work.gas, work.brake, work.steer = gas, brake, steer
    tick_s = 0.001 * TICK_MS
    v = work.velocity_m_s
    w = work.angular_velocity_rad_s
    rates = math.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]) + math.sqrt(w[0] * w[0] + w[1] * w[1] + w[2] * w[2])
    substeps = int(tick_s * rates / constants.substep_length_m) + 1
    for _ in range(substeps):
        _substep(work, constants, world, tick_s / substeps)
    work.clock_ms += TICK_MS
    copy_state(work_floats, work_integers, car_floats, car_integers)


@compiled(inline="always")
def _substep(car: CarRecord, parameters: ParametersRecord, world: World, dt: float) -> None:
    grounded = is_grounded(car)
    add_bumps(car, parameters)
    update_engine(car, parameters, grounded, dt)
    update_steering(car, parameters, dt)
    velocity = car.velocity_m_s
    spin = car.angular_velocity_rad_s
    local = car.local_speed_m_s
    local_spin = car.spin_rad_s
    local[0], local[1], local[2] = to_car(car, velocity[0], velocity[1], velocity[2])
    local_spin[0], local_spin[1], local_spin[2] = to_car(car, spin[0], spin[1], spin[2])
    for i in range(3):
        car.torque_rad_s2[i] = 0.0
    add_springs(car, parameters, dt)
    add_gravity_and_drag(car, parameters)
    car.was_grounded = 1 if grounded else 0
    update_reversing(car, parameters)
    add_coast(car, parameters)
    add_wall_slow_down(car, parameters)
    if grounded:
        add_lateral_grip(car, parameters)
        add_yaw_and_roll(car, parameters)
        add_drive_and_brakes(car, parameters)
        add_dirt_extra(car, parameters)
        for i in range(3):
            car.stored_angular_velocity_rad_s[i] = local_spin[i]
    else:
        add_air_control(car, parameters)
    _apply_surface_effects(car, parameters, world, dt)
    integrate(car, parameters, dt)
    collide(car, parameters, world)


@compiled(inline="always")
def _apply_surface_effects(car: CarRecord, parameters: ParametersRecord, world: World, dt: float) -> None:
    """Apply pads: turbo pads still push for a while after contact, free-wheel pads cut the engine."""
    car.turbo_remaining_s = max(car.turbo_remaining_s - dt, 0.0)
    for wheel in range(WHEELS):
        material = car.wheel_material[wheel]
        if not car.wheel_has_ground_contact[wheel]:
            continue
        if material == _FREE_WHEEL:
            car.is_freewheeling = 1
        elif material in (_TURBO, _ROULETTE, _TURBO2):
            pad = world.records[car.surface_index].forward
            rotation = car.rotation
            along = pad[0] * rotation[0, 2] + pad[1] * rotation[1, 2] + pad[2] * rotation[2, 2]
            factor = parameters.turbo_factor
            duration_s = parameters.turbo_duration_s
            if material == _TURBO2:
                factor = parameters.turbo2_factor
                duration_s = parameters.turbo2_duration_s
            car.turbo_boost_factor = factor * along
            car.turbo_remaining_s = duration_s
