"""Scripted driver: follows the middle of the road with keyboard keys and brakes for corners.

The planned speed in a corner is the one at which full steering holds the radius; before it, the one from which a
planned deceleration reaches that speed. Pure pursuit gives the curvature to a point ahead. The
steering share becomes whole key presses (first-order sigma-delta modulation). One decision takes 50 ms.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.simulator.compiled import compiled, inner
from trackmania_rl.simulator.physics.vehicle import TICK_MS, spawn_vehicle, tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Ribbon, Road, Surface, Track, road_of

TICKS_PER_DECISION = 5
DECISION_MS = TICKS_PER_DECISION * TICK_MS

# Full keyboard steer at full throttle on level asphalt: the radius held at each speed.
_STEER_SPEED_KMH = np.array([40.0, 60, 80, 100, 120, 140, 160, 180, 200, 220, 250, 280, 300, 330, 360, 400, 500])
_STEER_RADIUS_M = np.array(
    [8.4, 10.4, 12.5, 15.7, 20.4, 26.1, 32.5, 39.7, 48.3, 55.6, 68.1, 82.6, 93.7, 105, 117, 133, 177]
)
# Surface factors of the four wheels' side force (about 4 x 75 m/s^2 on asphalt) and of the brakes.
_SIDE_FORCE_M_S2 = 300.0
_GRIP_OF_SURFACE = {Surface.GRASS: 0.15, Surface.DIRT: 0.25, Surface.ICE: 0.0, Surface.SAND: 0.5}
_BRAKE_OF_SURFACE = {Surface.GRASS: 0.05, Surface.DIRT: 0.4, Surface.ICE: 0.0}
_GRIP_RESERVE = 0.7
_LEAST_PLANNED_SPEED_M_S = 8.0
_RADIUS_WINDOW_M = 6.0

_DEEPEST_M = 20.0

_LOG_DTYPE = np.dtype(
    [
        ("keys", np.uint8, (4,)),  # 0/1; numba has no arrays of bools in records
        ("speed_m_s", np.float64),
        ("lateral_m", np.float64),
        ("position_m", np.float64, (3,)),
        ("station_m", np.float64),  # at the decision's end
        ("is_off_road", np.bool_),
        ("wall_ticks", np.int64),
    ]
)

FloatArray = npt.NDArray[np.float64]


class DriverSettings(NamedTuple):
    """Scripted driver's settings."""

    cornering: float  # share of the radius-limited corner speed; above 1 relies on the road's width
    braking_m_s2: float  # planned, on asphalt
    brake_tolerance_m_s: float  # speed above the plan that is coasted off; beyond it the brake is pressed
    lookahead_s: float  # time to the point steered for
    lookahead_min_m: float
    inside_share: float  # of the half-width, to a corner's inside


CAREFUL_DRIVER = DriverSettings(
    cornering=0.75,
    braking_m_s2=18.0,
    brake_tolerance_m_s=2.0,
    lookahead_s=0.35,
    lookahead_min_m=6.0,
    inside_share=0.3,
)
"""Finishes every shipped track without touching a wall: some 30 s on the default track."""
FAST_DRIVER = DriverSettings(
    cornering=1.05,
    braking_m_s2=28.0,
    brake_tolerance_m_s=3.0,
    lookahead_s=0.55,
    lookahead_min_m=6.0,
    inside_share=0.8,
)
"""Found by search: near this driver's best on every shipped track, without touching a wall."""


@dataclass(frozen=True)
class DriveReport:
    """One scripted race, T decisions."""

    race_time_ms: int | None  # None without a finish
    reached_m: float
    wall_contact_ms: int
    off_road_ms: int  # time with the car's origin beyond the road's border, or fallen off it
    keys: npt.NDArray[np.bool_]  # (T, 4) accelerate, brake, left, right
    speed_m_s: FloatArray  # (T,)
    lateral_m: FloatArray  # (T,) distance from the road's middle, positive to the left
    position_m: FloatArray  # (T, 3)


def plan_speed_m_s(ribbon: Ribbon, settings: DriverSettings) -> FloatArray:
    """Return the planned speed (P,) at every cross-section: corner speeds and the braking before them."""
    heading_rad = np.unwrap(np.arctan2(ribbon.forward[:, 0], ribbon.forward[:, 2]))
    reach = round(_RADIUS_WINDOW_M / (2.0 * RIBBON_SPACING_M))
    padded_rad = np.pad(heading_rad, reach, mode="edge")
    curvature_per_m = np.abs(padded_rad[2 * reach :] - padded_rad[: -2 * reach]) / (2.0 * reach * RIBBON_SPACING_M)
    radius_m = 1.0 / np.maximum(curvature_per_m, 1e-6)
    grip = _by_surface(ribbon.surface, _GRIP_OF_SURFACE)
    corner_speed = np.interp(radius_m, _STEER_RADIUS_M, _STEER_SPEED_KMH / 3.6)
    corner_speed = np.where(radius_m > _STEER_RADIUS_M[-1], np.inf, corner_speed)
    grip_speed = np.sqrt(_GRIP_RESERVE * _SIDE_FORCE_M_S2 * grip * radius_m)
    speed = np.maximum(settings.cornering * np.minimum(corner_speed, grip_speed), _LEAST_PLANNED_SPEED_M_S)
    braking = settings.braking_m_s2 * _by_surface(ribbon.surface, _BRAKE_OF_SURFACE)
    return _with_braking_zones(speed, braking)


