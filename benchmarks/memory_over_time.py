"""Is memory flat? A long training from end to end, with what each of its processes holds: memory, descriptors, threads.

python -m benchmarks.memory_over_time --minutes 60 --json memory.json
python -m benchmarks.memory_over_time --minutes 5 --set n_collectors=2

By default with 160x120 frames, a small network and a memory that is full after the first tenth: what grows later is a
leak. Shared pages (rollout slots, weights) are counted in each process that touches them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from trackmania_rl.cli import new_file

PROJECT = Path(__file__).resolve().parent.parent
TRAIN = PROJECT / "scripts" / "train.py"
DEFAULT_SETTINGS = (
    "image_width_px=160",
    "image_height_px=120",
    "memory_size_schedule=((0, 20_000),)",
    "conv_channels=(4, 8, 8, 8)",
    "checkpoint_interval_s=600",
    "terminal_view=plain",
)
SETTLED_SHARE = 0.25
"""Growth is counted from this share of the run on: before it, memories fill and caches warm up."""


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """What one process holds.

    Attributes:
        pid: its number.
        name: what it is.
        memory_mb: resident.
        n_descriptors: files, sockets and pipes that it has open.
        n_threads: its threads.
    """

    pid: int
    name: str
    memory_mb: float
    n_descriptors: int
    n_threads: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What the processes of a training hold at one moment.

    Attributes:
        minute: since the command began.
        learner: the main process.
        children: all below it, in the order of their numbers.
    """

    minute: float
    learner: ProcessReading
    children: tuple[ProcessReading, ...]


def main() -> int:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        readings = train_and_read(Path(folder), 60 * arguments.minutes, [*DEFAULT_SETTINGS, *arguments.set])
    print_readings(readings)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(reading) for reading in readings], indent=1))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run (default %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as of scripts/train.py")
    parser.add_argument("--json", type=new_file, help="write all readings to this file")
    return parser.parse_args()


def train_and_read(folder: Path, duration_s: float, overrides: list[str]) -> list[Reading]:
    """Train for so long; a reading every hundredth of that time, at least one every half minute.

    Raises:
        RuntimeError: if the training fails.
    """
    command = [sys.executable, str(TRAIN), "--output-folder", str(folder), "--max-wall-s", str(duration_s)]
    for override in overrides:
        command += ["--set", override]
    log = folder / "output.txt"
    readings = []
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        began_s = time.monotonic()
        while process.poll() is None:
            time.sleep(min(30.0, duration_s / 100))
            elapsed_s = time.monotonic() - began_s
            if elapsed_s < duration_s and process.poll() is None:
                readings.append(_read(psutil.Process(process.pid), elapsed_s / 60))
    if process.returncode != 0:
        raise RuntimeError(f"the training ended with exit code {process.returncode}: {log.read_text()[-2000:]}")
    return readings


def _read(main_process: psutil.Process, minute: float) -> Reading:
    children = []
    for child in main_process.children(recursive=True):
        try:
            children.append(_read_process(child, _name_of(child)))
        except psutil.NoSuchProcess:  # ended since it was listed
            continue
    learner = _read_process(main_process, "learner")
    return Reading(minute, learner, tuple(sorted(children, key=lambda child: child.pid)))


def _read_process(process: psutil.Process, name: str) -> ProcessReading:
    with process.oneshot():
        memory_mb = process.memory_info().rss / 1e6
        return ProcessReading(process.pid, name, memory_mb, process.num_fds(), process.num_threads())


def _name_of(child: psutil.Process) -> str:
    command = " ".join(child.cmdline())
    names = {"spawn_main": "collector", "simulated_game": "game", "resource_tracker": "resource tracker"}
    return next((name for part, name in names.items() if part in command), child.name())


def print_readings(readings: list[Reading]) -> None:
    """A dozen of them as a table, and the growth of what has settled."""
    table = Table("minute", "learner, MB", "children, MB", "descriptors", "threads")
    for reading in readings[:: max(1, len(readings) // 12)]:
        everyone = (reading.learner, *reading.children)
        table.add_row(
            f"{reading.minute:.1f}",
            f"{reading.learner.memory_mb:.0f}",
            ", ".join(f"{child.memory_mb:.0f}" for child in reading.children),
            str(sum(process.n_descriptors for process in everyone)),
            str(sum(process.n_threads for process in everyone)),
        )
    console = Console()
    console.print(table)
    settled, last = readings[int(SETTLED_SHARE * len(readings))], readings[-1]
    growth_mb = _children_mb(last) - _children_mb(settled)
    console.print(
        f"from minute {settled.minute:.1f} to {last.minute:.1f}: learner "
        f"{last.learner.memory_mb - settled.learner.memory_mb:+.1f} MB, children {growth_mb:+.1f} MB"
    )


def _children_mb(reading: Reading) -> float:
    return sum(child.memory_mb for child in reading.children)


if __name__ == "__main__":
    sys.exit(main())
