"""Runs the parts, keeps what each has found, and prints the table."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.endurance import damaged_files, hour, kills, repeated_deaths, shortages, standstills
from benchmarks.endurance.outcomes import Outcome, read_outcomes, write_outcomes

PARTS: Final[dict[str, Callable[[argparse.Namespace, Path], list[Outcome]]]] = {
    "kills": kills.measure,
    "standstills": standstills.measure,
    "repeated_deaths": repeated_deaths.measure,
    "shortages": shortages.measure,
    "damaged_files": damaged_files.measure,
    "hour": hour.measure,
}


def main() -> int:
    asked = parse_arguments()
    asked.output.mkdir(parents=True, exist_ok=True)
    for name in asked.only:
        file = asked.output / f"{name}.json"
        if file.exists() and not asked.again:
            print(f"{name}: measured before, see {file} (--again to measure it anew)", flush=True)
            continue
        print(f"{name} begins", flush=True)
        shutil.rmtree(asked.output / name, ignore_errors=True)  # what an interrupted measurement has left
        write_outcomes(file, PARTS[name](asked, asked.output / name))
    files = [asked.output / f"{name}.json" for name in PARTS]
    outcomes = [outcome for file in files if file.exists() for outcome in read_outcomes(file)]
    print_outcomes(outcomes)
    return 0 if all(outcome.survived == outcome.tries for outcome in outcomes) else 1


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.endurance",
        description=sys.modules["benchmarks.endurance"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("endurance"), help="folder for runs and findings (default %(default)s)")
    add("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    add("--again", action="store_true", help="measure anew what was measured before")
    add("--seed", type=int, default=0, help="of every draw (default %(default)s)")
    add("--kills", type=int, default=200, help="processes killed (default %(default)s)")
    add("--death-minutes", type=float, default=10.0, help="how long a collector dies every ten seconds (%(default)s)")
    add("--hour-minutes", type=float, default=60.0, help="how long memory is watched (default %(default)s)")
    return parser.parse_args()


def print_outcomes(outcomes: list[Outcome]) -> None:
    """Print the table, and below it what went otherwise than promised."""
    table = Table("what was done", "promised", "as promised", "measured")
    for outcome in outcomes:
        table.add_row(outcome.what, outcome.promised, f"{outcome.survived} of {outcome.tries}", outcome.told)
    console = Console(width=140)
    console.print(table)
    for outcome in outcomes:
        for failure in outcome.failures:
            console.print(f"\n[bold]{outcome.what}[/bold]", failure, markup=True, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
