"""An estimate of the time from any place and speed to the finish: what the beam search sorts its states by.

The car is reduced to a point on the line with a speed. It speeds up as the car does on level asphalt, and slows down
for every stretch that has a highest sensible speed. Those speeds come from the scripted driver's plan at first, and
then from the best race found so far, so that each search looks ahead with what the one before it learned.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.driving.racing import TICKS_PER_ACTION, Drive, compiled, drive_actions
from trackmania_rl.simulator.scripted_driver import DriverSettings, plan_speed_m_s
from trackmania_rl.simulator.world import RIBBON_SPACING_M, Edge, Track, build_ribbon

SPEED_STEP_M_S: Final = 1.0
N_SPEEDS: Final = 140
_STRAIGHT_M: Final = 4000.0
_BRAKING_M_S2: Final = 30.0
_LEAST_SPEED_M_S: Final = 3.0
_HOPEFUL_DRIVER: Final = DriverSettings(
    cornering=1.25,
    braking_m_s2=30.0,
    brake_tolerance_m_s=3.0,
    lookahead_s=0.55,
    lookahead_min_m=6.0,
    inside_share=0.8,
)

FloatArray = npt.NDArray[np.float64]


class SpeedProfile(NamedTuple):
    """What a race is expected to be like along the line.

    Attributes:
        highest_m_s: (P,) highest sensible speed at every cross-section.
        stretch: (P,) metres along the line per metre driven: above 1 where the inside of a corner is driven.
    """

    highest_m_s: FloatArray
    stretch: FloatArray


@functools.cache
def acceleration_m_s2() -> FloatArray:
    """(N_SPEEDS,) acceleration at full throttle on level asphalt at every speed of the table."""
    line_m = np.zeros((int(_STRAIGHT_M / RIBBON_SPACING_M), 3))
    line_m[:, 2] = RIBBON_SPACING_M * np.arange(len(line_m))
    straight = Track("straight", build_ribbon(line_m, half_width_m=50.0, edge=Edge.WALL), (), _STRAIGHT_M - 1.0)
    states = drive_actions(straight, np.zeros(1000, dtype=np.int8)).states
    speed_m_s = speeds_m_s(states.cars)
    gained_m_s2 = np.diff(speed_m_s) / (0.01 * TICKS_PER_ACTION)
    smooth_m_s2 = np.convolve(np.pad(gained_m_s2, 10, mode="edge"), np.full(21, 1 / 21), mode="valid")
    return np.maximum(np.interp(SPEED_STEP_M_S * np.arange(N_SPEEDS), speed_m_s[:-1], smooth_m_s2), 0.05)


def speeds_m_s(cars: npt.NDArray[np.void]) -> FloatArray:
    """(N,) speeds of cars."""
    return np.linalg.norm(cars["velocity_m_s"].astype(np.float64), axis=1)


def hopeful_profile(track: Track) -> SpeedProfile:
    """The scripted driver's plan, a little faster than it can be driven."""
    highest_m_s = plan_speed_m_s(track.ribbon, _HOPEFUL_DRIVER)
    return SpeedProfile(highest_m_s, np.ones(len(highest_m_s)))


def profile_of_drive(track: Track, drive: Drive, share: float, window_m: float = 10.0) -> SpeedProfile:
    """The speeds of a race that was driven, times `share`, and where it lay on the road."""
    station_m, speed_m_s = drive.states.cars["station_m"].astype(np.float64), speeds_m_s(drive.states.cars)
    furthest_m = np.maximum.accumulate(station_m)
    is_new = np.concatenate([[True], furthest_m[1:] > furthest_m[:-1] + 1e-3])
    station_m, speed_m_s = station_m[is_new], speed_m_s[is_new]
    grid_m = track.ribbon.station_m
    driven_m = np.concatenate([[0.0], np.cumsum(0.5 * (speed_m_s[1:] + speed_m_s[:-1]) * 0.01 * TICKS_PER_ACTION)])
    along = np.gradient(np.interp(grid_m, driven_at(station_m, grid_m), driven_m), grid_m)
    reach = max(1, round(window_m / RIBBON_SPACING_M))
    kernel = np.full(2 * reach + 1, 1.0 / (2 * reach + 1))
    stretch = np.clip(
        1.0 / np.clip(np.convolve(np.pad(along, reach, mode="edge"), kernel, "valid"), 0.5, 2.0), 0.8, 1.3
    )
    speed_at = np.interp(grid_m, station_m, speed_m_s)
    padded = np.pad(speed_at, reach, mode="edge")
    highest = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(axis=1)
    is_before = grid_m < 30.0  # at the start every speed is sensible
    return SpeedProfile(np.where(is_before, 1e3, share * highest + 0.5), stretch)


def driven_at(station_m: FloatArray, grid_m: FloatArray) -> FloatArray:
    """The stations themselves; `np.interp` wants them increasing."""
    assert (np.diff(station_m) > 0.0).all()
    return station_m


def time_to_go_s(track: Track, profile: SpeedProfile, penalty: float) -> FloatArray:
    """(P, N_SPEEDS) estimated seconds to the finish from every cross-section at every speed."""
    finish = int(np.searchsorted(track.ribbon.station_m, track.finish_station_m))
    return _time_to_go(finish, profile.highest_m_s, profile.stretch, acceleration_m_s2(), penalty)


@compiled
def _time_to_go(
    finish: int, highest_m_s: FloatArray, stretch: FloatArray, acceleration: FloatArray, penalty: float
) -> FloatArray:
    to_go = np.zeros((len(highest_m_s), N_SPEEDS))
    for k in range(len(highest_m_s) - 2, -1, -1):
        length_m = RIBBON_SPACING_M / stretch[k]
        for j in range(N_SPEEDS):
            speed = max(j * SPEED_STEP_M_S, _LEAST_SPEED_M_S)
            over = max(0.0, speed - highest_m_s[k])
            if over > 0.0:
                after = np.sqrt(max(speed * speed - 2.0 * _BRAKING_M_S2 * length_m, 1.0))
            else:
                index = min(int(speed / SPEED_STEP_M_S), N_SPEEDS - 1)
                after = min(np.sqrt(speed * speed + 2.0 * acceleration[index] * length_m), highest_m_s[k + 1])
                after = max(after, speed if speed <= highest_m_s[k + 1] else 0.0)
                if speed > highest_m_s[k + 1]:
                    after = speed
            place = min(max(after, 0.0) / SPEED_STEP_M_S, N_SPEEDS - 1.001)
            low = int(place)
            share = place - low
            rest = (1.0 - share) * to_go[k + 1, low] + share * to_go[k + 1, low + 1]
            spent = length_m / (0.5 * (speed + max(after, 1.0)))
            # Beyond the finish the estimate goes below zero, so that of two finishers the further one is the better.
            to_go[k, j] = rest + spent + penalty * over * over * length_m if k < finish else 0.0
    return to_go
