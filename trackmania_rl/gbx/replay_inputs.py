"""Conversion from a ghost's inputs to a TMInterface input script, and back.

A ghost's clock and a script's differ by one tick: an event at 10 ms in a ghost first acts in the tick that begins at
race time 0, and is 0.00 in a script (`EVENT_TIME_ORIGIN_MS`). The ghost's clock starts at the event
`_FakeIsRaceRunning`, usually at 0; replays recorded by TMInterface have it at 65,535 ms.

Lost in ghost -> script -> ghost, because a script has no form for it:

* the game's own events (names beginning with "_"): `_FakeIsRaceRunning` and `_FakeFinishLine` are made again, and
`_FakeDontInverseAxis` is applied to the analog values;
* milliseconds within a tick, which only respawns have (and all inputs in some older games);
* inputs before the start: they become one event per input at the start, with the last value;
* `AccelerateReal` and `BrakeReal`, the keys' other names, which become `Accelerate` and `Brake`.

The rules are from gbxtools' `generate_input_file.py`, by TMInterface's author.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.replay import RACE_RUNNING, ControlEvent, Ghost, Replay
from trackmania_rl.protocol.input_script import ANALOG_FULL, MAX_TIME_MS, Input, InputEvent
from trackmania_rl.protocol.messages import TICK_MS

FINISH_LINE: Final = "_FakeFinishLine"
AXIS_NOT_INVERTED: Final = "_FakeDontInverseAxis"

_NAMES: Final = {
    Input.ACCELERATE: "Accelerate",
    Input.BRAKE: "Brake",
    Input.LEFT: "SteerLeft",
    Input.RIGHT: "SteerRight",
    Input.RESPAWN: "Respawn",
    Input.HORN: "Horn",
    Input.STEER: "Steer",
    Input.GAS: "Gas",
}
"""The game's names. A script's "delete" (give up) begins a new race, so no ghost holds it."""
_INPUTS: Final = {name: input_ for input_, name in _NAMES.items()} | {
    "AccelerateReal": Input.ACCELERATE,
    "BrakeReal": Input.BRAKE,
}
_ANALOG: Final = (Input.STEER, Input.GAS)


class ReplayInputsError(UserError):
    """A ghost's inputs cannot be a script, or there is no such ghost."""


@dataclass(frozen=True)
class GhostScript:
    """A script's events, with lost event counts."""

    events: tuple[InputEvent, ...]
    n_rounded: int  # events that lost milliseconds within a tick
    n_before_start: int  # events before the start, left out or moved to it
    unknown: dict[str, int]  # counts by event name, for events that scripts cannot express


def ghost_of_driver(replay: Replay, driver: str | None = None) -> Ghost:
    """Return the fastest ghost, or a driver's (a login in upper or lower case).

    Raises:
        ReplayInputsError: if there is no ghost by that driver; the text lists the drivers.
    """
    for ghost in replay.ghosts:
        if driver is None or ghost.login.lower() == driver.lower():
            return ghost
    known = ", ".join(sorted({ghost.login or "(no login)" for ghost in replay.ghosts}))
    raise ReplayInputsError(f"{replay.path}: no ghost of driver {driver!r}; its drivers are {known}")


def script_of_ghost(ghost: Ghost, path: Path) -> GhostScript:
    """Return a ghost's inputs as a script; `path` is for errors.

    Raises:
        ReplayInputsError: if the ghost holds no inputs, or impossible times or values.
    """
    if not ghost.events:
        raise ReplayInputsError(f"{path}: the ghost of {ghost.login or 'an unknown driver'} holds no inputs")
    start_ms = ghost.inputs_begin_ms
    # Such a ghost's values already have a script's sign; `_analog_value` inverted them like all others.
    sign = -1 if any(event.name == AXIS_NOT_INVERTED and event.value for event in ghost.events) else 1
    before: dict[Input, InputEvent] = {}
    events: list[InputEvent] = []
    unknown: Counter[str] = Counter()
    n_rounded = n_before_start = 0
    for event in ghost.events:
        input_ = _INPUTS.get(event.name)
        if input_ is None:
            unknown[event.name] += not event.name.startswith("_")
            continue
        time_ms = _script_time_ms(event.time_ms - start_ms, input_)
        value = _checked_value(event, input_, sign, path)
        n_rounded += (event.time_ms - start_ms) % TICK_MS != 0
        if time_ms > MAX_TIME_MS:
            raise ReplayInputsError(
                f"{path}: damaged: {event.name} {time_ms} ms after the start, which no race is long"
            )
        if time_ms < 0:
            n_before_start += 1
            before[input_] = InputEvent(0, input_, value)
        else:
            events.append(InputEvent(time_ms, input_, value))
    held = [event for event in before.values() if event.value]
    events = held + sorted(events, key=lambda event: event.time_ms)
    return GhostScript(tuple(events), n_rounded, n_before_start, dict(+unknown))


def ghost_events_of_script(events: Sequence[InputEvent], race_time_ms: int | None = None) -> tuple[ControlEvent, ...]:
    """Return the ghost events for a race driven by a script, whose events are in time order.

    `race_time_ms` is None for an unfinished race.

    Raises:
        ReplayInputsError: if the script gives up the race, which then leaves no ghost.
    """
    ghost_events = [ControlEvent(0, RACE_RUNNING, 1), *map(_control_event, events)]
    if race_time_ms is not None:
        ghost_events.append(ControlEvent(race_time_ms, FINISH_LINE, 1))
    return tuple(sorted(ghost_events, key=lambda event: event.time_ms))


def _script_time_ms(ghost_time_ms: int, input_: Input) -> int:
    """Return a ghost's time as a script's: one tick less; a respawn within a tick belongs to the tick's end."""
    reached_ms = ghost_time_ms - 1 if input_ is Input.RESPAWN else ghost_time_ms - TICK_MS
    return reached_ms // TICK_MS * TICK_MS


def _checked_value(event: ControlEvent, input_: Input, sign: int, path: Path) -> int:
    if input_ not in _ANALOG:
        return int(event.value != 0)
    if abs(event.value) > ANALOG_FULL:
        raise ReplayInputsError(f"{path}: damaged: {event.name} {event.value}; {-ANALOG_FULL} to {ANALOG_FULL} is all")
    return sign * event.value


def _control_event(event: InputEvent) -> ControlEvent:
    if event.input not in _NAMES:
        raise ReplayInputsError(
            f"the script presses {event.input.value} at {event.time_ms} ms, which begins a new race, so no ghost has it"
        )
    return ControlEvent(event.time_ms + TICK_MS, _NAMES[event.input], event.value)
