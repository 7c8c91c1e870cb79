"""Evaluated races that are kept now and then: their columns as a TensorDict, their inputs, and a film."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase

from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry.films import RaceColumns
from trackmania_rl.training.disk_watch import DiskWatch
from trackmania_rl.training.hooks.figures import WriteFigures
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.races import CountRaces

log = logging.getLogger(__name__)

_PROJECT: Final = Path(__file__).resolve().parents[3]
MOST_KEPT: Final = 50
"""Races whose files stay in the run's folder: the newest ones."""
FILM_WITHIN_S: Final = 300.0
"""How long a film may take."""
LAST_FILM_WITHIN_S: Final = 30.0
"""How long a run that ends waits for its last one."""


@dataclass
class _Filming:
    """A film that another process makes.

    Attributes:
        process: makes it.
        began_s: when it was started.
        map_name: of the race.
        stem: the path of the race's files, without ending.
        frames: actions of the run until the race.
    """

    process: subprocess.Popen[str]
    began_s: float
    map_name: str
    stem: Path
    frames: int


class RecordEvaluations(Hook):
    """Keeps each map's every `record_every_n_evaluations`-th evaluated race.

    They go to recordings/ and the loggers. `{frames}_{map}.pt` holds the columns, all but the frames; `.inputs` the
    inputs; `.mp4` is the film, `.gif` a small one. A process of its own draws them, one at a time: a race that is due
    while one is being drawn gives way to the next.

    Args:
        races: has the race.
        loggers: are given the files.
        disk: has space, or not.
    """

    def __init__(self, races: CountRaces, loggers: WriteFigures, disk: DiskWatch) -> None:
        self._races = races
        self._loggers = loggers
        self._disk = disk
        self._since_last: Counter[str] = Counter()
        self._filming: _Filming | None = None

    def batch_process(self, race: TensorDictBase) -> None:
        """Keep the race, if it is one of those; a disk that fails is told."""
        record = self._races.record
        if record.is_explo or not record.counts:
            return
        self._since_last[record.map_name] += 1
        if self._filming is not None or self._disk.is_short or not self._is_due(record.map_name):
            return
        self._since_last[record.map_name] = 0
        frames = self.run.statistics.frames_total
        stem = self.run.folder.recordings / f"{frames:012d}_{record.map_name}"
        with self._disk.surviving():
            stem.parent.mkdir(exist_ok=True)
            torch.save(race.exclude("frames", ("next", "frames")).clone().to_dict(), _file(stem, "pt"))
            command = self._film_command(race, stem)
            if command is None:
                self._loggers.log_race_files(record.map_name, _file(stem, "pt"), None, frames)
            else:
                process = start_in_background("trackmania_rl.telemetry.films", *command)
                self._filming = _Filming(process, time.monotonic(), record.map_name, stem, frames)
            self._forget_oldest()

    def tick(self) -> None:
        """Hand on what was kept, once its film is there."""
        filming = self._filming
        if filming is None:
            return
        if filming.process.poll() is not None:
            self._hand_on(filming)
        elif time.monotonic() - filming.began_s > FILM_WITHIN_S:
            filming.process.kill()

    def end(self) -> None:
        """Hand on the last race."""
        if self._filming is not None:
            try:
                self._filming.process.wait(LAST_FILM_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._filming.process.kill()
            self._hand_on(self._filming)

    def state_dict(self) -> dict[str, Any]:
        """The evaluated races of each map since the one that was kept last."""
        return {"since_last": dict(self._since_last)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the counts."""
        self._since_last = Counter(state_dict["since_last"])

    def _is_due(self, map_name: str) -> bool:
        return 0 < self.run.settings.telemetry.record_every_n_evaluations <= self._since_last[map_name]

    def _film_command(self, race: TensorDictBase, stem: Path) -> list[str] | None:
        """Write what the film is made of; return the arguments that make it, None if there is nothing to see.

        A race of the simulated game is driven again by its inputs; of other games, their frames are the film.
        """
        assert self.run.race is not None
        inputs, track = self.run.race.end_race_stats["inputs"], self._track()
        command = [str(_file(stem, "mp4")), "--until-ms", str(self._races.record.race_time_ms)]
        frames: npt.NDArray[np.uint8] | None = None
        if inputs:
            file = _file(stem, "inputs")
            file.write_text(inputs, encoding="utf-8")
            command += ["--inputs", str(file)]
        if inputs and track is not None:
            command += ["--track", track]
        elif (seen := race.get("frames", None)) is not None and seen.numel() > 0:
            frames = seen.numpy()[:, 0]
        else:
            return None
        file = _file(stem, "npz")
        self._columns(frames, has_keys=bool(inputs)).save(file)
        return [*command, "--columns", str(file)]

    def _columns(self, frames: npt.NDArray[np.uint8] | None, *, has_keys: bool) -> RaceColumns:
        """What a film tells of the race; the simulated game, driven again, says speed and gear itself."""
        assert self.run.race is not None
        results, game = self.run.race.rollout_results, self.run.settings.game
        speed_m_s = gear = None
        if "position_m" in results and len(results["position_m"]) > 1:
            steps_m = np.linalg.norm(np.diff(results["position_m"], axis=0), axis=1)
            speed_m_s = np.append(steps_m, steps_m[-1]).astype(np.float32) * (1000 / game.ms_per_action)
        if "car_gear_and_wheels" in results:
            gear = results["car_gear_and_wheels"][:, CAR_COLUMNS.index("gear")].astype(np.int64)
        columns = RaceColumns.of_game(game, results.get("q_values"))
        keys = columns.action_keys if has_keys else None
        return replace(columns, action_keys=keys, speed_m_s=speed_m_s, gear=gear, frames=frames)

    def _track(self) -> str | None:
        """The track that the simulated game drove: its file, or the name of one that was generated; None for others."""
        game, record = self.run.settings.game, self._races.record
        if TrackRecipe.from_name(record.track) is not None:
            return record.track
        entry = next((entry for entry in game.map_cycle if entry.map_name == record.map_name), None)
        if game.game != "simulated" or entry is None:
            return None
        file = (self.run.maps_folder / entry.map_path).absolute()
        return str(file) if file.is_file() else None

    def _hand_on(self, filming: _Filming) -> None:
        self._filming = None
        _, told = filming.process.communicate()
        film: Path | None = _file(filming.stem, "mp4")
        if filming.process.returncode != 0:
            film = None
            last_line = next(iter(told.strip().splitlines()[-1:]), f"exit code {filming.process.returncode}")
            log.warning("no film of the evaluated race %s could be made: %s", filming.stem.name, last_line)
        for left_over in [_file(filming.stem, "npz"), *self.run.folder.recordings.glob("*.part*")]:
            left_over.unlink(missing_ok=True)
        self._loggers.log_race_files(filming.map_name, _file(filming.stem, "pt"), film, filming.frames)

    def _forget_oldest(self) -> None:
        recordings = self.run.folder.recordings
        for oldest in sorted(recordings.glob("*.pt"))[:-MOST_KEPT]:
            for file in recordings.glob(f"{oldest.stem}.*"):
                file.unlink(missing_ok=True)


def _file(stem: Path, ending: str) -> Path:
    """A race's file, wherever the process that needs it runs; a map's name may have a dot of its own."""
    return stem.with_name(f"{stem.name}.{ending}").absolute()


def start_in_background(module: str, *arguments: str, gives_way: bool = False) -> subprocess.Popen[str]:
    """Run a module of this project in a process of its own, with its error stream in a pipe.

    The terminal's Ctrl-C does not reach it.

    Args:
        module: its name.
        arguments: of its command line.
        gives_way: whether it stays in this session: Linux shares the processor evenly among sessions, and niceness
            counts within each.

    Raises:
        OSError: if it cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=_PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=not gives_way,
        process_group=0 if gives_way else None,
    )
