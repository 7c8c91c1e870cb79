"""Replay in a `.Replay.Gbx` or `.Ghost.Gbx` file: races with times, samples and inputs, and the map.

A ghost is one race: car samples (usually every 100 ms) and every input change, to the engine's 10 ms.
Its inputs convert to a TMInterface input script, and back. The clocks differ by one tick: an event at 10 ms in a
ghost first acts in the tick that begins at race time 0, and is 0.00 in a script (`EVENT_TIME_ORIGIN_MS`). The ghost's
clock starts at the event `_FakeIsRaceRunning`, usually at 0; replays recorded by TMInterface have it at 65,535 ms.

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

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import Challenge, challenge_of, plain_text
from trackmania_rl.gbx.reading import (
    CGameChallenge,
    CGameCtnGhost,
    CGameReplayRecord,
    ControlEntry,
    Gbx,
    GbxError,
    GbxFile,
    read_gbx,
)
from trackmania_rl.protocol.input_script import ANALOG_FULL, MAX_TIME_MS, Input, InputEvent
from trackmania_rl.protocol.messages import TICK_MS

REPLAY_SUFFIXES: Final = (".replay.gbx", ".ghost.gbx")
NO_TIME: Final = 0xFFFFFFFF

_NO_SPEED: Final = -(1 << 15)  # a zero speed's logarithm
_MAX_SAMPLE_M: Final = 1e6  # a position beyond it was misread

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


@dataclass(frozen=True)
class GhostSamples:
    """S car samples."""

    period_ms: int  # between samples
    time_ms: npt.NDArray[np.int64]  # (S,)
    position_m: npt.NDArray[np.float64]  # (S, 3) car's origin, world axes
    rotation: npt.NDArray[np.float64]  # (S, 4) unit quaternions w, x, y, z
    speed_m_s: npt.NDArray[np.float64]  # (S,) to about a thousandth

    @property
    def axes(self) -> npt.NDArray[np.float64]:
        """(S, 3, 3) rotation matrices, car to world; columns are the car's left, up and forward."""
        w, x, y, z = (self.rotation / np.linalg.norm(self.rotation, axis=1, keepdims=True)).T
        rows = (
            (1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)),
            (2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)),
            (2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)),
        )
        return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


RACE_RUNNING = "_FakeIsRaceRunning"


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """One change to one input."""

    time_ms: int  # on the ghost's clock (`Ghost.inputs_begin_ms`)
    # such as "Accelerate", "Steer"; names beginning with "_" are the game's own
    name: str
    value: int  # 1 pressed, 0 released; for analog inputs -65536 to 65536, positive to the right (or forwards)


@dataclass(frozen=True)
class Ghost:
    """One race."""

    login: str
    race_time_ms: int | None
    checkpoint_times_ms: tuple[int, ...]  # one per passed checkpoint; the last one is the finish
    n_respawns: int
    samples: GhostSamples | None  # None if the ghost holds none
    # input changes, in order; () if the ghost holds none
    events: tuple[ControlEvent, ...]
    game_version: str

    @property
    def inputs_begin_ms(self) -> int:
        """Race time 0 on the events' clock: the clock in TMInterface's replays begins a minute earlier."""
        return next((event.time_ms for event in self.events if event.name == RACE_RUNNING and event.value), 0)


@dataclass(frozen=True)
class Replay:
    """One or more races on a map."""

    path: Path
    nickname: str  # of the player who saved it, without colour codes; "" in a `.Ghost.Gbx`
    challenge: Challenge | None  # None in a `.Ghost.Gbx`, and if the embedded map can't be read
    ghosts: tuple[Ghost, ...]  # fastest first

    @property
    def best(self) -> Ghost:
        """Fastest race."""
        return self.ghosts[0]


def is_replay_file(path: Path) -> bool:
    """Return whether a path names a replay or a ghost."""
    return path.name.lower().endswith(REPLAY_SUFFIXES)