def drive(
    track: Track,
    settings: DriverSettings = CAREFUL_DRIVER,
    *,
    top_speed_m_s: float = math.inf,
    max_race_ms: int = 300_000,
) -> DriveReport:
    """Drive a track from the start until the finish, a fall off the road, or ``max_race_ms``.

    Raises:
        UserError: if the track is a map's blocks.
    """
    log = np.zeros(max_race_ms // DECISION_MS, dtype=_LOG_DTYPE)
    car = spawn_vehicle(track)
    road = road_of(track)
    plan_m_s = np.minimum(plan_speed_m_s(road, settings), top_speed_m_s)
    finish_tick, decisions = _drive(car, road, road.road, plan_m_s, settings, STADIUM_CAR, track.finish_station_m, log)
    log = log[:decisions]
    return DriveReport(
        race_time_ms=finish_tick * TICK_MS if finish_tick >= 0 else None,
        reached_m=float(log["station_m"].max()),
        wall_contact_ms=TICK_MS * int(log["wall_ticks"].sum()),
        off_road_ms=DECISION_MS * int(log["is_off_road"].sum()),
        keys=log["keys"].astype(np.bool_),
        speed_m_s=log["speed_m_s"],
        lateral_m=log["lateral_m"],
        position_m=log["position_m"],
    )


def _by_surface(surface: npt.NDArray[np.int64], factors: dict[Surface, float]) -> FloatArray:
    values = np.ones(len(surface))
    for kind, factor in factors.items():
        values[surface == kind] = factor
    return values


@compiled
def _with_braking_zones(speed_m_s: FloatArray, braking_m_s2: FloatArray) -> FloatArray:
    planned = speed_m_s.copy()
    for k in range(len(planned) - 2, -1, -1):
        reachable = math.sqrt(planned[k + 1] ** 2 + 2.0 * braking_m_s2[k] * RIBBON_SPACING_M)
        planned[k] = min(planned[k], reachable)
    return planned


@inner
def _wanted_steer(car, ribbon: Ribbon, settings: DriverSettings, speed: float) -> float:  # type: ignore[no-untyped-def]
    """Return the steering share (full is 1) towards the point ahead, positive to the left."""
    ahead_m = max(settings.lookahead_min_m, settings.lookahead_s * speed)
    here = car[0].surface_index
    there = min(here + int(ahead_m / RIBBON_SPACING_M), ribbon.station_m.shape[0] - 1)
    turn_x = ribbon.forward[there, 0] * ribbon.left[here, 0] + ribbon.forward[there, 2] * ribbon.left[here, 2]
    inside_m = settings.inside_share * ribbon.half_width_m[there] * min(max(2.0 * turn_x, -1.0), 1.0)
    x = ribbon.center_m[there, 0] + inside_m * ribbon.left[there, 0] - car[0].position_m[0]
    y = ribbon.center_m[there, 1] + inside_m * ribbon.left[there, 1] - car[0].position_m[1]
    z = ribbon.center_m[there, 2] + inside_m * ribbon.left[there, 2] - car[0].position_m[2]
    rotation = car[0].rotation
    to_left = rotation[0, 0] * x + rotation[1, 0] * y + rotation[2, 0] * z
    to_front = rotation[0, 2] * x + rotation[1, 2] * y + rotation[2, 2] * z
    curvature_per_m = 2.0 * to_left / max(to_left**2 + to_front**2, 1.0)
    radius_m = np.interp(3.6 * speed, _STEER_SPEED_KMH, _STEER_RADIUS_M)
    return min(max(curvature_per_m * radius_m, -1.5), 1.5)


@compiled
def _drive(  # type: ignore[no-untyped-def]
    car,
    ribbon: Ribbon,
    world: Road,
    plan_m_s: FloatArray,
    settings: DriverSettings,
    parameters,
    finish_station_m: float,
    log,
) -> tuple[int, int]:
    """Drive and fill the log; return the finish tick (-1 for none) and the decision count."""
    steer_debt = 0.0
    for decision in range(log.shape[0]):
        entry = log[decision]
        here = car[0].surface_index
        away_m = car[0].position_m - ribbon.center_m[here]
        speed = math.sqrt(np.sum(car[0].velocity_m_s.astype(np.float64) ** 2))
        entry.position_m[:] = car[0].position_m
        entry.speed_m_s = speed
        entry.lateral_m = np.sum(away_m * ribbon.left[here])
        height_m = np.sum(away_m * ribbon.up[here])
        entry.is_off_road = abs(entry.lateral_m) > ribbon.half_width_m[here] or height_m < -1.0
        if height_m < -_DEEPEST_M:
            return -1, decision + 1

        steer_debt = min(max(steer_debt + _wanted_steer(car, ribbon, settings, speed), -1.0), 1.0)
        steer_key = round(steer_debt)
        steer_debt -= steer_key
        soon = min(here + int(speed * 0.001 * DECISION_MS / RIBBON_SPACING_M), plan_m_s.shape[0] - 1)
        excess_m_s = speed - plan_m_s[soon]
        gas = 1.0 if excess_m_s <= 0.0 else 0.0
        brake = 1.0 if excess_m_s > settings.brake_tolerance_m_s else 0.0
        entry.keys[0] = gas > 0.0
        entry.keys[1] = brake > 0.0
        entry.keys[2] = steer_key > 0
        entry.keys[3] = steer_key < 0

        for step in range(TICKS_PER_DECISION):
            tick(car, gas, brake, -float(steer_key), world, parameters)
            entry.wall_ticks += car[0].has_any_lateral_contact
            entry.station_m = car[0].station_m
            if car[0].station_m >= finish_station_m:
                return decision * TICKS_PER_DECISION + step, decision + 1
    return -1, log.shape[0]
