"""One trial: a training with a run folder of its own, driven in pieces, each with the benchmark's score.

After each piece a folder with the run's newest checkpoint, the memory rows that it names and its race log is handed on.
A trial continues, or begins as a clone of another one, from such a folder. Independent of Ray.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from benchmarks.driving.runs import map_cycle_of
from benchmarks.driving.score import Yardstick, run_figures
from research.search.space import Space
from trackmania_rl.channels.heartbeat import heartbeat_file
from trackmania_rl.errors import PlainError
from trackmania_rl.multiprocess.supervised import WatchedTraining
from trackmania_rl.runs.folder import CHECKPOINTS, RUN_LOG
from trackmania_rl.runs.log import iterate_races, newest_race
from trackmania_rl.runs.manifest import MEMORY_FOLDER
from trackmania_rl.runs.reading import find_manifests
from trackmania_rl.settings import parse_override
from trackmania_rl.settings.groups import MEANING_SETTINGS

PROJECT: Final = Path(__file__).resolve().parents[2]
LOGS: Final = (RUN_LOG, f"{RUN_LOG}-wal", "sessions.txt")
"""Files of a run's folder that belong to a checkpoint."""
FIRST_PORT: Final = 21_000
"""First port of games behind sockets; each trial has `PORTS_EACH`."""
PORTS_EACH: Final = 64
STARTS_WITHIN_S: Final = 600.0
END_WITHIN_S: Final = 180.0
"""Time for the last checkpoint before a training is killed."""
CHECK_TRIAL_EVERY_S: Final = 0.2
LET_GO_WITHIN_S: Final = 60.0
"""Time for the end of a training whose trial was killed."""

RunTraining = Callable[[Sequence[str], Path, Path, Path, float], int]
"""(command, file for its output, working folder, race log, seconds of a piece) -> exit code."""


class TrialFailedError(PlainError):
    """A training failed; the text has its last output."""


@dataclass(frozen=True)
class Plan:
    """Settings of all trials of a search."""

    space: Space
    config_file: Path
    overrides: tuple[str, ...]  # `NAME=VALUE`
    tracks: tuple[Path, ...]
    yardsticks: Mapping[str, Yardstick]  # by the stem of the track's file
    seed: int
    piece_s: float  # wall-clock from a piece's first race on
    output: Path
    working_folder: Path


@dataclass(frozen=True)
class Report:
    """Result of one piece."""

    score: float  # median over the greedy races of the last minute; mean over tracks
    frames: int  # actions of the run in all
    n_greedy: int  # greedy races of the piece


class Trial:
    """A trial; `drawn` has a value for each entry of the space, `run_training` runs the training's command."""

    def __init__(
        self, plan: Plan, number: int, drawn: Mapping[str, Any], run_training: RunTraining | None = None
    ) -> None:
        self._plan = plan
        self._number = number
        self._drawn = plan.space.within(drawn)
        self._run = run_training or run_watched
        self.name = f"trial_{number:05d}"
        self.folder = plan.output / "save" / self.name
        self.terminal_file = plan.output / "terminal" / f"{self.name}.txt"

    @property
    def overrides(self) -> tuple[str, ...]:
        """All `--set` of the training; drawn values come last and take precedence."""
        port = FIRST_PORT + self._number % 500 * PORTS_EACH
        own = [f"run_name={self.name}", f"seed={self._plan.seed}", f"base_tmi_port={port}", "terminal_view=plain"]
        drawn = (f"{name}={value!r}" for name, value in self._plan.space.settings_of(self._drawn).items())
        return (*own, map_cycle_of_all(self._plan.tracks), *self._plan.overrides, *drawn)

    @property
    def command(self) -> list[str]:
        """The command line of one piece; it accepts settings that differ from the donor's."""
        command = [sys.executable, str(PROJECT / "scripts" / "train.py"), "--config", str(self._plan.config_file)]
        command += ["--output-folder", str(self._plan.output), "--update-config"]
        command += ["--max-wall-s", f"{self._plan.piece_s + STARTS_WITHIN_S:g}"]
        if others := sorted(self._plan.space.settings_of(self._drawn).keys() & MEANING_SETTINGS):
            command += ["--accept-change", *others]
        return command + [word for text in self.overrides for word in ("--set", text)]

    def begin(self, handed_on: Path | None) -> None:
        """Prepare the run's folder: empty, or from a folder of `hand_on` of this or another trial.

        Raises:
            TrialFailedError: if another process trains this run.
        """
        self.terminal_file.parent.mkdir(parents=True, exist_ok=True)
        _wait_until_let_go(self.folder)
        if handed_on is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.rmtree(self._plan.output / "tensorboard" / self.name, ignore_errors=True)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
        _copy_state(handed_on, self.folder)

    def drive(self) -> Report:
        """Train for one piece and score its races.

        Raises:
            TrialFailedError: if the training fails.
        """
        before = _sessions(self.folder)
        log, piece_s = self.folder / RUN_LOG, self._plan.piece_s
        exit_code = self._run(self.command, self.terminal_file, self._plan.working_folder, log, piece_s)
        if exit_code != 0:
            raise TrialFailedError(f"{self.name} failed: {_last_words(self.terminal_file)} ({self.terminal_file})")
        all_races = list(iterate_races(log))
        of_piece = [race for race in all_races if race["session"] > before]
        minutes = max(1, math.ceil(piece_s / 60))
        later_s = 60 * minutes - of_piece[-1]["wall_s"] if of_piece else 0.0  # its last minute ends at a whole minute
        races = [{**race, "wall_s": race["wall_s"] + later_s} for race in of_piece]
        figures = [run_figures(races, name, yardstick, minutes) for name, yardstick in self._plan.yardsticks.items()]
        score = statistics.fmean(one.last_minute_score for one in figures)
        frames = all_races[-1]["frames_total"] if all_races else 0
        return Report(score, frames, sum(one.n_greedy for one in figures))

    def hand_on(self, folder: Path) -> None:
        """Fill an empty folder with all that a training needs to continue.

        Raises:
            TrialFailedError: if there is no checkpoint.
        """
        _copy_state(self.folder, folder)


