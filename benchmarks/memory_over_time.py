"""Memory, descriptors and threads of each process of a long training.

python -m benchmarks.memory_over_time --minutes 60 --json memory.json
python -m benchmarks.memory_over_time --minutes 60 --set game_transport=socket --set n_collectors=2

By default with 160x120 frames, a small network and a memory that is full after the first tenth: later growth is a leak.
Shared pages (rollout slots, weights) are counted in each process that touches them. The exit code is 1 if a process has
grown by more than 2 % after the first third, has other numbers of descriptors or threads, or was replaced.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.table import Table

from benchmarks.training_command import TrainCommand
from trackmania_rl.cli import new_file
from trackmania_rl.telemetry.tables import print_table

DEFAULT_SETTINGS = (
    "image_width_px=160",
    "image_height_px=120",
    "memory_size_schedule=((0, 20_000),)",
    "conv_channels=(4, 8, 8, 8)",
    "checkpoint_interval_s=600",
)
SETTLED_SHARE = 1 / 3
"""Growth is counted from this share of the run on: before it, memories fill and caches warm up."""
LARGEST_GROWTH = 0.02
AVERAGED_READINGS = 5
NAMES = {"spawn_main": "collector", "simulated_game": "game", "resource_tracker": "resource tracker"}
"""Names of processes by a part of their command line."""


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """State of one process; `memory_mb` is resident, descriptors are files, sockets and pipes."""

    pid: int
    name: str
    memory_mb: float
    n_descriptors: int
    n_threads: int


@dataclass(frozen=True, slots=True)
class Reading:
    """State of a training's processes, minutes after its first race: the learner, then its children by pid."""

    minute: float
    processes: tuple[ProcessReading, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run (default %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as of scripts/train.py")
    parser.add_argument("--json", type=new_file, help="write all readings to this file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        readings = train_and_read(Path(folder), 60 * asked.minutes, [*DEFAULT_SETTINGS, *asked.set])
    if asked.json:
        asked.json.write_text(json.dumps([asdict(reading) for reading in readings], indent=1))
    print_readings(readings)
    growths, found = judge(readings)
    print(", ".join(growths))
    for text in found:
        print(f"error: {text}", file=sys.stderr)
    return int(bool(found))


def train_and_read(folder: Path, duration_s: float, overrides: list[str]) -> list[Reading]:
    """Train for a time from the first race on; read every hundredth of it, at least every half minute.

    Raises:
        TrainingFailedError: if the training ends before.
    """
    settings = dict(override.split("=", 1) for override in overrides)
    readings: list[Reading] = []
    with TrainCommand(folder, settings) as command:
        command.wait_for_races()
        learner, began_s = psutil.Process(command.process.pid), time.monotonic()

        def read() -> None:
            processes = [_read(learner, "learner")]
            for child in sorted(command.children(""), key=lambda child: child.pid):
                try:
                    processes.append(_read(child))
                except psutil.NoSuchProcess:  # ended since it was listed
                    continue
            readings.append(Reading((time.monotonic() - began_s) / 60, tuple(processes)))

        command.watch(duration_s, read, min(30.0, duration_s / 100))
        command.stop(signal.SIGTERM)
    return readings


def _read(process: psutil.Process, name: str = "") -> ProcessReading:
    with process.oneshot():
        line = " ".join(process.cmdline())
        name = name or next((name for part, name in NAMES.items() if part in line), process.name())
        memory_mb = process.memory_info().rss / 1e6
        return ProcessReading(process.pid, name, memory_mb, process.num_fds(), process.num_threads())


def print_readings(readings: Sequence[Reading]) -> None:
    """Print a dozen readings."""
    table = Table("minute", "learner, MB", "children, MB", "descriptors", "threads")
    for reading in readings[:: max(1, len(readings) // 12)]:
        learner, *children = (f"{process.memory_mb:.0f}" for process in reading.processes)
        n_descriptors = sum(process.n_descriptors for process in reading.processes)
        n_threads = sum(process.n_threads for process in reading.processes)
        table.add_row(f"{reading.minute:.1f}", learner, ", ".join(children), str(n_descriptors), str(n_threads))
    print_table(table)


def judge(readings: Sequence[Reading]) -> tuple[list[str], list[str]]:
    """Return each process's growth since it settled, and the faults that were found."""
    settled = readings[int(SETTLED_SHARE * len(readings)) :]
    first, last = settled[:AVERAGED_READINGS], settled[-AVERAGED_READINGS:]
    growths, found = [], []
    for process in first[0].processes:
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
    return growths, found


def _of(readings: Sequence[Reading], pid: int) -> list[ProcessReading]:
    return [one for reading in readings for one in reading.processes if one.pid == pid]


if __name__ == "__main__":
    sys.exit(main())
