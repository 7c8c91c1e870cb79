"""Is memory flat? A long training from end to end, with the resident memory of each of its processes.

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

from trackmania_rl.argument_types import new_file

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
class Reading:
    """Resident memory at one moment.

    Attributes:
        minute: since the command began.
        learner_mb: of the main process.
        children_mb: of each of its children, the largest first.
    """

    minute: float
    learner_mb: float
    children_mb: tuple[float, ...]


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
    megabytes = []
    for child in main_process.children(recursive=True):
        try:
            megabytes.append(child.memory_info().rss / 1e6)
        except psutil.NoSuchProcess:  # ended since it was listed
            continue
    learner_mb = main_process.memory_info().rss / 1e6
    return Reading(minute, learner_mb, tuple(sorted(megabytes, reverse=True)))


def print_readings(readings: list[Reading]) -> None:
    """A dozen of them as a table, and the growth of what has settled."""
    table = Table("minute", "learner, MB", "children, MB")
    for reading in readings[:: max(1, len(readings) // 12)]:
        children = ", ".join(f"{megabytes:.0f}" for megabytes in reading.children_mb)
        table.add_row(f"{reading.minute:.1f}", f"{reading.learner_mb:.0f}", children)
    console = Console()
    console.print(table)
    settled, last = readings[int(SETTLED_SHARE * len(readings))], readings[-1]
    growth_mb = sum(last.children_mb) - sum(settled.children_mb)
    console.print(
        f"from minute {settled.minute:.1f} to {last.minute:.1f}: learner {last.learner_mb - settled.learner_mb:+.1f} "
        f"MB, children {growth_mb:+.1f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
