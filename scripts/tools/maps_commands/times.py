"""`maps.py times`: race and checkpoint times of replays, by map."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.gbx.replay import is_replay_file, read_replay
from trackmania_rl.telemetry.tables import print_table
from trackmania_rl.telemetry.terminal_view import format_time

UNKNOWN_MAP = "unknown map"
"""Of a `.Ghost.Gbx`, which holds no map."""


@dataclass(frozen=True)
class RaceTimes:
    """One ghost of a file; `reference` are the times of the map in the same file, None where it holds none."""

    map: str
    race_time_ms: int | None
    checkpoint_times_ms: tuple[int, ...]
    driver: str
    n_respawns: int
    file: str
    reference: MedalTimes | None


def add_parser(subparsers: Any) -> None:
    """Add the command `times`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "times",
        help="race and checkpoint times of replays",
        description="Print the times of all races in replays and ghosts, by map and time. Files that can't be read are "
        "listed at the end with the reason; the exit code is 1 then, and also if there is no replay at all.",
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="FOLDER_OR_FILE", help="folders are searched with all in them"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: races, unreadable")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the times."""
    files = find_replays(arguments.paths)
    races: list[RaceTimes] = []
    unreadable: dict[str, str] = {}
    for file in files:
        try:
            races += read_times(file)
        except UserError as error:
            unreadable[str(file)] = str(error).removeprefix(f"{file}: ")
    races.sort(key=lambda race: (race.map.lower(), race.map, race.race_time_ms is None, race.race_time_ms, race.file))
    if arguments.json:
        of_files = [{"file": file, "reason": reason} for file, reason in unreadable.items()]
        print(json.dumps({"races": [asdict(race) for race in races], "unreadable": of_files}, indent=1))
    else:
        print_times(Console(), races, unreadable)
    return 1 if unreadable or not files else 0


def find_replays(paths: Sequence[Path]) -> list[Path]:
    """The files that are named, and the replays and ghosts in the folders that are named, each once.

    Raises:
        UserError: if there is nothing under a name.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            files |= dict.fromkeys(sorted(file for file in path.rglob("*") if is_replay_file(file)))
        elif path.exists():
            files[path] = None
        else:
            raise UserError(f"{path}: no such file or folder")
    return list(files)


def read_times(file: Path) -> list[RaceTimes]:
    """The times of each ghost in a file."""
    replay = read_replay(file)
    challenge = replay.challenge
    return [
        RaceTimes(
            map=UNKNOWN_MAP if challenge is None else challenge.plain_name,
            race_time_ms=ghost.race_time_ms,
            checkpoint_times_ms=ghost.checkpoint_times_ms,
            driver=ghost.login,
            n_respawns=ghost.n_respawns,
            file=str(file),
            reference=None if challenge is None else challenge.times,
        )
        for ghost in replay.ghosts
    ]


def print_times(console: Console, races: Sequence[RaceTimes], unreadable: dict[str, str]) -> None:
    """Print a table for each map; texts from files are shown as they are, never taken for markup."""
    for map_name, of_map in groupby(races, key=lambda race: race.map):
        rows = list(of_map)
        console.print(Text.assemble((map_name, "bold"), _reference_text(rows[0].reference)), soft_wrap=True)
        table = Table(box=None, padding=(0, 2, 0, 2), pad_edge=False, header_style="cyan")
        table.add_column("time", justify="right", no_wrap=True)
        table.add_column("driver")
        table.add_column("respawns", justify="right")
        table.add_column("checkpoints")
        table.add_column("file", overflow="fold")
        for race in rows:
            checkpoints = " ".join(map(format_time, race.checkpoint_times_ms)) or "none"
            driver, file = Text(race.driver or "unknown"), Text(Path(race.file).name)
            time = "not finished" if race.race_time_ms is None else format_time(race.race_time_ms)
            table.add_row(time, driver, str(race.n_respawns), checkpoints, file)
        print_table(table, console)
        console.print()
    if unreadable:
        console.print(Text("not readable", style="bold red"))
        for path, reason in unreadable.items():
            console.print(Text(f"{path}: {reason}"), soft_wrap=True)
    if not races and not unreadable:
        console.print("no replay or ghost (.Replay.Gbx, .Ghost.Gbx) is there")


def _reference_text(reference: MedalTimes | None) -> str:
    if reference is None or reference.author_ms is None:
        return ""
    gold = "" if reference.gold_ms is None else f", gold {format_time(reference.gold_ms)}"
    return f"  author {format_time(reference.author_ms)}{gold}"
