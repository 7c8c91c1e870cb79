"""Drive unseen generated tracks with one driver, once each, greedily: how many it finishes, and where it fails.

Tracks are `generated:DIFFICULTY:SEED` of seeds from 100,000 on, which no configuration names. The same command resumes
an interrupted measurement: races are kept in OUTPUT/races.jsonl, one line each.

Examples:
  python -m benchmarks.generalist save/many_tracks --output unseen
  python -m benchmarks.generalist drivers/generalist.driver --difficulties 0.5 --tracks 20 --output unseen
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import track
from rich.table import Table

from trackmania_rl.cli import command, end_in_order_when_terminated, whole_number
from trackmania_rl.places import PROJECT_FOLDER
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry.tables import print_table

if TYPE_CHECKING:
    from benchmarks.generalist.unseen_races import UnseenRace

FIRST_SEED: Final = 100_000
DIFFICULTIES: Final = (0.3, 0.5, 0.8)


@command
def main() -> None:
    """Run the command line."""
    arguments = parse_arguments()
    end_in_order_when_terminated()
    # Torch takes seconds to import: after the command line and its mistakes.
    from benchmarks.generalist.unseen_races import drive, keep, kept_races
    from trackmania_rl.training.evaluation import load_driver

    driver = load_driver(arguments.driver)
    check_sum = check_sum_of(driver.file)
    arguments.output.mkdir(parents=True, exist_ok=True)
    races_file = arguments.output / "races.jsonl"
    races = kept_races(races_file, check_sum)
    asked_for = [
        TrackRecipe(FIRST_SEED + number, difficulty)
        for difficulty in arguments.difficulties
        for number in range(arguments.tracks)
    ]
    missing = [recipe for recipe in asked_for if recipe not in races]
    maps_folder = PROJECT_FOLDER / driver.settings.game.maps_folder
    driven = drive(driver, missing, arguments.output, maps_folder)
    for race in track(driven, "driving", len(missing), disable=not sys.stdout.isatty()):
        keep(races_file, check_sum, race)
        races[race.recipe] = race
    report([races[recipe] for recipe in asked_for])


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("driver", type=Path, metavar="DRIVER", help="a run's folder or a driver's file")
    add("--difficulties", type=float, nargs="+", default=DIFFICULTIES, metavar="D", help="default: 0.3 0.5 0.8")
    add("--tracks", type=whole_number(1), default=100, metavar="N", help="of each difficulty (default %(default)s)")
    add("--output", type=Path, required=True, metavar="FOLDER", help="where races and tracks are kept")
    return parser.parse_args()


def check_sum_of(file: Path) -> str:
    """SHA-256 of a driver's file, or of a checkpoint's manifest, which has those of its parts."""
    part = file / "manifest.json" if file.is_dir() else file
    return hashlib.sha256(part.read_bytes()).hexdigest()


def report(races: Sequence[UnseenRace]) -> None:
    """Print finishes and times by difficulty, and where the other races ended."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table("difficulty", "finished", "median time")
    for difficulty in sorted({race.difficulty for race in races}):
        of_it = [race for race in races if race.difficulty == difficulty]
        times_s = [race.time_ms / 1000 for race in of_it if race.is_finished]
        median = f"{statistics.median(times_s):.2f} s" if times_s else "-"
        table.add_row(f"{difficulty:g}", f"{len(times_s)} of {len(of_it)}", median)
    print_table(table, console)
    ended = Counter((race.reason or "", race.road) for race in races if not race.is_finished)
    if ended:
        table = Table("cut off for", "road on the last 100 m", "races")
        for (reason, road), count in ended.most_common():
            table.add_row(reason, road, str(count))
        print_table(table, console)


if __name__ == "__main__":
    sys.exit(main())
