"""TMInterface input scripts: a race's inputs as text.

One command per line or between semicolons, ``#`` begins a comment::

    0.00 press up
    1.25-2.50 press left     # a range: pressed at the first time, released at the second
    3.00 steer -65536        # full left
    3.00 gas 65536           # the pedals, pressed or not
    1:02.50 rel up           # minutes; a time without a point is in milliseconds

All other commands (``0 set speed 30``, ``1.50 toggle_inputs``) are left out, and analog values beyond full are clipped.

A time is the race time of the change; the next tick is the first with the new input.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError, warn_once
from trackmania_rl.files import read_bounded_text
from trackmania_rl.protocol.messages import NO_KEYS, TICK_MS, KeyState

ANALOG_FULL: Final = 65536
"""A fully turned wheel (steer: right) or fully pressed pedal."""

PEDAL_PRESSED_FROM: Final = 19661
"""30 % of `gas`: the car accelerates from here on, and brakes from the negative value down."""


class Input(Enum):
    """Script inputs, with the words for them."""

    ACCELERATE = "up"
    BRAKE = "down"
    LEFT = "left"
    RIGHT = "right"
    RESPAWN = "enter"
    GIVE_UP = "delete"
    HORN = "horn"
    STEER = "steer"
    GAS = "gas"


_ANALOG_INPUTS: Final[tuple[Input, ...]] = (Input.STEER, Input.GAS)
_ANALOG_VERBS: Final[dict[str, Input]] = {input_.value: input_ for input_ in _ANALOG_INPUTS}
_KEYS: Final[dict[str, Input]] = {input_.value: input_ for input_ in Input if input_ not in _ANALOG_INPUTS}
_KEY_STATE_INPUTS: Final[tuple[Input, ...]] = (Input.LEFT, Input.RIGHT, Input.ACCELERATE, Input.BRAKE)
"""KeyState's field order."""
ANALOG_STATE_INPUTS: Final[tuple[Input, ...]] = (Input.STEER, Input.GAS, Input.BRAKE)
"""AnalogInput's field order."""

_TIME: Final = re.compile(
    r"(?:(?:(?P<hours>\d{1,9}):)?(?P<minutes>\d{1,9}):)?(?P<seconds>\d{1,9})\.(?P<hundredths>\d{1,2})"
)
MAX_TIME_MS: Final = 2**31 - 1 - 2**17
"""Latest time that fits the state blob's 32-bit event time."""

MAX_SCRIPT_BYTES: Final = 4 << 20
"""Hours of driving with a wheel, which changes 15 times a second."""
_COMMANDS_NAMED: Final = 5
_QUOTED_CHARACTERS: Final = 80

log = logging.getLogger(__name__)


class InputScriptError(UserError, ValueError):
    """An unreadable input script or line."""


@dataclass(frozen=True, slots=True)
class InputEvent:
    """One change to one input.

    Attributes:
        time_ms: race time at the change, a multiple of TICK_MS.
        input: the changed input.
        value: 0 or 1 for a key, -ANALOG_FULL to ANALOG_FULL for steer (positive: right) and gas.
    """

    time_ms: int
    input: Input
    value: int


def parse_input_script(text: str) -> list[InputEvent]:
    """Return a script's events, sorted by time and then text order. Times are rounded down to ticks.

    Raises:
        InputScriptError: with the unreadable line, or if it has commands, but no inputs.
    """
    return _parse(text)[0]


def _parse(text: str) -> tuple[list[InputEvent], list[str]]:
    events: list[InputEvent] = []
    notes: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        for command in line.split("#", 1)[0].split(";"):
            words = command.split()
            try:
                events += _parse_command(words, notes)
            except InputScriptError as error:
                raise InputScriptError(f"line {number}, {_quoted(line.strip())}: {error}") from None
    if notes and not events:
        raise InputScriptError(f"it has no inputs, such as '0.00 press up', but {notes[0]}")
    return sorted(events, key=lambda event: event.time_ms), notes


def read_input_script(path: Path) -> list[InputEvent]:
    """Read a script's file like `parse_input_script`. Log once which commands are left out or clipped.

    Raises:
        InputScriptError: if the file is missing, larger than MAX_SCRIPT_BYTES, or no script.
    """
    try:
        text = read_bounded_text(path, MAX_SCRIPT_BYTES)
    except UserError as error:
        raise InputScriptError(f"inputs file {error}") from error
    try:
        events, notes = _parse(text)
    except InputScriptError as error:
        raise InputScriptError(f"inputs file {path}: {error}") from error
    if notes:
        more = ", ..." if len(notes) > _COMMANDS_NAMED else ""
        warn_once(f"inputs file {path}: not read as written: {', '.join(notes[:_COMMANDS_NAMED])}{more}", log)
    return events


