"""Find the fastest race of a track, or a faster one than is known; scores are held against it from then on.

    python -m research.planner valley kart --minutes 5
    python -m research.planner valley --keys-only --begin-with save/simulated/best_runs/*/*.inputs
    python -m research.planner valley --wheel
    python -m research.planner generated:0.5:7 my_tracks/mine.toml --output-folder my_tracks/yardsticks

Writes `research/planner/records/{track}.inputs` and `benchmarks/driving/yardsticks.json`. What is stored already is
where the search begins; it is never replaced by a slower race, so that running this again and again makes the
yardsticks better. Every race is replayed from its file before its time is written down. The same stored files, seed and
number of rounds give the same race.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.driving.tracks import find_tracks
from research.planner.plan import DRIVES_OF_TUNING, TRIALS_PER_ROUND, TrackPlanner
from research.planner.plans import StoredYardsticks
from research.planner.wheel_plan import WheelPlanner
from trackmania_rl.cli import command, end_in_order_when_terminated, whole_number
from trackmania_rl.errors import UserError

FOLDER: Final = Path(__file__).resolve().parent
YARDSTICKS: Final = FOLDER.parents[1] / "benchmarks" / "driving" / "yardsticks.json"
SHIPPED_TRACKS: Final = ("valley", "speedway", "hills", "kart", "rally", "jump", "ring")


@command
def main(command_line: list[str] | None = None) -> None:
    """Run the command line."""
    arguments = parse_arguments(command_line)
    if arguments.begin_with and len(arguments.tracks) != 1:
        raise UserError("--begin-with is about one track: name it")
    with tempfile.TemporaryDirectory(prefix="trackmania_rl_tracks_") as folder:
        for file in find_tracks(arguments.tracks, Path(folder)):
            search_with_wheel(file, arguments) if arguments.wheel else search_with_keys(file, arguments)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m research.planner", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "tracks",
        nargs="*",
        default=SHIPPED_TRACKS,
        metavar="TRACK",
        help="tracks of maps/, track files (.toml or .npy), or generated:DIFFICULTY:SEED (default: all that ship)",
    )
    add("--minutes", type=float, default=5.0, help="of each track, by the clock (default %(default)s)")
    add("--rounds", type=whole_number(0), help="of each track, instead of --minutes; repeatable to the byte")
    add("--seed", type=whole_number(0, 2**31 - 1), default=0, help="of the search (default %(default)s)")
    add("--trials", type=whole_number(1), default=TRIALS_PER_ROUND, help="changes tried per round")
    add("--tuning-drives", type=whole_number(2), default=DRIVES_OF_TUNING, help="of the scripted driver")
    add(
        "--begin-with",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE.inputs",
        help="races of one track, a driver's for example, to improve on where one is faster than the record",
    )
    add("--keys-only", action="store_true", help="improve the record itself, and look for no other lines")
    add("--wheel", action="store_true", help="steer by any angle: a record of its own, from the one with keys on")
    add(
        "--output-folder",
        type=Path,
        help="for yardsticks.json, records/ and lines/ (default: benchmarks/driving/ and this folder)",
    )
    return parser.parse_args(arguments)


def search_with_keys(track_file: Path, arguments: argparse.Namespace) -> None:
    """Make or improve one track's yardsticks, and say how it goes."""
    planner = TrackPlanner(
        track_file, _stored(arguments), arguments.seed, arguments.tuning_drives, arguments.begin_with
    )
    entry = planner.entry
    print(
        f"{planner.name}: {entry['length_m']:.0f} m, scripted careful {entry['scripted_careful_ms']} ms, "
        f"fast {entry['scripted_fast_ms']} ms, tuned {entry['scripted_tuned_ms']} ms; record {entry['record_ms']} ms",
        flush=True,
    )
    for number in rounds(arguments.minutes, arguments.rounds):
        if planner.play_round(arguments.trials, is_keys_only=arguments.keys_only):
            print(f"{planner.name}: round {number}: {planner.entry['record_ms']} ms", flush=True)
    print(f"{planner.name}: {planner.entry['record_ms']} ms in {planner.script}", flush=True)


def search_with_wheel(track_file: Path, arguments: argparse.Namespace) -> None:
    """Make or improve one track's record with a wheel, and say how it goes."""
    planner = WheelPlanner(track_file, _stored(arguments), arguments.seed, arguments.begin_with)
    print(f"{planner.name}: with keys {planner.entry['record_ms']} ms, with a wheel {planner.entry['wheel_ms']} ms")
    for number in rounds(arguments.minutes, arguments.rounds):
        if planner.play_round(arguments.trials):
            print(f"{planner.name}: round {number}: {planner.entry['wheel_ms']} ms", flush=True)
    print(f"{planner.name}: {planner.entry['wheel_ms']} ms in {planner.script}", flush=True)


def rounds(minutes: float, limit: int | None) -> Iterator[int]:
    """Numbers from 0 on, until the time is over or `limit` is reached."""
    ends_s = time.monotonic() + 60.0 * minutes
    number = 0
    while (limit is None and time.monotonic() < ends_s) or (limit is not None and number < limit):
        yield number
        number += 1


def _stored(arguments: argparse.Namespace) -> StoredYardsticks:
    folder = arguments.output_folder
    if folder is None:
        return StoredYardsticks(YARDSTICKS, FOLDER / "records", FOLDER / "lines")
    return StoredYardsticks(folder / "yardsticks.json", folder / "records", folder / "lines")


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
