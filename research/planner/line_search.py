"""The scripted driver with a line and speeds of its own for every place: the start of the planner's search.

The tuned driver has six numbers for a whole track. Here the driven line is moved aside by some metres and the planned
speed raised or lowered by some percent wherever that makes the race faster. The driver steers back to its line after
every change, so a change tells within the next corners whether it is for the better, and what it gains is not lost
later on. That is the racing line by simulation, and what follows it (`climbing`) is keys.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from research.planner.racing import (
    ACTION_MS,
    TICKS_PER_ACTION,
    Course,
    Field,
    act,
    compiled,
    copy_race,
    course_of,
    empty_field,
    is_lost,
    smooth_finish_ms,
    start_of,
)
from trackmania_rl.errors import UserError
from trackmania_rl.simulator.physics.scripted_driver import (
    _STEER_RADIUS_M,
    _STEER_SPEED_KMH,
    DriverSettings,
    plan_speed_m_s,
)
from trackmania_rl.simulator.physics.vehicle_state import CarRecord
from trackmania_rl.simulator.tracks.world import RIBBON_SPACING_M, Track

Actions = npt.NDArray[np.int8]
FloatArray = npt.NDArray[np.float64]

N_DRAWS: Final = 8
"""Random numbers per trial."""
_LEAST_SPEED_M_S: Final = 5.0
_FURTHEST_LOOK_M: Final = 80.0
_NARROWEST_M: Final = 4.0
"""A change is a bell curve of this width to ten times of it."""
_MOST_ASIDE_M: Final = 4.0
_MOST_FASTER: Final = 0.3
_DONORS_SHARE: Final = 0.2
"""Of the changes, where there are donors."""
_STEERED_MOST: Final = 1.5
_REACH: Final = 3.0
"""The bell is cut off at so many of its widths."""


class LineDriver(NamedTuple):
    """What the driver follows; numba takes it as it is.

    Attributes:
        settings: how it steers, and when it brakes.
        speed_m_s: (P,) planned speed at every cross-section.
        aside_m: (P,) how far the line is moved to the left, beside the settings' own `inside_share`.
        lookahead: (P,) factor of the distance that is looked ahead.
    """

    settings: DriverSettings
    speed_m_s: FloatArray
    aside_m: FloatArray
    lookahead: FloatArray


def line_driver(track: Track, settings: DriverSettings) -> LineDriver:
    """Return the scripted driver with these settings, nothing changed yet."""
    speed_m_s = np.minimum(plan_speed_m_s(track.ribbon, settings), 150.0)
    return LineDriver(settings, speed_m_s, np.zeros(len(speed_m_s)), np.ones(len(speed_m_s)))


def drive_line(track: Track, driver: LineDriver, max_actions: int) -> Actions:
    """Return the actions of a driver up to the finish; (0,) where it does not get there in so many."""
    course = course_of(track)
    states = empty_field(course, max_actions + 1)
    copy_race(start_of(track), 0, states, 0)
    actions, debts = np.zeros(max_actions, dtype=np.int8), np.zeros(max_actions + 1)
    n_actions = _drive_on(course, driver, states, debts, actions, 0, states, 0, np.inf)
    return actions[: max(n_actions, 0)]


def written_driver(driver: LineDriver) -> bytes:
    """A driver as the bytes of an .npz file."""
    file = io.BytesIO()
    np.savez_compressed(file, settings=np.array(driver.settings), curves=np.stack(driver[1:]))
    return file.getvalue()


def read_driver(file: Path) -> LineDriver:
    """Read what `written_driver` made.

    Raises:
        UserError: if the file is damaged.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return LineDriver(DriverSettings(*arrays["settings"].tolist()), *arrays["curves"].astype(np.float64))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{file} is damaged ({error}): delete it; the search then begins with the tuned driver"
        ) from error


