"""A short training from end to end: `scripts/train.py` itself, its figures read from what it writes."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
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
        collectors_s: processor time of its children.
        games_s: processor time of their children, the games at the other end of sockets.
        learner_mb: resident memory of the main process.
        largest_other_mb: resident memory of the largest other process.
    """

    learner_s: float
    collectors_s: float
    games_s: float
    learner_mb: float
    largest_other_mb: float

    def __sub__(self, before: Usage) -> Usage:
        """What was used since then; memory as it is now."""
        return replace(
            self,
            learner_s=self.learner_s - before.learner_s,
            collectors_s=self.collectors_s - before.collectors_s,
            games_s=self.games_s - before.games_s,
        )


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Train with the default configuration: floats only.

    Raises:
        RuntimeError: if no race is over in that time.
    """
    if options.training_s == 0:
        return []
    with tempfile.TemporaryDirectory() as folder:
        output, halfway, end = _train(Path(folder), options)
        rate = _frames_per_s(next(Path(folder).rglob("races.jsonl")))
    rates = re.findall(r"([\d.,]+) batches/s", output)
    if rate is None or not rates:
        raise RuntimeError(f"no race was over within {options.training_s:.0f} s, starting and compiling included")
    batches_per_s = float(rates[-1].replace(",", ""))
    used = end - halfway
    collection_s = used.collectors_s + used.games_s
    share = collection_s / (used.learner_s + collection_s)
    note = f"collectors and games took {100 * share:.0f} % of the processor time, {100 * MOST_COLLECTION_SHARE:.0f} % "
    note += f"is asked for; resident memory: learner {end.learner_mb:.0f} MB, largest other {end.largest_other_mb:.0f}"
    name = f"default configuration, {options.training_s:.0f} s"
    return [
        Figure(PART, name, rate, "frames/s", note=note + " MB"),
        Figure(PART, name, batches_per_s, "batches/s"),
    ]


def frames_per_s(options: Options, *arguments: str) -> float:
    """Train with the default configuration and these further arguments; the rate of its last part.

    Raises:
        RuntimeError: if no race is over in that time.
    """
    with tempfile.TemporaryDirectory() as folder:
        _train(Path(folder), options, *arguments)
        rate = _frames_per_s(next(Path(folder).rglob("races.jsonl")))
    if rate is None:
        raise RuntimeError(f"no race was over within {options.training_s:.0f} s, starting and compiling included")
    return rate


def train_command(folder: Path, options: Options, *overrides: str) -> list[str]:
    """The command of a training with the default configuration, all that it writes in a folder."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, str(PROJECT / "scripts" / "train.py"), "--output-folder", str(folder)]
    for override in (f"base_tmi_port={port}", "terminal_view=plain", f"torch_device={options.device}", *overrides):
        command += ["--set", override]
    return command


def _train(folder: Path, options: Options, *arguments: str) -> tuple[str, Usage, Usage]:
    """Run the training; its output, and what its processes had used half-way and shortly before the end."""
    compiled = f"use_torch_compile={options.compiled}"
    command = [*train_command(folder, options, compiled), "--max-wall-s", str(options.training_s), *arguments]
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
                looks.append((elapsed_s, usage(psutil.Process(process.pid))))
            time.sleep(LOOK_EVERY_S)
    text = log.read_text()
    if process.returncode != 0:
        raise RuntimeError(f"the training ended with exit code {process.returncode}: {text[-2000:]}")
    halfway = next(usage for elapsed_s, usage in looks if elapsed_s >= SETTLED_SHARE * looks[-1][0])
    return text, halfway, looks[-1][1]


def usage(main: psutil.Process) -> Usage:
    """What a training's processes have used so far, given its main process."""
    collectors = main.children()
    learner_s, learner_mb = _time_and_memory([main])
    collectors_s, collector_mb = _time_and_memory(collectors)
    games_s, game_mb = _time_and_memory([p for p in main.children(recursive=True) if p not in collectors])
    return Usage(learner_s, collectors_s, games_s, learner_mb, max(collector_mb, game_mb))


def _time_and_memory(processes: list[psutil.Process]) -> tuple[float, float]:
    """Processor time of all together in s, and the largest's resident memory in MB."""
    seconds, megabytes = 0.0, 0.0
    for process in processes:
        try:
            seconds += sum(process.cpu_times()[:2])
            megabytes = max(megabytes, process.memory_info().rss / 1e6)
        except psutil.NoSuchProcess:  # ended since it was listed
            continue
    return seconds, megabytes


def _frames_per_s(races_file: Path) -> float | None:
    """Frames of the races that ended in the run's last part, over that part's time; None without a race."""
    races = [json.loads(line) for line in races_file.read_text().splitlines()]
    if not races:
        return None
    last = races[-1]
    first = next(race for race in races if race["wall_s"] >= SETTLED_SHARE * last["wall_s"])
    return (last["frames_total"] - first["frames_total"]) / max(1e-9, last["wall_s"] - first["wall_s"])
