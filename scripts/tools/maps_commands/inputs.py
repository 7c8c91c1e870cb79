"""`maps.py inputs`: a replay's inputs as a script of TMInterface, or a script's as a ghost would hold them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.replay import Ghost, is_replay_file, read_replay
from trackmania_rl.gbx.replay_inputs import ghost_events_of_script, ghost_of_driver, script_of_ghost
from trackmania_rl.protocol.input_script import read_input_script, write_input_script
from trackmania_rl.telemetry.terminal_view import format_time


def add_parser(subparsers: Any) -> None:
    """Add the command `inputs`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inputs",
        help="a replay's inputs as a TMInterface script, and back",
        description="Write a replay's inputs as an input script that TMInterface's `load` command reads. "
        "With --ghost-events, list the events of a replay, or those that the ghost of a script's race would hold.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a replay or ghost (.Gbx), or an inputs file")
    parser.add_argument("--driver", metavar="LOGIN", help="whose ghost (default: the fastest)")
    parser.add_argument("--output", type=Path, metavar="FILE.inputs", help="where to write (default: the terminal)")
    parser.add_argument("--ghost-events", action="store_true", help="list events as a ghost has them: ms, name, value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert the file."""
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
    try:
        arguments.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{arguments.output}: cannot be written: {error.strerror}") from error
    print("\n".join([f"wrote {arguments.output}", *notes]))
    return 0


def _script(path: Path, ghost: Ghost) -> tuple[str, list[str]]:
    """The script of a ghost, with a comment at its head, and what was lost on the way."""
    script = script_of_ghost(ghost, path)
    # A file's own name and a login may hold anything, also what would end the comment.
    head = " ".join(f"{path.name}, driver {ghost.login or 'unknown'}, {format_time(ghost.race_time_ms)}".split())
    notes = [f"{len(script.events)} inputs of {ghost.login or 'an unknown driver'}"]
    if script.n_rounded:
        notes.append(f"{script.n_rounded} of them lost milliseconds within a tick: scripts count in ticks of 10 ms")
    if script.n_before_start:
        notes.append(f"{script.n_before_start} from before the start became what is held at the start")
    notes += [
        f"left out: {count} events {name}, for which scripts have no word" for name, count in script.unknown.items()
    ]
    return f"# {head}\n{write_input_script(script.events)}", notes
