"""One race as the planner sees it: a car, its gates, and actions of 50 ms, all in compiled code.

It drives with `gates.drive`, as every race of the simulator does, so an action sequence gives the same car and the
same times here, through the socket and in a replay, bit for bit.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from config_files.inputs_list import inputs
from trackmania_rl.compiled import compiler_for
from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.simulator.compiled import SOURCES
from trackmania_rl.simulator.inputs import controls_of_keys
from trackmania_rl.simulator.physics.gates import Gates, drive, road_gates_of_track
from trackmania_rl.simulator.physics.vehicle import TICK_MS, VEHICLE_DTYPE, spawn_vehicle
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.physics.vehicle_state import CarRecord
from trackmania_rl.simulator.tracks.world import Ribbon, Track, road_of

TICKS_PER_ACTION: Final = 5
ACTION_MS: Final = TICKS_PER_ACTION * TICK_MS

KEYS: Final = tuple(KeyState(**keys) for keys in inputs)
"""The keys of each action: the ones that agents choose from."""
CONTROLS: Final = np.array([controls_of_keys(keys) for keys in KEYS])
"""(A, 3) float64: gas, brake and steer of each action."""

LOST_BEYOND_M: Final = 5.0
"""A car this far below its road, or past a gate that it missed, cannot finish any more."""

compiled = compiler_for("planner", [*SOURCES, *Path(__file__).parent.glob("*.py")])
"""Decorator of the planner's compiled functions."""


class Course(NamedTuple):
    """What a race needs of its track; numba takes it as it is.

    Attributes:
        ribbon: the road.
        gates: all laps' gates, the finish last.
        parameters: (1,) the car's constants.
        controls: (A, 3) float64, gas, brake and steer of each action.
    """

    ribbon: Ribbon
    gates: Gates
    parameters: npt.NDArray[np.void]
    controls: npt.NDArray[np.float64]


class Field(NamedTuple):
    """N races at one instant; numba takes it as it is.

    Attributes:
        cars: (N,) VEHICLE_DTYPE.
        gate_is_passed: (N, gates per lap) int32, 0/1 in the current lap.
        passed_count: (N,) int64.
        times_ms: (N, G) int32, official times of the passed gates; what is beyond `passed_count` means nothing.
    """

    cars: npt.NDArray[np.void]
    gate_is_passed: npt.NDArray[np.int32]
    passed_count: npt.NDArray[np.int64]
    times_ms: npt.NDArray[np.int32]


class Drive(NamedTuple):
    """An action sequence driven from the start.

    Attributes:
        finish_ms: official time, -1 where it does not finish.
        n_actions: actions used, the one in which the race ended included.
        overshoot_m: how far beyond the finish the car is after the tick of the finish: of two equal times, the larger
            one is the earlier.
        states: the race before each action, `n_actions` of them.
    """

    finish_ms: int
    n_actions: int
    overshoot_m: float
    states: Field


def course_of(track: Track) -> Course:
    """Return a track as the planner drives it.

    Raises:
        UserError: if the track is a map's blocks.
    """
    return Course(road_of(track), road_gates_of_track(track), STADIUM_CAR, CONTROLS)


def empty_field(course: Course, n_races: int) -> Field:
    """Return room for so many races."""
    n_gates, per_lap = len(course.gates.station_m), course.gates.per_lap
    return Field(
        np.zeros(n_races, VEHICLE_DTYPE),
        np.zeros((n_races, per_lap), dtype=np.int32),
        np.zeros(n_races, dtype=np.int64),
        np.zeros((n_races, n_gates), dtype=np.int32),
    )


def start_of(track: Track) -> Field:
    """Return one race at its start."""
    field = empty_field(course_of(track), 1)
    field.cars[:] = spawn_vehicle(track)
    return field


def drive_actions(track: Track, actions: npt.NDArray[np.int8]) -> Drive:
    """Drive (T,) actions from the start, each for 50 ms, until the finish or a place from which there is none."""
    course = course_of(track)
    states = empty_field(course, len(actions) + 1)
    copy_race(start_of(track), 0, states, 0)
    finish_ms, n_actions, overshoot_m = follow(course, states, actions, 0)
    kept = Field(
        states.cars[:n_actions],
        states.gate_is_passed[:n_actions],
        states.passed_count[:n_actions],
        states.times_ms[:n_actions],
    )
    return Drive(finish_ms, n_actions, overshoot_m, kept)


