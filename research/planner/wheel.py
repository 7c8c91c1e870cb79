"""Local improvement of a race with a wheel: steering by any angle, where `climbing` has left, straight on and right.

Nothing of the search is new: a change in one place, then the race's own controls or those of a pilot who follows its
line, and record-to-record travel. Pedals stay pressed or not, as in the game.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from research.planner.climbing import Line, Pilot, drawn_pilot, lay_line
from research.planner.racing import (
    ACTION_MS,
    CONTROLS,
    TICKS_PER_ACTION,
    Course,
    Drive,
    Field,
    act,
    compiled,
    copy_race,
    course_of,
    empty_field,
    follow,
    is_lost,
    pose,
    smooth_finish_ms,
    start_of,
)
from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import ANALOG_FULL, Input, InputEvent, parse_input_script, write_input_script
from trackmania_rl.protocol.state_blob import InputSlot
from trackmania_rl.simulator.inputs import RaceInputs
from trackmania_rl.simulator.tracks.world import Track

Controls = npt.NDArray[np.float64]
"""(T, 3): gas, brake and steer of each action; steer is -1 (left) to 1 in whole parts of `ANALOG_FULL`."""
FloatArray = npt.NDArray[np.float64]

N_DRAWS: Final = 12
"""Random numbers per trial."""
_GAS, _BRAKE, _STEER = 0, 1, 2
_LONGEST_CHANGE: Final = 20
_GRACE_ACTIONS: Final = 10
"""A trial may be behind for so long after its change."""
_PILOTED_SHARE: Final = 0.7
_TURNED_SHARE: Final = 0.7
"""Of the changes are of the wheel; the others are of pedals, or come earlier or later."""
_PEDALS_SHARE: Final = 0.15


def controls_of_script(text: str, n_actions: int) -> Controls:
    """Return the (n_actions, 3) controls of a script of keys or with a wheel.

    Raises:
        UserError: if something changes within an action.
    """
    inputs = RaceInputs(np.zeros((len(InputSlot), 2), dtype=np.uint32))
    controls = np.zeros((n_actions, 3))
    for time_ms, events in groupby(parse_input_script(text), key=lambda event: event.time_ms):
        if time_ms % ACTION_MS:
            raise UserError(f"an input at {time_ms} ms is none of an agent's, whose actions last {ACTION_MS} ms")
        inputs.apply(list(events))
        controls[time_ms // ACTION_MS :] = inputs.controls
    return controls


def script_of_controls(controls: Controls) -> str:
    """Return the inputs script of (T, 3) controls."""
    held = dict.fromkeys((Input.ACCELERATE, Input.BRAKE, Input.STEER), 0)
    events: list[InputEvent] = []
    for number, (gas, brake, steer) in enumerate(controls.tolist()):
        values = {Input.ACCELERATE: int(gas), Input.BRAKE: int(brake), Input.STEER: round(steer * ANALOG_FULL)}
        events += [InputEvent(number * ACTION_MS, one, value) for one, value in values.items() if value != held[one]]
        held = values
    return write_input_script(events)


def drive_controls(track: Track, controls: Controls) -> Drive:
    """Drive (T, 3) controls from the start, each for 50 ms, until the finish or a place from which there is none."""
    course = _course(track, len(controls))
    course.controls[:] = controls
    states = empty_field(course, len(controls) + 1)
    copy_race(start_of(track), 0, states, 0)
    finish_ms, n_actions, overshoot_m = follow(course, states, np.arange(len(controls)), 0)
    return Drive(finish_ms, n_actions, overshoot_m, states)


def climb_with_wheel(
    track: Track, controls: Controls, draws: FloatArray, tolerance_ms: FloatArray, behind_m: float
) -> Controls:
    """Try changes one after the other, each on top of those that were kept.

    Args:
        track: where to drive.
        controls: (T, 3) of a race that finishes with the last of them.
        draws: (trials, N_DRAWS) uniform random numbers of [0, 1).
        tolerance_ms: (trials,) how much slower than the best race a change may be that is kept.
        behind_m: trials that are further behind the race they change than this, at the same time, are given up.

    Returns:
        The best controls; they finish no later than those given.
    """
    assert draws.shape == (len(tolerance_ms), N_DRAWS)
    room = len(controls) + 2 + int(np.ceil(tolerance_ms.max() / ACTION_MS))
    course = _course(track, room)
    current = np.zeros((room, len(CONTROLS[0])))
    current[: len(controls)] = controls
    best = current.copy()
    states, trial = empty_field(course, room + 1), empty_field(course, room + 1)
    n_sections = len(course.ribbon.station_m)
    line = Line(np.zeros(n_sections, dtype=np.int64), np.zeros((n_sections, 4)))
    copy_race(start_of(track), 0, states, 0)
    n_actions = _climb(course, states, trial, current, best, line, draws, tolerance_ms, behind_m)
    assert n_actions > 0, "the race does not finish"
    return best[:n_actions]


def _course(track: Track, n_actions: int) -> Course:
    """A track whose actions are numbers of rows of a table of its own."""
    return course_of(track)._replace(controls=np.zeros((n_actions, len(CONTROLS[0]))))


@compiled
def _climb(
    course: Course,
    states: Field,
    trial: Field,
    current: Controls,
    best: Controls,
    line: Line,
    draws: FloatArray,
    tolerance_ms: FloatArray,
    behind_m: float,
) -> int:
    """Change `current` and its `states` in place, write the best to `best`; return its actions, -1 for no finish."""
    numbers = np.arange(len(current))
    course.controls[:] = current
    best_ms, n_best, best_m = follow(course, states, numbers, 0)
    if best_ms < 0:
        return -1
    n_actions, record_ms = n_best, smooth_finish_ms(course, states, n_best)
    lay_line(course, states, numbers, n_actions, line)
    for t in range(len(draws)):
        course.controls[:] = current
        start, end = _change(course.controls, current, n_actions, draws[t])
        if start < 0:
            continue
        is_piloted = draws[t, 6] < _PILOTED_SHARE
        pilot = drawn_pilot(draws[t])
        reached = _try(course, states, trial, current, line, pilot, is_piloted, start, end, n_actions, behind_m)
        if reached < 0:
            continue
        trial_ms, trial_m = trial.times_ms[reached, -1], trial.cars[reached].station_m - course.gates.station_m[-1]
        is_best = trial_ms < best_ms or (trial_ms == best_ms and trial_m >= best_m)
        smooth_ms = smooth_finish_ms(course, trial, reached)
        if is_best or smooth_ms < record_ms + tolerance_ms[t]:
            n_actions = reached
            current[:] = course.controls
            for k in range(start, reached + 1):
                copy_race(trial, k, states, k)
            lay_line(course, states, numbers, n_actions, line)
        if is_best:
            best_ms, best_m, n_best, record_ms = trial_ms, trial_m, reached, smooth_ms
            best[:] = course.controls
    return n_best


@compiled
def _try(
    course: Course,
    states: Field,
    trial: Field,
    current: Controls,
    line: Line,
    pilot: Pilot,
    is_piloted: bool,
    start: int,
    end: int,
    n_actions: int,
    behind_m: float,
) -> int:
    """Drive changed controls from `start`; return how many were used until the finish, -1 where it is not worth it."""
    copy_race(states, start, trial, start)
    for k in range(start, len(current)):
        if is_piloted and k >= end:
            _steer_along(course, current, line, pilot, trial.cars[k], k)
        copy_race(trial, k, trial, k + 1)
        if act(course, trial, k + 1, k, TICKS_PER_ACTION):
            return k + 1
        is_judged = k + 1 < n_actions and k >= end + _GRACE_ACTIONS
        if is_judged and trial.cars[k + 1].station_m < states.cars[k + 1].station_m - behind_m:
            break
        if is_lost(course, trial, k + 1):
            break
    return -1


@compiled
def _steer_along(course: Course, current: Controls, line: Line, pilot: Pilot, car: Any, k: int) -> None:
    """Write the pilot's controls to row `k`: those of this place, corrected towards the line and its speed."""
    section = car.ribbon_index
    lateral_m, heading_rad, motion_rad, speed_m_s = pose(course, car)
    target, planned = line.pose[section], current[line.action[section]]
    to_left = pilot.per_m * (lateral_m - target[0])
    to_left += pilot.per_rad * (heading_rad - target[1]) + pilot.per_rad_motion * (motion_rad - target[2])
    course.controls[k] = planned
    course.controls[k, _STEER] = _whole(planned[_STEER] + to_left)
    too_fast_m_s = speed_m_s - target[3]
    if too_fast_m_s > pilot.too_fast_m_s:
        course.controls[k, _GAS] = 0.0
        course.controls[k, _BRAKE] = 1.0 if too_fast_m_s > 2.0 * pilot.too_fast_m_s else planned[_BRAKE]
    elif too_fast_m_s < -pilot.too_slow_m_s:
        course.controls[k, _GAS], course.controls[k, _BRAKE] = 1.0, 0.0


