"""An estimate of the time from any state to the finish: what the beam search sorts its states by.

It is made of the best race so far, the reference. Along the line the car is a point with a speed: it speeds up as the
car does on level asphalt, and slows down where it is faster than the reference by more than a margin. Across the line,
a state is the worse the more it differs from the reference in place and direction. So a search looks for better races
near the reference, and the next one near what it found.
"""

from __future__ import annotations

import functools
import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.driving.racing import ACTION_MS, Course, Drive, compiled, drive_actions
from trackmania_rl.simulator.world import RIBBON_SPACING_M, Track, build_ribbon

N_SPEEDS: Final = 140
"""Speeds of the table: 0, 1, .. m/s."""
_ACTION_S: Final = 0.001 * ACTION_MS
_STRAIGHT_M: Final = 4000.0
_BRAKING_M_S2: Final = 30.0
_LEAST_SPEED_M_S: Final = 3.0
_ANY_SPEED_BEFORE_M: Final = 30.0
_WINDOW_M: Final = 10.0
"""A reference's speeds and detours are smoothed over twice this length."""

FloatArray = npt.NDArray[np.float64]


class EstimateSettings(NamedTuple):
    """How far from the reference a search may look.

    Attributes:
        speed_share: highest sensible speed, as a share of the reference's.
        speed_penalty_s3_m3: for each metre driven above that, times the square of the difference in m/s.
        lateral_penalty_s_m2: times the square of the distance from the reference across the road.
        angle_penalty_s_rad2: times the square of the difference in the car's direction, and in that of its motion.
        wall_penalty_s: for touching a wall.
    """

    speed_share: float = 1.05
    speed_penalty_s3_m3: float = 0.002
    lateral_penalty_s_m2: float = 0.005
    angle_penalty_s_rad2: float = 1.0
    wall_penalty_s: float = 0.05


class Estimate(NamedTuple):
    """The estimate, tabulated; numba takes it as it is.

    Attributes:
        to_go_s: (P, N_SPEEDS) seconds to the finish from every cross-section at every speed along the road.
        lateral_m: (P,) where the reference is across the road, positive to the left.
        heading_rad: (P,) where it points, seen from the road, positive to the left.
        motion_rad: (P,) where it moves, likewise.
        settings: the penalties.
    """

    to_go_s: FloatArray
    lateral_m: FloatArray
    heading_rad: FloatArray
    motion_rad: FloatArray
    settings: EstimateSettings


