"""Replay windows: short stretches of a replay, driven by the simulated car open loop with the replay's inputs.

A window begins with the car as in the ghost and ends a second later; the distance from the ghost then measures the car
and the world of blocks. State that a ghost does not hold follows from its race so far (`ghost_race`); which wheels
slide is tried out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from research.replay_windows.ghost_motion import FloatArray, rotation_vectors
from research.replay_windows.ghost_race import ENGINE_FIELDS, GhostRace
from trackmania_rl.simulator.compiled import compiled
from trackmania_rl.simulator.physics.engine import KMH_PER_M_S
from trackmania_rl.simulator.physics.vehicle import tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.physics.vehicle_state import WHEELS, new_vehicle
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh, ground_under
from trackmania_rl.simulator.tracks.world import Ground
from trackmania_rl.track.pieces import CELL_M
from trackmania_rl.track.placed_blocks import to_world

LENGTH_MS: Final = 1000
EVERY_MS: Final = 500
LEAST_DAMPER_M: Final = 0.0025  # of a loaded wheel
NEAR_RESPAWN_MS: Final = 200  # a window that begins this near to a respawn is driven from it
GROUND_WITHIN_M: Final = 1.0  # range of the search for a wheel's ground
GOOD_M: Final = 0.05  # a window that ends this near with no wheel sliding needs no other try

FITTED_SAMPLES: Final = 2  # samples to whose headings the initial yaw rate is fitted
PROBE_RAD_S: Final = 0.05

FLAGS: Final = tuple(sorted(itertools.product((0, 1), repeat=WHEELS), key=sum))
"""Sliding wheels at a window's beginning: none first."""


@dataclass(frozen=True)
class Window:
    """Stretch of a ghost's race."""

    start_ms: int  # race time at which it is driven from; a sample's, or that of a respawn
    samples: npt.NDArray[np.int64]  # indices of the samples that are compared
    block: str  # name of the block at its beginning, "" where there is none


@dataclass(frozen=True)
class WindowResult:
    """Result of a window; K samples, the first at its beginning."""

    window: Window
    rotation: FloatArray  # (K, 3, 3) axes of the simulated car
    position_m: FloatArray  # (K,) its distance from the ghost
    speed_kmh: FloatArray  # (K,) how much faster it was
    attitude_deg: FloatArray  # (K,) angle between the two cars' attitudes


def windows_of(race: GhostRace, length_ms: int = LENGTH_MS, every_ms: int = EVERY_MS) -> list[Window]:
    """Cut a race into windows, one at every `every_ms` whose whole length was sampled and holds no respawn.

    A window that begins in the fall after a respawn, or just before one, is driven from the respawn.

    Raises:
        ValueError: if a length is not a positive multiple of the time between samples.
    """
    times_ms = race.motion.time_ms
    period_ms = int(times_ms[1] - times_ms[0])
    if min(length_ms, every_ms) <= 0 or length_ms % period_ms or every_ms % period_ms:
        raise ValueError(f"windows of {length_ms} every {every_ms} ms: the ghost has a sample every {period_ms} ms")
    starts_ms = range(0, int(times_ms[-1]) - length_ms + 1, every_ms)
    windows = (window_at(race, start_ms, start_ms + length_ms) for start_ms in starts_ms)
    return [window for window in windows if window is not None]


def window_at(race: GhostRace, start_ms: int, end_ms: int) -> Window | None:
    """Return the window between two samples' times; None if a respawn is within it."""
    motion = race.motion
    for respawn_ms in race.respawn_ms:
        if abs(respawn_ms - start_ms) <= NEAR_RESPAWN_MS:
            start_ms = respawn_ms
        elif start_ms < respawn_ms < end_ms:
            return None
    samples = np.flatnonzero((motion.time_ms >= start_ms) & (motion.time_ms <= end_ms))
    block = race.grid.under(motion.position_m[samples[0]])
    return Window(start_ms, samples, "" if block is None else block.name)


def drive_window(race: GhostRace, window: Window, world: SurfaceMesh) -> WindowResult:
    """Drive a window with the replay's inputs; of the tried sliding wheels, return the best result."""
    first = _initial_car(race, window, world)
    if _is_at_rest(race, window):
        return _drive(race, window, world, first)
    best: WindowResult | None = None
    for sliding in FLAGS:
        first["wheel_is_sliding"] = sliding
        car = _with_fitted_turn(race, window, world, first)
        result = _drive(race, window, world, car)
        if best is None or result.position_m.mean() < best.position_m.mean():
            best = result
        if best.position_m.max() <= GOOD_M:
            break
    assert best is not None
    return best


def _initial_car(race: GhostRace, window: Window, world: SurfaceMesh) -> npt.NDArray[np.void]:
    """Return the car at a window's beginning, (1,) VEHICLE_DTYPE, no wheel sliding."""
    if _is_at_rest(race, window):
        return _resting_car(race, window, world)
    motion, at = race.motion, int(window.samples[0])
    tick_number = race.tick_of(window.start_ms)
    car = new_vehicle()
    for field in ENGINE_FIELDS:
        car[field] = race.engine[field][tick_number]
    rotation = motion.rotation[at]
    car["position_m"], car["quaternion"], car["rotation"] = motion.position_m[at], motion.quaternion[at], rotation
    car["velocity_m_s"], car["angular_velocity_rad_s"] = motion.velocity_m_s[at], motion.spin_rad_s[at]
    car["local_speed_m_s"] = rotation.T @ motion.velocity_m_s[at]
    car["stored_angular_velocity_rad_s"] = rotation.T @ motion.spin_rad_s[at]
    car["turning_rate"] = race.turning_rate[tick_number]
    car["turbo_remaining_s"] = race.turbo_remaining_s[tick_number]
    car["turbo_boost_factor"] = race.turbo_factor[tick_number]
    _set_wheels(car, world)
    return car