def write_input_script(events: Iterable[InputEvent]) -> str:
    """Return a script that `parse_input_script` reads as the same events."""
    return "".join(f"{_format_time(event.time_ms)} {_format_change(event.input, event.value)}\n" for event in events)


def events_of_keys(keys_from: Iterable[tuple[int, KeyState]]) -> list[InputEvent]:
    """Return the key changes between (time, held keys) pairs, from no key held."""
    events: list[InputEvent] = []
    held = NO_KEYS
    for time_ms, keys in keys_from:
        events += key_changes(time_ms, held, keys)
        held = keys
    return events


def key_changes(time_ms: int, before: KeyState, after: KeyState) -> list[InputEvent]:
    """Return the events between two key states."""
    return [InputEvent(time_ms, input_, value) for input_, value in _changed_keys(before, after)]


@functools.lru_cache(maxsize=1024)  # every race is written as a script with few distinct changes
def _changed_keys(before: KeyState, after: KeyState) -> tuple[tuple[Input, int], ...]:
    return tuple(
        (input_, int(is_held))
        for input_, was_held, is_held in zip(_KEY_STATE_INPUTS, before, after, strict=True)
        if bool(was_held) != bool(is_held)
    )


def _parse_command(words: list[str], notes: list[str]) -> list[InputEvent]:
    """Parse one command such as ["0.00", "press", "up"]. A range gives two events, a command without input a note."""
    if not words:
        return []
    text = _quoted(" ".join(words))
    verb = words[1].lower() if len(words) > 1 else ""
    if verb not in ("press", "rel", *_ANALOG_VERBS):
        notes.append(text)
        return []
    if len(words) != 3:
        raise InputScriptError("an input is 'TIME press|rel KEY' or 'TIME steer|gas VALUE'")
    start_ms, end_ms = _parse_time_range(words[0])
    operand = words[2].lower()
    if verb in _ANALOG_VERBS:
        changed = _ANALOG_VERBS[verb]
        given = _parse_analog(operand)
        value = max(-ANALOG_FULL, min(given, ANALOG_FULL))
        if value != given:
            notes.append(f"{text} (clipped to {value})")
    elif operand in _KEYS:
        changed = _KEYS[operand]
        value = int(verb == "press")
    else:
        raise InputScriptError(f"unknown key {_quoted(operand)}; known are {', '.join(_KEYS)}")
    events = [InputEvent(start_ms, changed, value)]
    if end_ms is not None:
        events.append(InputEvent(end_ms, changed, 0))
    return events


def _parse_analog(word: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,9}", word):
        raise InputScriptError(f"value {_quoted(word)} is not a whole number, such as {ANALOG_FULL}")
    return int(word)


def _parse_time_range(word: str) -> tuple[int, int | None]:
    """Parse "T" as (T, None) and "T1-T2" in either order as (earlier, later)."""
    start, dash, end = word.partition("-")
    if not dash:
        return _parse_time(start), None
    earlier_ms, later_ms = sorted((_parse_time(start), _parse_time(end)))
    return earlier_ms, later_ms


def _parse_time(word: str) -> int:
    if re.fullmatch(r"\d{1,10}", word):
        time_ms = int(word)
    elif match := _TIME.fullmatch(word):
        hours, minutes, seconds = (int(match[name] or 0) for name in ("hours", "minutes", "seconds"))
        time_ms = ((hours * 60 + minutes) * 60 + seconds) * 1000 + int(match["hundredths"].ljust(2, "0")) * 10
    else:
        raise InputScriptError(f"time {_quoted(word)} is neither milliseconds (1250) nor seconds (1.25 or 1:02.50)")
    if time_ms > MAX_TIME_MS:
        raise InputScriptError(f"time {_quoted(word)} is too late; the latest is {MAX_TIME_MS} ms")
    return time_ms - time_ms % TICK_MS


def _format_time(time_ms: int) -> str:
    return f"{time_ms // 1000}.{time_ms % 1000 // 10:02d}"


@functools.lru_cache(maxsize=1024)
def _format_change(changed: Input, value: int) -> str:
    if changed in _ANALOG_INPUTS:
        return f"{changed.value} {value}"
    return f"{'press' if value else 'rel'} {changed.value}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}...")