def estimate_of(track: Track, course: Course, reference: Drive, settings: EstimateSettings) -> Estimate:
    """Return the estimate around a race that was driven."""
    poses = np.array([pose(course, car) for car in reference.states.cars])
    station_m = reference.states.cars["station_m"].astype(np.float64)
    # A car that rolls backwards for a moment has several states at one place: the last of them counts.
    is_last = station_m < np.append(np.minimum.accumulate(station_m[::-1])[::-1][1:], np.inf)
    station_m, poses = station_m[is_last], poses[is_last]
    grid_m = track.ribbon.station_m
    lateral_m, heading_rad, motion_rad, speed_m_s = (np.interp(grid_m, station_m, column) for column in poses.T)
    along_m_s = np.diff(station_m) / (_ACTION_S * np.maximum(1, np.diff(np.flatnonzero(is_last))))
    stretch = np.interp(grid_m, station_m[1:], along_m_s / np.maximum(poses[1:, 3], 1.0))
    reach = round(_WINDOW_M / RIBBON_SPACING_M)
    stretch = np.clip(_windows(stretch, reach).mean(axis=1), 0.7, 1.4)
    highest_m_s = settings.speed_share * _windows(speed_m_s, reach // 2).max(axis=1) + 0.5
    highest_m_s[grid_m < _ANY_SPEED_BEFORE_M] = 2.0 * N_SPEEDS
    finish = int(np.searchsorted(grid_m, track.finish_station_m))
    to_go_s = _time_to_go(finish, highest_m_s, stretch, acceleration_m_s2(), settings.speed_penalty_s3_m3)
    return Estimate(to_go_s, lateral_m, heading_rad, motion_rad, settings)


@functools.cache
def acceleration_m_s2() -> FloatArray:
    """(N_SPEEDS,) acceleration at full throttle on level asphalt at every speed of the table."""
    line_m = np.zeros((int(_STRAIGHT_M / RIBBON_SPACING_M), 3))
    line_m[:, 2] = RIBBON_SPACING_M * np.arange(len(line_m))
    straight = Track("straight", build_ribbon(line_m, half_width_m=50.0), (), _STRAIGHT_M - 1.0)
    velocity_m_s = drive_actions(straight, np.zeros(1000, dtype=np.int8)).states.cars["velocity_m_s"]
    speed_m_s = np.maximum.accumulate(np.linalg.norm(velocity_m_s.astype(np.float64), axis=1))
    gained_m_s2 = _windows(np.diff(speed_m_s) / _ACTION_S, 10).mean(axis=1)
    return np.maximum(np.interp(np.arange(N_SPEEDS), speed_m_s[:-1], gained_m_s2), 0.05)


def _windows(values: FloatArray, reach: int) -> FloatArray:
    """(N, 2 * reach + 1) the values around each of (N,), the outermost ones repeated at the ends."""
    return np.lib.stride_tricks.sliding_window_view(np.pad(values, reach, mode="edge"), 2 * reach + 1)


@compiled
def _time_to_go(
    finish: int, highest_m_s: FloatArray, stretch: FloatArray, acceleration_m_s2: FloatArray, penalty: float
) -> FloatArray:
    """Go backwards from the finish, cross-section by cross-section."""
    to_go_s = np.zeros((len(highest_m_s), N_SPEEDS))
    for k in range(finish - 1, -1, -1):
        length_m = RIBBON_SPACING_M / stretch[k]
        for j in range(N_SPEEDS):
            speed = max(float(j), _LEAST_SPEED_M_S)
            too_fast = max(0.0, speed - highest_m_s[k])
            if too_fast > 0.0:
                after = math.sqrt(max(speed * speed - 2.0 * _BRAKING_M_S2 * length_m, 1.0))
            else:
                after = math.sqrt(speed * speed + 2.0 * acceleration_m_s2[int(speed)] * length_m)
                after = max(min(after, highest_m_s[k + 1]), min(speed, after))
            low = min(int(after), N_SPEEDS - 2)
            share = min(after - low, 1.0)
            rest_s = (1.0 - share) * to_go_s[k + 1, low] + share * to_go_s[k + 1, low + 1]
            to_go_s[k, j] = rest_s + 2.0 * length_m / (speed + after) + penalty * too_fast * too_fast * length_m
    return to_go_s


@compiled
def pose(course: Course, car) -> tuple[float, float, float, float]:  # type: ignore[no-untyped-def]
    """A car seen from the road: place across it, direction of the car and of its motion, speed along the road."""
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
def estimated_s(  # type: ignore[no-untyped-def]
    course: Course, estimate: Estimate, car, lateral_m: float, heading_rad: float, motion_rad: float, speed_m_s: float
) -> float:
    """Seconds to the finish, penalties included, of a car of which `pose` is known."""
    section = min(car.ribbon_index, len(estimate.to_go_s) - 2)
    low = min(max(int(speed_m_s), 0), N_SPEEDS - 2)
    share = min(max(speed_m_s - low, 0.0), 1.0)
    table, station_m = estimate.to_go_s, course.ribbon.station_m
    here_s = (1.0 - share) * table[section, low] + share * table[section, low + 1]
    next_s = (1.0 - share) * table[section + 1, low] + share * table[section + 1, low + 1]
    along = (car.station_m - station_m[section]) / (station_m[section + 1] - station_m[section])
    settings = estimate.settings
    off_m = lateral_m - estimate.lateral_m[section]
    turned_rad = heading_rad - estimate.heading_rad[section]
    drifted_rad = motion_rad - estimate.motion_rad[section]
    penalty_s = settings.lateral_penalty_s_m2 * off_m * off_m
    penalty_s += settings.angle_penalty_s_rad2 * (turned_rad * turned_rad + drifted_rad * drifted_rad)
    if car.has_any_lateral_contact:
        penalty_s += settings.wall_penalty_s
    return here_s + along * (next_s - here_s) + penalty_s