def _is_at_rest(race: GhostRace, window: Window) -> bool:
    return window.start_ms == 0 or window.start_ms in race.respawn_ms


def _resting_car(race: GhostRace, window: Window, world: SurfaceMesh) -> npt.NDArray[np.void]:
    """Return a car at the start or just respawned: above the road, with its dampers out."""
    motion, car, at = race.motion, new_vehicle(), int(window.samples[0])
    position_m = motion.position_m[at].copy()
    if window.start_ms > 0:
        ground = _ground_at(world, position_m)
        position_m += (float(STADIUM_CAR["respawn_height_m"][0]) - ground.height_m) * np.array(ground.normal)
        block = race.grid.under(motion.position_m[at])
        if block is not None and block.gate is not None:
            before_m = 0.5 * CELL_M - float(STADIUM_CAR["respawn_before_gate_m"][0])
            spawn_m = to_world(np.array([0.5 * CELL_M, 0.0, before_m]), block)
            position_m[[0, 2]] = spawn_m[[0, 2]]
    car["position_m"], car["quaternion"], car["rotation"] = position_m, motion.quaternion[at], motion.rotation[at]
    car["wheel_damper_absorb_m"] = STADIUM_CAR["damper_travel_m"]
    return car


def _set_wheels(car: npt.NDArray[np.void], world: SurfaceMesh) -> None:
    """Set dampers and contacts from the wheels' heights above the ground."""
    rotation = car["rotation"][0].astype(np.float64)
    radii_m, travel_m = STADIUM_CAR["wheel_radii_m"][0], float(STADIUM_CAR["damper_travel_m"][0])
    for wheel, point_m in enumerate(STADIUM_CAR["wheel_points_m"][0]):
        hub_m = car["position_m"][0] + rotation @ point_m
        ground = _ground_at(world, hub_m)
        normal = rotation.T @ np.array(ground.normal)
        above_m = ground.height_m - float(np.linalg.norm(normal * radii_m)) if ground.exists else np.inf
        car["wheel_damper_absorb_m"][0, wheel] = np.clip(above_m, LEAST_DAMPER_M, travel_m)
        if above_m < travel_m:
            car["wheel_has_ground_contact"][0, wheel] = 1
            car["wheel_material"][0, wheel] = ground.material
            car["wheel_contact_normal"][0, wheel] = normal
    car["was_grounded"] = int(car["wheel_has_ground_contact"].any())


def _ground_at(world: SurfaceMesh, point_m: FloatArray) -> Ground:
    return ground_under(world, *(float(axis) for axis in point_m), GROUND_WITHIN_M)


def _with_fitted_turn(
    race: GhostRace, window: Window, world: SurfaceMesh, car: npt.NDArray[np.void]
) -> npt.NDArray[np.void]:
    """Return the car with the turn about its own up that keeps its heading nearest to the ghost's for 0.2 s.

    Samples every 0.1 s are too far apart for the yaw rate while the driver taps.
    """
    early = replace(window, samples=window.samples[: 1 + FITTED_SAMPLES])
    up = race.motion.rotation[window.samples[0], :, 1]
    headings = []
    for extra_rad_s in (0.0, PROBE_RAD_S):
        probe = car.copy()
        probe["angular_velocity_rad_s"] += extra_rad_s * up
        headings.append(_turned_beyond_rad(race, early, _drive(race, early, world, probe), up))
    change = (headings[1] - headings[0]) / PROBE_RAD_S
    fitted = car.copy()
    if change @ change > 0.0:
        fitted["angular_velocity_rad_s"] -= (headings[0] @ change) / (change @ change) * up
    return fitted


def _turned_beyond_rad(race: GhostRace, window: Window, result: WindowResult, axis: FloatArray) -> FloatArray:
    """Return (K - 1,) the car's turn about an axis (3,) beyond the ghost's, after each sample."""
    between = result.rotation[1:] @ np.swapaxes(race.motion.rotation[window.samples[1:]], 1, 2)
    return np.asarray(rotation_vectors(between) @ axis)


def _drive(race: GhostRace, window: Window, world: SurfaceMesh, first: npt.NDArray[np.void]) -> WindowResult:
    motion, car = race.motion, first.copy()
    position_m, velocity_m_s, rotation = [], [], []
    time_ms = window.start_ms
    for at in window.samples:
        now, time_ms = time_ms, int(motion.time_ms[at])
        _tick(car, race.controls[race.tick_of(now) : race.tick_of(time_ms)], world, STADIUM_CAR)
        position_m.append(car["position_m"][0].astype(np.float64))
        velocity_m_s.append(car["velocity_m_s"][0].astype(np.float64))
        rotation.append(car["rotation"][0].astype(np.float64))
    path_m, turned = np.array(position_m), np.array(rotation)
    between = np.einsum("kji,kji->k", turned, motion.rotation[window.samples])
    return WindowResult(
        window,
        turned,
        np.linalg.norm(path_m - motion.position_m[window.samples], axis=1),
        KMH_PER_M_S * (np.linalg.norm(np.array(velocity_m_s), axis=1) - motion.speed_m_s[window.samples]),
        np.degrees(np.arccos(np.clip(0.5 * (between - 1.0), -1.0, 1.0))),
    )


@compiled
def _tick(
    car: npt.NDArray[np.void], controls: FloatArray, world: SurfaceMesh, parameters: npt.NDArray[np.void]
) -> None:
    """Drive one tick with each of some controls (T, 3)."""
    for number in range(len(controls)):
        tick(car, controls[number, 0], controls[number, 1], controls[number, 2], world, parameters)
