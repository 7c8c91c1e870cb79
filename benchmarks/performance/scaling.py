"""Frames and batches per second against the number of collectors, with the learner on and off.

Each number is one training (`scripts/train.py`). First its replay ratio is nearly 0, so that no batch is ever due and
the collectors have the machine; then the run's settings.toml is edited to the ratio of the default
configuration, which the run applies at its next race.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.performance.machine import Machine
from benchmarks.performance.measuring import DEFAULT_SIZE, Figure, Options
from benchmarks.performance.training import END_WITHIN_S, Usage, train_command, usage
from trackmania_rl.settings import load_settings
from trackmania_rl.settings.snapshot import SETTINGS_FILE, edit_setting
from trackmania_rl.telemetry.learning_summary import Race

PART = "scaling"
REPLAY_RATIO = "number_times_single_memory_is_used_before_discard"
LEARNER_OFF = f"{REPLAY_RATIO}=1e-9"
READY_WITHIN_S = 240.0
LOOK_EVERY_S = 0.25
BATCHES = re.compile(r"([\d.,]+) batches/s \| waiting: learner (\d+) ?%, collectors (\d+) ?%")


@dataclass(frozen=True)
class Point:
    """What one number of collectors gave, over some seconds.

    Attributes:
        transport: of the games: "in_process" or "socket".
        n_collectors: collector processes.
        n_games: games of all of them.
        is_learning: whether batches were due.
        frames_per_s: of the races that ended.
        batches_per_s: 0 where nothing was due.
        cores: that each group of processes kept busy: "learner", "collectors", "games".
        waiting: shares of the time waited, as the terminal shows them: "learner", "collectors"; empty without learning.
    """

    transport: str
    n_collectors: int
    n_games: int
    is_learning: bool
    frames_per_s: float
    batches_per_s: float
    cores: dict[str, float]
    waiting: dict[str, float]


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure every number of collectors by every transport; print a table of its own, too."""
    points = [
        point
        for transport in options.scaling_transports
        for n_collectors in options.scaling_collectors
        for point in measure_point(options, transport, n_collectors)
    ]
    print_points(points, Console(width=120))
    figures = []
    for point in points:
        name = f"{point.transport}, {point.n_collectors} collectors, {point.n_games} games, learner "
        name += "on" if point.is_learning else "off"
        cores = ", ".join(f"{group} {cores:.2f}" for group, cores in point.cores.items())
        figures.append(Figure(PART, name, point.frames_per_s, "frames/s", note=f"cores kept busy: {cores}"))
        if point.is_learning:
            figures.append(Figure(PART, name, point.batches_per_s, "batches/s"))
    return figures


def measure_point(options: Options, transport: str, n_collectors: int) -> list[Point]:
    """Train with so many collectors; without learning, then with it.

    Raises:
        RuntimeError: if the training ends by itself, or not every collector sends a race within `READY_WITHIN_S`.
    """
    settings = load_settings(DEFAULT_SIZE)
    n_games = settings.game.games_per_collector if transport == "in_process" else 1
    overrides = [f"game_transport={transport}", f"n_collectors={n_collectors}", f"games_per_collector={n_games}"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output.txt"
        command = train_command(Path(folder), options, *overrides, LEARNER_OFF)
        with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            try:
                run = _Run(Path(folder), process, log)
                run.wait_for_races_of(n_collectors)
                collecting = run.watch(options.scaling_s)
                ratio = getattr(settings.replay, REPLAY_RATIO)
                edit_setting(next(Path(folder).rglob(SETTINGS_FILE)).parent, REPLAY_RATIO, str(ratio))
                run.wait_for_batches()
                learning = run.watch(options.scaling_learning_s)
                batches_per_s, learner_percent, collectors_percent = run.batches()[-1]
            finally:
                _end(process)
    rates = {False: (0.0, {}), True: (batches_per_s, {"learner": learner_percent, "collectors": collectors_percent})}
    return [
        Point(transport, n_collectors, n_collectors * n_games, is_learning, frames_per_s, batches, cores, waiting)
        for is_learning, (frames_per_s, cores) in ((False, collecting), (True, learning))
        for batches, waiting in [rates[is_learning]]
    ]


class _Run:
    """A training under way, read from outside."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self._folder = folder
        self._process = process
        self._log = log

    def wait_for_races_of(self, n_collectors: int) -> None:
        self._wait(lambda: len({race["collector"] for race in self._races()}) == n_collectors)

    def wait_for_batches(self) -> None:
        n_lines = len(self.batches())
        self._wait(lambda: any(batches > 0 for batches, *_ in self.batches()[n_lines:]))

    def watch(self, seconds: float) -> tuple[float, dict[str, float]]:
        """Frames per second, and the cores that each group of processes kept busy, over so many seconds."""
        frames, usage_before, began_s = self._frames(), self._usage(), time.monotonic()
        while time.monotonic() - began_s < seconds:
            self._check()
            time.sleep(LOOK_EVERY_S)
        elapsed_s = time.monotonic() - began_s
        busy_s = self._usage() - usage_before
        cores = {"learner": busy_s.learner_s, "collectors": busy_s.collectors_s, "games": busy_s.games_s}
        return (self._frames() - frames) / elapsed_s, {name: used_s / elapsed_s for name, used_s in cores.items()}

    def batches(self) -> list[tuple[float, float, float]]:
        """Batches per second, and the waiting of learner and collectors in percent, of each line that was printed."""
        return [
            (float(batches.replace(",", "")), float(learner), float(collectors))
            for batches, learner, collectors in BATCHES.findall(self._log.read_text())
        ]

    def _frames(self) -> int:
        races = self._races()
        return int(races[-1]["frames_total"]) if races else 0

    def _races(self) -> list[Race]:
        for file in self._folder.rglob("races.jsonl"):
            return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return []

    def _usage(self) -> Usage:
        return usage(psutil.Process(self._process.pid))

    def _wait(self, is_so: Callable[[], bool]) -> None:
        began_s = time.monotonic()
        while not is_so():
            self._check()
            if time.monotonic() - began_s > READY_WITHIN_S:
                raise RuntimeError(f"no progress within {READY_WITHIN_S} s: {self._log.read_text()[-2000:]}")
            time.sleep(LOOK_EVERY_S)

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"the training ended by itself: {self._log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()


def print_points(points: list[Point], console: Console) -> None:
    """One line for each number of collectors and each state of the learner."""
    table = Table(title="frames/s and batches/s against the number of collectors; cores kept busy by each group")
    for heading in ("games", "collectors", "of games", "learner", "frames/s", "batches/s"):
        table.add_column(heading, justify="right")
    for heading in ("learner", "collectors", "games", "waiting"):
        table.add_column(heading, justify="right")
    for point in points:
        table.add_row(
            point.transport,
            str(point.n_collectors),
            str(point.n_games),
            "on" if point.is_learning else "off",
            f"{point.frames_per_s:,.0f}",
            f"{point.batches_per_s:.0f}" if point.is_learning else "",
            *(f"{point.cores[group]:.2f}" for group in ("learner", "collectors", "games")),
            ", ".join(f"{group} {percent:.0f} %" for group, percent in point.waiting.items()),
        )
    console.print(table)
