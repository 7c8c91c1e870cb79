"""Local improvement of a plan: change a few actions, drive on to the finish, keep the change if that comes no later.

Nothing is estimated, so nothing is misjudged. A change early in the race moves the car by centimetres, and the same
actions then lead into a wall some corners later: so the rest of a trial is either the plan's own actions, or those of a
pilot, who takes the plan's action of the place where the car is and corrects its steering and its pedals by how far it
is off the plan's line, direction and speed. What the pilot did becomes part of the plan. Most changes end in a slower
race soon; such trials are given up as soon as they are clearly behind.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from research.planner.racing import (
    ACTION_MS,
    TICKS_PER_ACTION,
    Course,
    Drive,
    Field,
    act,
    compiled,
    copy_race,
    empty_field,
    follow,
    is_lost,
    pose,
    smooth_finish_ms,
)

Actions = npt.NDArray[np.int8]
FloatArray = npt.NDArray[np.float64]

N_DRAWS: Final = 12
"""Random numbers per trial."""
_LONGEST_CHANGE: Final = 10
_GRACE_ACTIONS: Final = 10
"""A trial may be behind for so long after its change."""
_PILOTED_SHARE: Final = 0.7
_LEFT, _RIGHT = 1, 2
"""An action is 3 * pedals + steering, the steering being 0, `_LEFT` or `_RIGHT`."""
_GAS_ONLY, _NO_PEDAL, _BRAKE_ONLY = 0, 1, 2


class Line(NamedTuple):
    """The plan by place; numba takes it as it is.

    Attributes:
        action: (P,) int64, the action of the last decision at or before each cross-section.
        pose: (P, 4) float64, what `racing.pose` says of the car there.
    """

    action: npt.NDArray[np.int64]
    pose: FloatArray


class Pilot(NamedTuple):
    """How a pilot corrects; numba takes it as it is.

    Attributes:
        per_m: share of full steering per metre beside the line.
        per_rad: per radian between the car's direction and the line's.
        per_rad_motion: per radian between the directions of motion.
        too_fast_m_s: faster than the plan by this, it lets the throttle go; by twice of it, it brakes.
        too_slow_m_s: slower than the plan by this, it presses the throttle only.
    """

    per_m: float
    per_rad: float
    per_rad_motion: float
    too_fast_m_s: float
    too_slow_m_s: float


def climb(
    course: Course,
    incumbent: Drive,
    plan: Actions,
    draws: FloatArray,
    tolerance_ms: FloatArray,
    behind_m: float,
) -> Actions:
    """Try changes one after the other, each on top of those that were kept.

    A change is kept where the race is not slower than the best one so far by more than a tolerance: record-to-record
    travel (Dueck 1993, "New optimization heuristics"), which leaves places where every small change is for the worse.

    Args:
        course: where to drive.
        incumbent: the race to improve; it finishes.
        plan: (T,) its actions.
        draws: (trials, N_DRAWS) uniform random numbers of [0, 1).
        tolerance_ms: (trials,) of each trial; 0 never keeps a slower race.
        behind_m: trials that are further behind the race they change than this, at the same time, are given up.

    Returns:
        The best plan (at most T,); it finishes no later than the one given.
    """
    assert draws.shape[1:] == (N_DRAWS,)
    assert tolerance_ms.shape == draws.shape[:1]
    assert len(plan) == incumbent.n_actions
    room = len(plan) + 2 + int(np.ceil(tolerance_ms.max() / ACTION_MS))
    current, best = np.zeros(room, dtype=np.int8), np.zeros(room, dtype=np.int8)
    current[: len(plan)] = best[: len(plan)] = plan
    states, trial = empty_field(course, room + 1), empty_field(course, room + 1)
    course_length = len(course.ribbon.station_m)
    line = Line(np.zeros(course_length, dtype=np.int64), np.zeros((course_length, 4)))
    copy_race(incumbent.states, 0, states, 0)
    n_actions = _climb(course, states, trial, current, best, len(plan), line, draws, tolerance_ms, behind_m)
    return best[:n_actions]


@compiled
def _climb(
    course: Course,
    states: Field,
    trial: Field,
    plan: Actions,
    best: Actions,
    n_actions: int,
    line: Line,
    draws: FloatArray,
    tolerance_ms: FloatArray,
    behind_m: float,
) -> int:
    """Change `plan` and its `states` in place and write the best plan to `best`; return how many actions that uses."""
    best_ms, n_best, best_m = follow(course, states, plan, 0)
    record_ms = smooth_finish_ms(course, states, n_best)
    changed = plan.copy()
    lay_line(course, states, plan, n_actions, line)
    for t in range(len(draws)):
        start, end = _change(changed, plan, n_actions, draws[t])
        if start < 0:
            continue
        is_piloted = draws[t, 6] < _PILOTED_SHARE
        reached = _try(
            course,
            states,
            trial,
            changed,
            line,
            drawn_pilot(draws[t]),
            is_piloted,
            start,
            end,
            n_actions,
            behind_m,
        )
        if reached < 0:
            continue
        trial_ms, trial_m = trial.times_ms[reached, -1], trial.cars[reached].station_m - course.gates.station_m[-1]
        is_best = trial_ms < best_ms or (trial_ms == best_ms and trial_m >= best_m)
        smooth_ms = smooth_finish_ms(course, trial, reached)
        if is_best or smooth_ms < record_ms + tolerance_ms[t]:
            n_actions = reached
            plan[:] = changed
            for k in range(start, reached + 1):
                copy_race(trial, k, states, k)
            lay_line(course, states, plan, n_actions, line)
        if is_best:
            best_ms, best_m, n_best, record_ms = trial_ms, trial_m, reached, smooth_ms
            best[:] = changed
    return n_best


@compiled
def _try(
    course: Course,
    states: Field,
    trial: Field,
    changed: Actions,
    line: Line,
    pilot: Pilot,
    is_piloted: bool,
    start: int,
    end: int,
    n_actions: int,
    behind_m: float,
) -> int:
    """Drive changed actions from `start`; return how many were used until the finish, -1 where it is not worth it."""
    copy_race(states, start, trial, start)
    debt = 0.0
    for k in range(start, len(changed)):
        if is_piloted and k >= end:
            changed[k], debt = _piloted(course, line, pilot, trial.cars[k], debt)
        copy_race(trial, k, trial, k + 1)
        if act(course, trial, k + 1, changed[k], TICKS_PER_ACTION):
            return k + 1
        is_judged = k + 1 < n_actions and k >= end + _GRACE_ACTIONS
        if is_judged and trial.cars[k + 1].station_m < states.cars[k + 1].station_m - behind_m:
            break
        if is_lost(course, trial, k + 1):
            break
    return -1


@compiled
def _piloted(course: Course, line: Line, pilot: Pilot, car: Any, debt: float) -> tuple[int, float]:
    """The pilot's action, and what is left of the corrections that are smaller than a whole key press."""
    section = car.ribbon_index
    lateral_m, heading_rad, motion_rad, speed_m_s = pose(course, car)
    target = line.pose[section]
    debt -= pilot.per_m * (lateral_m - target[0])
    debt -= pilot.per_rad * (heading_rad - target[1]) + pilot.per_rad_motion * (motion_rad - target[2])
    debt = min(max(debt, -1.5), 1.5)
    pedals, steering = line.action[section] // 3, line.action[section] % 3
    planned = 1 if steering == _LEFT else -1 if steering == _RIGHT else 0
    steered = min(max(planned + round(debt), -1), 1)
    debt -= steered - planned
    too_fast_m_s = speed_m_s - target[3]
    if too_fast_m_s > 2.0 * pilot.too_fast_m_s:
        pedals = _BRAKE_ONLY
    elif too_fast_m_s > pilot.too_fast_m_s and pedals == _GAS_ONLY:
        pedals = _NO_PEDAL
    elif too_fast_m_s < -pilot.too_slow_m_s:
        pedals = _GAS_ONLY
    return 3 * pedals + (_LEFT if steered > 0 else _RIGHT if steered < 0 else 0), debt