def improve_line(
    track: Track,
    driver: LineDriver,
    donors: Sequence[LineDriver],
    draws: FloatArray,
    tolerance_ms: FloatArray,
    behind_ms: float,
    max_actions: int,
) -> tuple[LineDriver, Actions]:
    """Try changes of line and speeds one after the other, keeping those that finish earlier.

    Args:
        track: where to drive.
        driver: finishes within `max_actions`.
        donors: drivers of other searches; some changes lead towards what one of them does in that place.
        draws: (trials, N_DRAWS) uniform random numbers of [0, 1).
        tolerance_ms: (trials,) how much slower than the best race a change may be that is kept.
        behind_ms: trials further behind than this are given up.
        max_actions: room for a race.

    Returns:
        The best driver, and its actions up to the finish.
    """
    assert draws.shape == (len(tolerance_ms), N_DRAWS)
    course = course_of(track)
    states, trial = empty_field(course, max_actions + 1), empty_field(course, max_actions + 1)
    debts = np.zeros((2, max_actions + 1))
    copy_race(start_of(track), 0, states, 0)
    copy_race(start_of(track), 0, trial, 0)
    best = LineDriver(driver.settings, *(curve.copy() for curve in driver[1:]))
    actions = np.zeros(max_actions, dtype=np.int8)
    curves = np.array([np.stack(donor[1:]) for donor in donors]).reshape(-1, 3, len(driver.aside_m))
    n_actions = _improve(
        course, driver.settings, best, curves, states, trial, debts, draws, tolerance_ms, behind_ms, actions
    )
    assert n_actions > 0, "the driver does not finish"
    return best, actions[:n_actions]


@compiled
def _improve(
    course: Course,
    settings: DriverSettings,
    best: LineDriver,
    donors: FloatArray,
    states: Field,
    trial: Field,
    debts: FloatArray,
    draws: FloatArray,
    tolerance_ms: FloatArray,
    behind_ms: float,
    actions: Actions,
) -> int:
    """Write the best driver to `best` and its actions to `actions`; return how many these are, -1 for no finish."""
    kept = LineDriver(settings, best.speed_m_s.copy(), best.aside_m.copy(), best.lookahead.copy())
    now = LineDriver(settings, best.speed_m_s.copy(), best.aside_m.copy(), best.lookahead.copy())
    taken, tried = np.zeros_like(actions), np.zeros_like(actions)
    n_taken = _drive_on(course, now, states, debts[0], taken, 0, states, 0, np.inf)
    if n_taken < 0:
        return -1
    n_best, best_ms = n_taken, smooth_finish_ms(course, states, n_taken)
    actions[:] = taken
    last_section = states.cars[n_taken].ribbon_index
    first_section = states.cars[0].ribbon_index
    for t in range(len(draws)):
        draw = draws[t]
        begin, end = _bend(kept, now, donors, draw, first_section, last_section)
        seen_from = begin - int(_FURTHEST_LOOK_M / RIBBON_SPACING_M)
        first = 0
        while first < n_taken - 1 and states.cars[first + 1].ribbon_index < seen_from:
            first += 1
        copy_race(states, first, trial, first)
        debts[1, first] = debts[0, first]
        tried[:] = taken
        judged_from = min(end, last_section)
        n_tried = _drive_on(course, now, trial, debts[1], tried, first, states, judged_from, behind_ms)
        is_kept = False
        if n_tried > 0:
            tried_ms = smooth_finish_ms(course, trial, n_tried)
            is_kept = tried_ms <= best_ms + tolerance_ms[t]
            if tried_ms < best_ms:
                best_ms, n_best = tried_ms, n_tried
                actions[:] = tried
                _copy_curves(now, best, 0, len(best.aside_m))
        if is_kept:
            _copy_curves(now, kept, begin, end)
            n_taken = n_tried
            taken[:] = tried
            for k in range(first, n_taken + 1):
                copy_race(trial, k, states, k)
                debts[0, k] = debts[1, k]
        else:
            _copy_curves(kept, now, begin, end)
    return n_best


@compiled
def _bend(
    kept: LineDriver, now: LineDriver, donors: FloatArray, draw: FloatArray, first: int, last: int
) -> tuple[int, int]:
    """Change some of the curves of `now` by a bell around a place; return the cross-sections that changed."""
    center = first + draw[0] * (last - first)
    width = _NARROWEST_M * 10.0 ** draw[1] / RIBBON_SPACING_M
    begin, end = max(int(center - _REACH * width), 0), min(int(center + _REACH * width), len(kept.aside_m))
    if len(donors) > 0 and draw[7] < _DONORS_SHARE:
        donor = donors[int(draw[6] * len(donors))]
        for k in range(begin, end):
            # Flat within twice the width, so that the donor's way is taken over as a whole there.
            share = min(1.0, 4.0 * math.exp(-0.5 * ((k - center) / width) ** 2))
            now.speed_m_s[k] = kept.speed_m_s[k] + share * (donor[0, k] - kept.speed_m_s[k])
            now.aside_m[k] = kept.aside_m[k] + share * (donor[1, k] - kept.aside_m[k])
            now.lookahead[k] = kept.lookahead[k] + share * (donor[2, k] - kept.lookahead[k])
        return begin, end
    size = draw[4] * (draw[3] - 0.5)
    changes_line, changes_speed, changes_lookahead = draw[2] < 0.6, 0.4 < draw[2] < 0.9, draw[2] > 0.85
    for k in range(begin, end):
        bell = math.exp(-0.5 * ((k - center) / width) ** 2)
        if changes_line:
            now.aside_m[k] = kept.aside_m[k] + _MOST_ASIDE_M * size * bell
        if changes_speed:
            faster = _MOST_FASTER * draw[6] * (draw[5] - 0.5)
            now.speed_m_s[k] = max(kept.speed_m_s[k] * (1.0 + faster * bell), _LEAST_SPEED_M_S)
        if changes_lookahead:
            now.lookahead[k] = min(max(kept.lookahead[k] * (1.0 + 2.0 * _MOST_FASTER * size * bell), 0.3), 3.0)
    return begin, end


