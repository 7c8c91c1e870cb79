"""Memory, descriptors and threads of each process of a long training.

python -m benchmarks.memory_over_time --minutes 60 --json memory.json
python -m benchmarks.memory_over_time --minutes 5 --set n_collectors=2

By default with 160x120 frames, a small network and a memory that is full after the first tenth: later growth is a leak.
Shared pages (rollout slots, weights) are counted in each process that touches them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.training_command import TrainCommand
from trackmania_rl.cli import new_file

DEFAULT_SETTINGS = (
    "image_width_px=160",
    "image_height_px=120",
    "memory_size_schedule=((0, 20_000),)",
    "conv_channels=(4, 8, 8, 8)",
    "checkpoint_interval_s=600",
)
SETTLED_SHARE = 0.25
"""Growth is counted from this share of the run on: before it, memories fill and caches warm up."""
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
    """State of a training's processes, minutes after its first race; children are sorted by pid."""

    minute: float
    learner: ProcessReading
    children: tuple[ProcessReading, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run (default %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as of scripts/train.py")
    parser.add_argument("--json", type=new_file, help="write all readings to this file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        readings = train_and_read(Path(folder), 60 * asked.minutes, [*DEFAULT_SETTINGS, *asked.set])
    print_readings(readings)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(reading) for reading in readings], indent=1))
    return 0


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
            children = []
            for child in command.children(""):
                try:
                    children.append(_read(child))
                except psutil.NoSuchProcess:  # ended since it was listed
                    continue
            children.sort(key=lambda child: child.pid)
            minute = (time.monotonic() - began_s) / 60
            readings.append(Reading(minute, _read(learner, "learner"), tuple(children)))

        command.watch(duration_s, read, min(30.0, duration_s / 100))
        command.stop(signal.SIGTERM)
    return readings


def _read(process: psutil.Process, name: str = "") -> ProcessReading:
    with process.oneshot():
        line = " ".join(process.cmdline())
        name = name or next((name for part, name in NAMES.items() if part in line), process.name())
        memory_mb = process.memory_info().rss / 1e6
        return ProcessReading(process.pid, name, memory_mb, process.num_fds(), process.num_threads())


def print_readings(readings: list[Reading]) -> None:
    """Print a dozen readings, and the growth since the run settled."""
    table = Table("minute", "learner, MB", "children, MB", "descriptors", "threads")
    for reading in readings[:: max(1, len(readings) // 12)]:
        processes = (reading.learner, *reading.children)
        table.add_row(
            f"{reading.minute:.1f}",
            f"{reading.learner.memory_mb:.0f}",
            ", ".join(f"{child.memory_mb:.0f}" for child in reading.children),
            str(sum(process.n_descriptors for process in processes)),
            str(sum(process.n_threads for process in processes)),
        )
    settled, last = readings[int(SETTLED_SHARE * len(readings))], readings[-1]
    children_mb = [sum(child.memory_mb for child in reading.children) for reading in (settled, last)]
    console = Console()
    console.print(table)
    console.print(
        f"from minute {settled.minute:.1f} to {last.minute:.1f}: learner "
        f"{last.learner.memory_mb - settled.learner.memory_mb:+.1f} MB, children "
        f"{children_mb[1] - children_mb[0]:+.1f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
