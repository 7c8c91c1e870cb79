"""Convert a replay's inputs to a TMInterface script, or back.

TMInterface's `load` command reads the script. With --ghost-events, list the events of a replay, or those that the ghost
of a script's race would have.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from trackmania_rl.cli import writing
from trackmania_rl.gbx.replay import (
    Ghost,
    ghost_events_of_script,
    ghost_of_driver,
    is_replay_file,
    read_replay,
    script_of_ghost,
)
from trackmania_rl.protocol.input_script import read_input_script, write_input_script
from trackmania_rl.telemetry.terminal_view import format_time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a replay or ghost (.Gbx), or an inputs file")
    add("--driver", metavar="LOGIN", help="whose ghost (default: the fastest)")
    add("--output", type=Path, metavar="FILE.inputs", help="where to write (default: the terminal)")
    add("--ghost-events", action="store_true", help="list events as a ghost has them: ms, name, value")


def run(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    ghost = ghost_of_driver(read_replay(path), arguments.driver) if is_replay_file(path) else None
    notes: list[str] = []
    if arguments.ghost_events:
        events = ghost.events if ghost is not None else ghost_events_of_script(read_input_script(path))
        text = "".join(f"{event.time_ms} {event.name} {event.value}\n" for event in events)
    elif ghost is not None:
        text, notes = _script(path, ghost)
    else:
        text = write_input_script(read_input_script(path))
    if arguments.output is None:
        print(text, end="")
        return 0
    with writing(arguments.output):
        arguments.output.write_text(text, encoding="utf-8")
    print("\n".join([f"wrote {arguments.output}", *notes]))
    return 0


def _script(path: Path, ghost: Ghost) -> tuple[str, list[str]]:
    """Return a ghost's script with a head comment, and notes on losses."""
    script = script_of_ghost(ghost, path)
    # A line break in these names would end the comment.
    head = " ".join(f"{path.name}, driver {ghost.login or 'unknown'}, {format_time(ghost.race_time_ms)}".split())
    notes = [f"{len(script.events)} inputs of {ghost.login or 'an unknown driver'}"]
    if script.n_rounded:
        notes.append(f"{script.n_rounded} of them lost milliseconds within a tick: scripts count in ticks of 10 ms")
    if script.n_before_start:
        notes.append(f"{script.n_before_start} from before the start became what is held at the start")
    for name, count in script.unknown.items():
        notes.append(f"left out: {count} events {name}, for which scripts have no word")
    return f"# {head}\n{write_input_script(script.events)}", notes