def map_cycle_of_all(tracks: Sequence[Path]) -> str:
    """Return the override that trains on tracks in turns."""
    entries = [entry for track in tracks for entry in parse_override(map_cycle_of(track))[1]]
    return f"map_cycle={tuple(entries)!r}"


def run_watched(
    command: Sequence[str], terminal_file: Path, working_folder: Path, race_log: Path, piece_s: float
) -> int:
    """Run a training until `piece_s` after its first race; it ends in order, also when this process is killed.

    Args:
        command: starts it.
        terminal_file: its output is appended there.
        working_folder: of its process.
        race_log: log of the run.
        piece_s: seconds, without the start.

    Returns:
        Its exit code, negative if it had to be killed.
    """
    of_workers = {"OMP_NUM_THREADS"} if "RAY_JOB_ID" in os.environ or "RAY_NODE_ID" in os.environ else set()
    environment = {name: value for name, value in os.environ.items() if name not in of_workers}
    with heartbeat_file() as heartbeat, terminal_file.open("ab") as terminal:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end ends the training
            stdout=terminal,
            stderr=subprocess.STDOUT,
            cwd=working_folder,
            env=environment | WatchedTraining(str(heartbeat)).as_environment(),
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin:
            _wait_for_piece(process, race_log, piece_s)
        try:
            return process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _wait_for_piece(process: subprocess.Popen[bytes], race_log: Path, piece_s: float) -> None:
    """Wait for a new race and then `piece_s`, or for the end of the process."""
    _, before = newest_race(race_log)
    ends_s = math.inf
    while time.monotonic() < ends_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CHECK_TRIAL_EVERY_S)
            return
        _, session = newest_race(race_log)
        if ends_s == math.inf and session > before:
            ends_s = time.monotonic() + piece_s


def _copy_state(source: Path, target: Path) -> None:
    """Copy the newest checkpoint with its rows, and the logs. Immutable files are linked where possible."""
    manifests = find_manifests(source)
    if not manifests:
        raise TrialFailedError(f"{source} has no checkpoint")
    newest, manifest = next(iter(manifests.items()))
    own = [newest.relative_to(source) / file.name for file in newest.iterdir()]
    rows = [Path(CHECKPOINTS) / MEMORY_FOLDER / one.file for one in manifest.rows.segments] if manifest.rows else []
    for file in (*own, *rows):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / file, target / file)
        except OSError:
            shutil.copyfile(source / file, target / file)
    for name in LOGS:
        (target / name).unlink(missing_ok=True)  # also a journal that belongs to another log
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(source / name, target / name)


def _wait_until_let_go(folder: Path) -> None:
    if not folder.is_dir():
        return
    try:
        with FileLock(folder / ".train.lock", timeout=LET_GO_WITHIN_S):
            pass
    except Timeout as error:
        raise TrialFailedError(f"{folder} is being trained by another process: end it first") from error


def _sessions(folder: Path) -> int:
    try:
        return int((folder / "sessions.txt").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return 0


def _last_words(terminal_file: Path) -> str:
    lines = terminal_file.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "no output")
