"""A short training from end to end: `scripts/train.py` itself, its figures read from what it writes."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import PROJECT, Figure, Options

PART = "training"
MOST_COLLECTION_SHARE = 0.15
SETTLED_SHARE = 0.5
"""Rates are those of the run's end: its beginning compiles, and fills the memory without learning."""
END_WITHIN_S = 60.0
LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class Usage:
    """What the processes of a run have used so far.

    Attributes:
        learner_s: processor time of the main process.
        collection_s: processor time of all others: collectors and games.
        learner_mb: resident memory of the main process.
        largest_other_mb: resident memory of the largest other process.
    """

    learner_s: float
    collection_s: float
    learner_mb: float
    largest_other_mb: float


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Train with the default configuration: floats only."""
    if options.training_s == 0:
        return []
    with tempfile.TemporaryDirectory() as folder:
        output, halfway, end = _train(Path(folder), options)
        frames_per_s = _frames_per_s(next(Path(folder).rglob("races.jsonl")))
    batches_per_s = float(re.findall(r"([\d.,]+) batches/s", output)[-1].replace(",", ""))
    learner_s, collection_s = end.learner_s - halfway.learner_s, end.collection_s - halfway.collection_s
    share = collection_s / (learner_s + collection_s)
    note = f"collectors and games took {100 * share:.0f} % of the processor time, {100 * MOST_COLLECTION_SHARE:.0f} % "
    note += f"is asked for; resident memory: learner {end.learner_mb:.0f} MB, largest other {end.largest_other_mb:.0f}"
    name = f"default configuration, {options.training_s:.0f} s"
    return [
        Figure(PART, name, frames_per_s, "frames/s", note=note + " MB"),
        Figure(PART, name, batches_per_s, "batches/s"),
    ]


def _train(folder: Path, options: Options) -> tuple[str, Usage, Usage]:
    """Run the training; its output, and what its processes had used half-way and shortly before the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, str(PROJECT / "scripts" / "train.py"), "--output-folder", str(folder)]
    command += ["--max-wall-s", str(options.training_s), "--set", f"base_tmi_port={port}"]
    command += ["--set", "terminal_view=plain", "--set", f"torch_device={options.device}"]
    log = folder / "output.txt"
    started_s = time.monotonic()
    looks: list[tuple[float, Usage]] = []
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        while process.poll() is None:
            elapsed_s = time.monotonic() - started_s
            if elapsed_s > options.training_s + END_WITHIN_S:
                process.kill()
                raise RuntimeError(f"the training did not end within {END_WITHIN_S} s of its time: {log.read_text()}")
            if elapsed_s < options.training_s:
                looks.append((elapsed_s, _usage(psutil.Process(process.pid))))
            time.sleep(LOOK_EVERY_S)
    text = log.read_text()
    if process.returncode != 0:
        raise RuntimeError(f"the training ended with exit code {process.returncode}: {text[-2000:]}")
    halfway = next(usage for elapsed_s, usage in looks if elapsed_s >= SETTLED_SHARE * looks[-1][0])
    return text, halfway, looks[-1][1]


def _usage(main: psutil.Process) -> Usage:
    others = main.children(recursive=True)
    seconds, megabytes = [], []
    for process in (main, *others):
        try:
            seconds.append(sum(process.cpu_times()[:2]))
            megabytes.append(process.memory_info().rss / 1e6)
        except psutil.NoSuchProcess:  # ended since it was listed
            continue
    return Usage(seconds[0], sum(seconds[1:]), megabytes[0], max(megabytes[1:], default=0.0))


def _frames_per_s(races_file: Path) -> float:
    """Frames of the races that ended in the run's last part, over that part's time."""
    races = [json.loads(line) for line in races_file.read_text().splitlines()]
    last = races[-1]
    first = next(race for race in races if race["wall_s"] >= SETTLED_SHARE * last["wall_s"])
    return (last["frames_total"] - first["frames_total"]) / max(1e-9, last["wall_s"] - first["wall_s"])
