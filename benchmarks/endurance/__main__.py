"""Trainings that are disturbed, and their state afterwards; see docs/long_runs.rst.

python -m benchmarks.endurance --output endurance                   # everything, about two hours
python -m benchmarks.endurance --output endurance --only shortages  # one part; earlier results are kept
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.table import Table

from benchmarks.endurance import faults, kills
from benchmarks.endurance.experiments import Outcome
from trackmania_rl.files import write_durably
from trackmania_rl.telemetry.tables import PlainConsole

PARTS: Final[dict[str, Callable[[argparse.Namespace, Path], list[Outcome]]]] = {
    "kills": kills.measure,
    "standstills": faults.measure_standstills,
    "repeated_deaths": faults.measure_repeated_deaths,
    "shortages": faults.measure_shortages,
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
        shutil.rmtree(asked.output / name, ignore_errors=True)  # left by an interrupted measurement
        outcomes = PARTS[name](asked, asked.output / name)
        write_durably(file, json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    files = [asked.output / f"{name}.json" for name in PARTS]
    outcomes = [Outcome(**values) for file in files if file.exists() for values in json.loads(file.read_text("utf-8"))]
    print_outcomes(outcomes)
    return 0 if all(outcome.survived == outcome.tries for outcome in outcomes) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.endurance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("endurance"), help="folder for runs and results (default %(default)s)")
    add("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    add("--again", action="store_true", help="measure anew what was measured before")
    add("--seed", type=int, default=0, help="of every draw (default %(default)s)")
    add("--kills", type=int, default=200, help="processes killed (default %(default)s)")
    add("--death-minutes", type=float, default=10.0, help="how long a collector dies every ten seconds (%(default)s)")
    return parser.parse_args()


def print_outcomes(outcomes: list[Outcome]) -> None:
    """Print the table, and the failures below it."""
    table = Table("what was done", "promised", "as promised", "measured")
    for outcome in outcomes:
        table.add_row(outcome.what, outcome.promised, f"{outcome.survived} of {outcome.tries}", outcome.measured)
    console = PlainConsole(width=140)
    console.print(table)
    for outcome in outcomes:
        for failure in outcome.failures:
            console.print(f"\n[bold]{outcome.what}[/bold]", failure, markup=True)


if __name__ == "__main__":
    sys.exit(main())
