"""Records as files: a race as a TMInterface inputs script, and the yardsticks that are made of them.

`records/{track}.inputs` is what `scripts/replay_inputs.py` plays; `yardsticks.json` holds every track's times.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from research.planner.racing import ACTION_MS, KEYS
from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import Input, events_from_actions, parse_input_script, write_input_script
from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.simulator.physics.gates import road_gates_of_track
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.world import Track
from trackmania_rl.tmi_interaction.script_player import LONGEST_RACE_MS, PATIENCE_MS

Actions = npt.NDArray[np.int8]
Entry = dict[str, Any]
"""One track's yardsticks: see docs/driving_benchmark.rst."""

KEPT_ENTRIES: Final = ("search_s", "wheel_ms", "wheel_search_s")
"""Of a stored entry, what holds as long as the track is the same."""

_ACTION_OF_KEYS: Final = {keys: action for action, keys in enumerate(KEYS)}


class StoredYardsticks(NamedTuple):
    """Where they are.

    Attributes:
        yardsticks: the file of all tracks' times.
        records: the folder of the fastest races.
        lines: the folder of the lines that the search with keys ended with.
    """

    yardsticks: Path
    records: Path
    lines: Path


def script_of_actions(actions: Actions) -> str:
    """Return the inputs script of (T,) actions."""
    return write_input_script(events_from_actions([KEYS[action] for action in actions], ACTION_MS))


def actions_of_script(text: str, n_actions: int) -> Actions:
    """Return the (n_actions,) actions that a script makes.

    Raises:
        UserError: if a key changes within an action, both steering keys are held at once, or an input is no key that
            actions have.
    """
    names = {Input.LEFT: "left", Input.RIGHT: "right", Input.ACCELERATE: "accelerate", Input.BRAKE: "brake"}
    held = dict.fromkeys(names.values(), False)
    actions = np.zeros(n_actions, dtype=np.int8)
    events = parse_input_script(text)
    done = 0
    for k in range(n_actions):
        while done < len(events) and events[done].time_ms <= k * ACTION_MS:
            event = events[done]
            if event.input not in names or event.time_ms % ACTION_MS:
                raise UserError(f"{event} is none of an agent's actions, which last {ACTION_MS} ms")
            held[names[event.input]] = bool(event.value)
            done += 1
        keys = KeyState(**held)
        if keys not in _ACTION_OF_KEYS:
            raise UserError(f"{keys} at {k * ACTION_MS} ms is none of an agent's actions")
        actions[k] = _ACTION_OF_KEYS[keys]
    return actions


def actions_of_keys(keys: npt.NDArray[np.bool_]) -> Actions:
    """Return the (T,) actions of (T, 4) keys: accelerate, brake, left, right, as the scripted driver reports them."""
    held = [KeyState(accelerate=up, brake=down, left=left, right=right) for up, down, left, right in keys.tolist()]
    return np.array([_ACTION_OF_KEYS[keys] for keys in held], dtype=np.int8)


def replay_ms(track: Track, script: str) -> int | None:
    """Play a script in a simulated race of its own; return the official time, or None where it does not finish."""
    race = SimulatedRace(track)
    events = parse_input_script(script)
    race.play_script(events)
    until_ms = min(PATIENCE_MS + max((event.time_ms for event in events), default=0), LONGEST_RACE_MS)
    while not race.is_finished and race.tick_time_ms < until_ms:
        race.advance(1000)
    return race.checkpoint_times_ms[-1] if race.is_finished else None


def read_entries(file: Path) -> dict[str, Entry]:
    """Return every track's yardsticks, {} where there is no file yet.

    Raises:
        UserError: if the file is damaged.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error}; delete it, and make it again") from error


def write_entry(file: Path, name: str, entry: Entry) -> None:
    """Put one track's yardsticks into the file; the others stay."""
    entries = read_entries(file) | {name: entry}
    write_whole(file, json.dumps(dict(sorted(entries.items())), indent=2).encode() + b"\n")


def write_whole(file: Path, content: bytes) -> None:
    """Write a file so that nobody ever sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(file)


def length_m(track: Track) -> float:
    """Metres from the start line to the finish, all laps."""
    return float(road_gates_of_track(track).station_m[-1])