@compiled
def _copy_curves(source: LineDriver, target: LineDriver, begin: int, end: int) -> None:
    """Make one driver's curves another's, between two cross-sections."""
    target.speed_m_s[begin:end] = source.speed_m_s[begin:end]
    target.aside_m[begin:end] = source.aside_m[begin:end]
    target.lookahead[begin:end] = source.lookahead[begin:end]


@compiled
def _drive_on(
    course: Course,
    driver: LineDriver,
    races: Field,
    debts: FloatArray,
    actions: Actions,
    first: int,
    rival: Field,
    judged_from: int,
    behind_ms: float,
) -> int:
    """Drive from `races[first]` on; return the actions used until the finish, -1 where there is none or it is late."""
    debt = debts[first]
    behind_actions = max(int(behind_ms / ACTION_MS), 1) if behind_ms < 1e6 else -1
    for k in range(first, len(actions)):
        actions[k], debt = _decide(course, driver, races.cars[k], debt)
        copy_race(races, k, races, k + 1)
        debts[k + 1] = debt
        if act(course, races, k + 1, actions[k], TICKS_PER_ACTION):
            return k + 1
        if is_lost(course, races, k + 1):
            return -1
        if behind_actions > 0 and races.cars[k + 1].ribbon_index > judged_from:
            then = max(k + 1 - behind_actions, 0)
            if rival.cars[then].clock_ms > 0 and races.cars[k + 1].station_m < rival.cars[then].station_m:
                return -1
    return -1


@compiled
def _decide(course: Course, driver: LineDriver, car: CarRecord, debt: float) -> tuple[int, float]:
    """The action for a car, and the share of steering that is left over: pure pursuit, as the scripted driver's."""
    ribbon, settings = course.ribbon, driver.settings
    velocity = car.velocity_m_s
    speed = math.sqrt(np.float64(velocity[0]) ** 2 + np.float64(velocity[1]) ** 2 + np.float64(velocity[2]) ** 2)
    here = car.ribbon_index
    ahead_m = max(settings.lookahead_min_m, settings.lookahead_s * speed) * driver.lookahead[here]
    ahead_m = min(ahead_m, _FURTHEST_LOOK_M)
    there = min(here + int(ahead_m / RIBBON_SPACING_M), len(driver.aside_m) - 1)
    turn = ribbon.forward[there, 0] * ribbon.left[here, 0] + ribbon.forward[there, 2] * ribbon.left[here, 2]
    aside_m = settings.inside_share * ribbon.half_width_m[there] * min(max(2.0 * turn, -1.0), 1.0)
    aside_m += driver.aside_m[there]
    to_left = to_front = 0.0
    for axis in range(3):
        away_m = ribbon.center_m[there, axis] + aside_m * ribbon.left[there, axis] - car.position_m[axis]
        to_left += car.rotation[axis, 0] * away_m
        to_front += car.rotation[axis, 2] * away_m
    curvature_per_m = 2.0 * to_left / max(to_left**2 + to_front**2, 1.0)
    radius_m = np.interp(3.6 * speed, _STEER_SPEED_KMH, _STEER_RADIUS_M)
    debt += min(max(curvature_per_m * radius_m, -_STEERED_MOST), _STEERED_MOST)
    debt = min(max(debt, -1.0), 1.0)
    steered = round(debt)
    soon = min(here + int(speed * 0.001 * ACTION_MS / RIBBON_SPACING_M), len(driver.speed_m_s) - 1)
    excess_m_s = speed - driver.speed_m_s[soon]
    pedals = 0 if excess_m_s <= 0.0 else 2 if excess_m_s > settings.brake_tolerance_m_s else 1
    return 3 * pedals + (1 if steered > 0 else 2 if steered < 0 else 0), debt - steered
