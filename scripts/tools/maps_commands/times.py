"""Print race and checkpoint times of replays and ghosts, by map and time.

Files that can't be read are listed at the end with the reason; the exit code is then 1, as it is without any replay.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from maps_commands._reporting import say
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import MedalTimes
from trackmania_rl.gbx.replay import is_replay_file, read_replay
from trackmania_rl.telemetry.tables import print_table
from trackmania_rl.telemetry.terminal_view import format_time

from rich.table import Table
from rich.text import Text

UNKNOWN_MAP = "unknown map"
"""Map in a `.Ghost.Gbx`, which contains none."""


@dataclass(frozen=True)
class RaceTimes:
    """One ghost's times; `reference` are the map's in the same file."""

    map: str
    race_time_ms: int | None
    checkpoint_times_ms: tuple[int, ...]
    driver: str
    n_respawns: int
    file: str
    reference: MedalTimes | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="FOLDER_OR_FILE", help="folders are searched with all in them")
    add("--json", action="store_true", help="print one JSON object: races, unreadable")


def run(arguments: argparse.Namespace) -> int:
    files = dict.fromkeys(find_replays(arguments.paths))
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
        print_times(races, unreadable)
    return 1 if unreadable or not files else 0


def find_replays(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the named files, and the replays and ghosts in the named folders.

    Raises:
        UserError: if a name has none.
    """
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if is_replay_file(file))
        elif path.exists():
            yield path
        else:
            raise UserError(f"{path}: no such file or folder")


def read_times(file: Path) -> list[RaceTimes]:
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


def print_times(races: Sequence[RaceTimes], unreadable: dict[str, str]) -> None:
    for map_name, of_map in groupby(races, key=lambda race: race.map):
        rows = list(of_map)
        reference = rows[0].reference
        times = {} if reference is None else {"author": reference.author_ms, "gold": reference.gold_ms}
        named = ", ".join(f"{name} {format_time(time)}" for name, time in times.items() if time is not None)
        say(f"{map_name}  {named}".rstrip())
        table = Table(box=None, padding=(0, 2, 0, 2), pad_edge=False, header_style="cyan")
        table.add_column("time", justify="right", no_wrap=True)
        for heading in ("driver", "respawns", "checkpoints", "file"):
            table.add_column(heading)
        for race in rows:
            checkpoints = " ".join(map(format_time, race.checkpoint_times_ms)) or "none"
            driver, file = Text(race.driver or "unknown"), Text(Path(race.file).name)
            time = "not finished" if race.race_time_ms is None else format_time(race.race_time_ms)
            table.add_row(time, driver, str(race.n_respawns), checkpoints, file)
        print_table(table)
        print()
    if unreadable:
        say("not readable")
    for path, reason in unreadable.items():
        say(f"{path}: {reason}")
    if not races and not unreadable:
        say("no replay or ghost (.Replay.Gbx, .Ghost.Gbx) is there")