@compiled
def lay_line(course: Course, states: Field, plan: Actions, n_actions: int, line: Line) -> None:
    """Write the plan by place, poses interpolated between decisions."""
    section = 0
    before = np.array(pose(course, states.cars[0]))
    for k in range(n_actions):
        until = states.cars[k + 1].ribbon_index if k + 1 < n_actions else len(line.action)
        after = np.array(pose(course, states.cars[k + 1])) if k + 1 < n_actions else before
        begin = section
        while section < until:
            share = (section - begin) / max(until - begin, 1)
            line.action[section] = plan[k]
            line.pose[section] = (1.0 - share) * before + share * after
            section += 1
        before = after


@compiled
def _change(changed: Actions, plan: Actions, n: int, draw: FloatArray) -> tuple[int, int]:
    """Write a changed plan; return the first action that differs and the change's end, -1s where nothing does."""
    changed[:] = plan
    start = int(draw[0] * n)
    end = min(start + 1 + int(draw[1] * draw[1] * _LONGEST_CHANGE), n)
    kind = draw[2]
    if kind < 0.35:  # another action for a while
        changed[start:end] = _drawn_action(draw[3])
    elif kind < 0.6:  # the actions around last longer: a key goes down or up earlier or later
        changed[start:end] = plan[max(start - 1, 0)] if draw[3] < 0.5 else plan[min(end, n - 1)]
    elif kind < 0.8:  # what follows comes later, at the cost of an action further on
        gone = min(start + 1 + int(draw[4] * 40.0), n - 1)
        changed[start] = plan[start] if draw[3] < 0.7 else _drawn_action(draw[5])
        changed[start + 1 : gone + 1] = plan[start:gone]
        end = gone + 1
    else:  # what follows comes earlier, and an action further on lasts longer
        doubled = min(start + 1 + int(draw[4] * 40.0), n - 1)
        changed[start:doubled] = plan[start + 1 : doubled + 1]
        end = doubled
    while start < end and changed[start] == plan[start]:
        start += 1
    return (start, end) if start < end else (-1, -1)


@compiled
def _drawn_action(draw: float) -> int:
    """Any of the 12 actions, the three with only the throttle as often as the nine others together."""
    return int(draw * 6.0) if draw < 0.5 else 3 + int((draw - 0.5) * 18.0)


@compiled
def drawn_pilot(draw: FloatArray) -> Pilot:
    """A pilot; which one corrects best differs from place to place."""
    return Pilot(
        0.02 * 10.0 ** (1.5 * draw[7]),
        0.1 * 10.0 ** (1.5 * draw[8]),
        0.1 * 10.0 ** (1.5 * draw[9]),
        0.3 * 10.0 ** draw[10],
        0.3 * 10.0 ** draw[11],
    )