@compiled
def _change(changed: Controls, current: Controls, n: int, draw: FloatArray) -> tuple[int, int]:
    """Write changed controls; return the change's first action and its end, -1s where nothing changes."""
    start = int(draw[0] * n)
    end = min(start + 1 + int(draw[1] * draw[1] * _LONGEST_CHANGE), n)
    kind = draw[2]
    if kind < _TURNED_SHARE:  # the wheel is turned further for a while, most in the middle
        turned = 2.0 * draw[5] ** 3 * (1.0 if draw[3] < 0.5 else -1.0)
        for k in range(start, end):
            bell = 1.0 - ((2 * k + 1 - start - end) / (end - start + 1)) ** 2
            changed[k, _STEER] = _whole(current[k, _STEER] + turned * bell)
    elif kind < _TURNED_SHARE + _PEDALS_SHARE:
        pedals = int(draw[3] * 3.0)
        changed[start:end, _GAS] = 1.0 if pedals == 0 else 0.0
        changed[start:end, _BRAKE] = 1.0 if pedals == 2 else 0.0
    else:  # what follows comes later, at the cost of an action further on, or earlier
        gone = min(start + 1 + int(draw[4] * 40.0), n - 1)
        if draw[3] < 0.5:
            changed[start + 1 : gone + 1] = current[start:gone]
        else:
            changed[start:gone] = current[start + 1 : gone + 1]
        end = gone + 1
    while start < end and (changed[start] == current[start]).all():
        start += 1
    return (start, end) if start < end else (-1, -1)


@compiled
def _whole(steer: float) -> float:
    """A steering angle as scripts hold it."""
    return round(min(max(steer, -1.0), 1.0) * ANALOG_FULL) / ANALOG_FULL
