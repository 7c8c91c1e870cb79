"""Command line of the endurance benchmark: runs the parts, keeps their results, and prints the table."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.endurance import faults, kills
from benchmarks.endurance.experiments import Outcome, tried
from benchmarks.memory_over_time import ProcessReading, Reading, train_and_read
from benchmarks.training_command import PROJECT
from trackmania_rl.files import write_durably

TESTS_OF_FILES: Final = {
    "damaged and forged checkpoints, over 200": ("tests/runs/test_hostile.py",),
    "200 mutated driver files, 33 bombs": ("tests/hostile", "-m", "slow or not slow"),
    "killed at each step of writing a checkpoint, and within what processes share": (
        "tests/runs/test_crashes.py",
        "tests/channels/test_critical_sections.py",
    ),
    "N steps, kill, resume, M steps equal N + M, byte for byte": ("tests/training/test_turns.py",),
}
"""Arguments of pytest by what they test. Whole trainings take half an hour more:
`python -m pytest -m slow tests/end_to_end/test_synchronous.py`."""
HOUR_SETTINGS: Final = (
    "game_transport=socket",
    "n_collectors=2",
    "games_per_collector=2",
    "memory_size_schedule=((0, 20_000),)",
    "checkpoint_interval_s=60",
)
SETTLED_SHARE: Final = 1 / 3
"""Memories fill in this share of the time."""
LARGEST_GROWTH: Final = 0.02
AVERAGED_READINGS: Final = 5


def measure_damaged_files(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Run the tests that read damaged and hostile files by the hundred; each is a try."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number, (what, tests) in enumerate(TESTS_OF_FILES.items()):
        outcome, report = Outcome(what, "refused by name, or the same bytes"), folder / f"{number}.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *tests]
        subprocess.run(command, cwd=PROJECT, check=False, stdout=subprocess.DEVNULL)
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            if case.find("skipped") is None:
                failures = [*case.iter("failure"), *case.iter("error")]
                outcome.count(f"{case.get('name')}: {failures[0].get('message')}" if failures else None)
        outcomes.append(outcome)
    return outcomes


def measure_hour(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Train for an hour with four games behind sockets and read memory, descriptors and threads."""
    minutes = asked.hour_minutes
    promised = f"no process grows by {LARGEST_GROWTH:.0%} after a third of them, descriptors and threads constant"
    return [
        tried(
            f"{minutes:g} minutes with four socket games",
            promised,
            lambda place: judge(train_and_read(place, 60 * minutes, list(HOUR_SETTINGS))),
            folder,
        )
    ]


def judge(readings: list[Reading]) -> str:
    """Return each process's growth since it settled.

    Raises:
        AssertionError: if one has grown by more than `LARGEST_GROWTH`, has other numbers of descriptors or threads, or
            was replaced.
    """
    settled = readings[int(SETTLED_SHARE * len(readings)) :]
    first, last = settled[:AVERAGED_READINGS], settled[-AVERAGED_READINGS:]
    growths, found = [], []
    for process in (first[0].learner, *first[0].children):
        before, after = _of(first, process.pid), _of(last, process.pid)
        name = f"{process.name} {process.pid}"
        if len(after) < len(last):
            found.append(f"{name} has ended")
            continue
        before_mb, after_mb = (statistics.median(one.memory_mb for one in some) for some in (before, after))
        growths.append(f"{process.name} {before_mb:.0f} MB {after_mb / before_mb - 1:+.1%}")
        counts = [(one.n_descriptors, one.n_threads) for one in (before[-1], after[-1])]
        if after_mb > (1 + LARGEST_GROWTH) * before_mb:
            found.append(f"{name} has grown from {before_mb:.1f} to {after_mb:.1f} MB")
        if counts[0] != counts[1]:
            found.append(f"{name} had {counts[0]} descriptors and threads, and has {counts[1]}")
    assert not found, "; ".join(found)
    return ", ".join(growths)


def _of(readings: list[Reading], pid: int) -> list[ProcessReading]:
    return [one for reading in readings for one in (reading.learner, *reading.children) if one.pid == pid]


PARTS: Final[dict[str, Callable[[argparse.Namespace, Path], list[Outcome]]]] = {
    "kills": kills.measure,
    "standstills": faults.measure_standstills,
    "repeated_deaths": faults.measure_repeated_deaths,
    "shortages": faults.measure_shortages,
    "damaged_files": measure_damaged_files,
    "hour": measure_hour,
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
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.endurance",
        description=sys.modules["benchmarks.endurance"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("endurance"), help="folder for runs and results (default %(default)s)")
    add("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    add("--again", action="store_true", help="measure anew what was measured before")
    add("--seed", type=int, default=0, help="of every draw (default %(default)s)")
    add("--kills", type=int, default=200, help="processes killed (default %(default)s)")
    add("--death-minutes", type=float, default=10.0, help="how long a collector dies every ten seconds (%(default)s)")
    add("--hour-minutes", type=float, default=60.0, help="how long memory is watched (default %(default)s)")
    return parser.parse_args()


def print_outcomes(outcomes: list[Outcome]) -> None:
    """Print the table, and the failures below it."""
    table = Table("what was done", "promised", "as promised", "measured")
    for outcome in outcomes:
        table.add_row(outcome.what, outcome.promised, f"{outcome.survived} of {outcome.tries}", outcome.measured)
    console = Console(width=140)
    console.print(table)
    for outcome in outcomes:
        for failure in outcome.failures:
            console.print(f"\n[bold]{outcome.what}[/bold]", failure, markup=True, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