def read_replay(path: Path) -> Replay:
    """Read a replay or a ghost.

    Raises:
        GbxError: if the file is missing, damaged, neither, or without a race.
    """
    file = read_gbx(path)
    records = file.nodes(CGameReplayRecord)
    nodes = file.nodes(CGameCtnGhost)
    if not nodes:
        what = f"a replay in which no ghost can be read (recorded by {_program(file)})" if records else file.kind
        raise GbxError(
            f"{path}: no race is in it: it is {what}; supported are replays and ghosts of TrackMania Nations Forever "
            "and United Forever"
        )
    ghosts = sorted(
        (_ghost(node, path) for node in nodes),
        key=lambda ghost: (ghost.race_time_ms is None, ghost.race_time_ms),
    )
    return Replay(
        path=path,
        nickname=plain_text((records[0].nickname or "") if records else ""),
        challenge=_embedded_challenge(records[0].track, path) if records else None,
        ghosts=tuple(ghosts),
    )


def read_embedded_map(path: Path) -> bytes:
    """Return the map file's bytes from a replay.

    Raises:
        GbxError: if the replay is missing or damaged, or has no readable map.
    """
    for record in read_gbx(path).nodes(CGameReplayRecord):
        if _embedded_challenge(record.track, path) is not None:
            return bytes(record.track.root_parser.data)
    raise GbxError(f"{path}: no map that can be read is in it; a map is in every .Replay.Gbx, but not in a .Ghost.Gbx")


def _program(file: GbxFile) -> str:
    version = None if file.header is None else file.header.get("exever")
    return "an unknown version of the game" if version is None else f"version {version} of the game"


def _embedded_challenge(track: Gbx | None, path: Path) -> Challenge | None:
    if track is None or not any(isinstance(node, CGameChallenge) for node in track.classes.values()):
        return None
    return challenge_of(GbxFile(path, track.class_id, track, None))


def _ghost(node: CGameCtnGhost, path: Path) -> Ghost:
    return Ghost(
        login=node.login or "",
        race_time_ms=None if node.race_time in (0, NO_TIME) else node.race_time,
        checkpoint_times_ms=tuple(node.cp_times),
        n_respawns=0 if node.num_respawns == NO_TIME else node.num_respawns,
        samples=_samples(node, path) if node.records else None,
        events=tuple(map(_event, node.control_entries)),
        game_version=node.game_version or "",
    )


def _samples(node: CGameCtnGhost, path: Path) -> GhostSamples:
    records = node.records
    period_ms = node.sample_period
    if not 1 <= period_ms <= 10_000:
        raise GbxError(f"{path}: damaged: a sample every {period_ms} ms, which no ghost has")
    position_m = np.array([record.position.as_array() for record in records], dtype=np.float64)
    if not (np.abs(position_m) < _MAX_SAMPLE_M).all():  # also false for NaN
        raise GbxError(f"{path}: damaged: its car is at places where no car can be")
    packed = np.array(
        [(record.angle, record.axis_heading, record.axis_pitch, record.speed) for record in records], dtype=np.float64
    )
    speed = packed[:, 3]
    return GhostSamples(
        period_ms=period_ms,
        time_ms=np.arange(len(records)) * period_ms,
        position_m=position_m,
        rotation=_quaternions(*packed[:, :3].T),
        speed_m_s=np.where(speed == _NO_SPEED, 0.0, np.exp(speed / 1000.0)),
    )


def _quaternions(
    angle: npt.NDArray[np.float64], axis_heading: npt.NDArray[np.float64], axis_pitch: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return unit quaternions (S, 4), w first, from a ghost's 16-bit numbers: half the turn's angle, and the axis."""
    half_angle = angle * (np.pi / 0xFFFF)
    heading = axis_heading * (np.pi / 0x7FFF)
    pitch = axis_pitch * (np.pi / 2 / 0x7FFF)
    axis = np.stack((np.cos(heading) * np.cos(pitch), np.sin(heading) * np.cos(pitch), np.sin(pitch)), axis=1)
    return np.concatenate((np.cos(half_angle)[:, None], np.sin(half_angle)[:, None] * axis), axis=1)


def _event(entry: ControlEntry) -> ControlEvent:
    is_analog = entry.event_name in ("Steer", "Gas")
    return ControlEvent(entry.time, entry.event_name or "", _analog_value(entry) if is_analog else int(entry.enabled))


def _analog_value(entry: ControlEntry) -> int:
    """Return an analog input's value: a signed 24-bit number with the sign inverted."""
    raw = (entry.flags << 16 | entry.enabled) & 0xFFFFFF
    return -(raw - (1 << 24) if raw >= 1 << 23 else raw)


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