@compiled
def copy_race(source: Field, i: int, target: Field, j: int) -> None:
    """Make race `j` of one field what race `i` of another is."""
    target.cars[j] = source.cars[i]
    target.gate_is_passed[j] = source.gate_is_passed[i]
    target.passed_count[j] = source.passed_count[i]
    target.times_ms[j] = source.times_ms[i]


@compiled
def act(course: Course, field: Field, i: int, action: int, n_ticks: int) -> bool:
    """Drive race `i` on by one action; return whether it finished."""
    n_gates = len(course.gates.station_m)
    held = (course.controls[action, 0], course.controls[action, 1], course.controls[action, 2])
    left = n_ticks
    while left > 0 and field.passed_count[i] < n_gates:
        made, field.passed_count[i] = drive(
            field.cars[i : i + 1],
            held,
            course.ribbon,
            course.parameters,
            course.gates,
            field.gate_is_passed[i],
            field.times_ms[i],
            field.passed_count[i],
            left,
        )
        left -= made
    return bool(field.passed_count[i] == n_gates)


@compiled
def is_lost(course: Course, field: Field, i: int) -> bool:
    """Whether race `i` cannot be finished any more: the car fell, or missed a gate."""
    car = field.cars[i]
    section = car.ribbon_index
    height_m = 0.0
    for axis in range(3):
        height_m += (car.position_m[axis] - course.ribbon.center_m[section, axis]) * course.ribbon.up[section, axis]
    next_gate = min(field.passed_count[i], len(course.gates.station_m) - 1)
    return height_m < -LOST_BEYOND_M or car.station_m > course.gates.station_m[next_gate] + LOST_BEYOND_M


@compiled
def follow(course: Course, states: Field, actions: npt.NDArray[np.int8], first: int) -> tuple[int, int, float]:
    """Drive actions on from `states[first]`, writing the race before each action to `states`.

    Returns:
        Official time of the finish (-1 for none), actions used from the race's start, metres beyond the finish.
    """
    for k in range(first, len(actions)):
        copy_race(states, k, states, k + 1)
        if act(course, states, k + 1, actions[k], TICKS_PER_ACTION):
            overshoot_m = states.cars[k + 1].station_m - course.gates.station_m[-1]
            return states.times_ms[k + 1, -1], k + 1, overshoot_m
        if is_lost(course, states, k + 1):
            return -1, k + 1, 0.0
    return -1, len(actions), 0.0


@compiled
def pose(course: Course, car: CarRecord) -> tuple[float, float, float, float]:
    """A car seen from the road: metres to the left, radians of the car and of its motion to the left, m/s along it."""
    section = car.ribbon_index
    ribbon = course.ribbon
    lateral_m = pointing_left = pointing_ahead = left_m_s = ahead_m_s = 0.0
    for axis in range(3):
        left, ahead = ribbon.left[section, axis], ribbon.forward[section, axis]
        lateral_m += (car.position_m[axis] - ribbon.center_m[section, axis]) * left
        pointing_left += car.rotation[axis, 2] * left
        pointing_ahead += car.rotation[axis, 2] * ahead
        left_m_s += car.velocity_m_s[axis] * left
        ahead_m_s += car.velocity_m_s[axis] * ahead
    heading_rad = math.atan2(pointing_left, pointing_ahead)
    return lateral_m, heading_rad, math.atan2(left_m_s, max(ahead_m_s, 1.0)), ahead_m_s


@compiled
def smooth_finish_ms(course: Course, finished: Field, i: int) -> float:
    """A finished race's time to fractions of a tick, for comparing races; the official one is floored to a tick."""
    speed_squared = 0.0
    for axis in range(3):
        speed_squared += finished.cars[i].velocity_m_s[axis] ** 2
    beyond_m = finished.cars[i].station_m - course.gates.station_m[-1]
    return finished.times_ms[i, -1] - 1000.0 * beyond_m / max(math.sqrt(speed_squared), 1.0)
