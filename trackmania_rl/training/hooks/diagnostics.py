"""Diagnostics while a run trains: data are gathered here now and then, and a process of low priority draws them."""

from __future__ import annotations

import logging
import subprocess
import time
from collections import Counter, deque
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image
from tensordict import TensorDictBase

from trackmania_rl.telemetry.diagnostics import list_pictures, save_data
from trackmania_rl.training.diagnostics import RecentRace, Subject, copy_of_race, gather
from trackmania_rl.training.disk_watch import DiskWatch
from trackmania_rl.training.hooks.figures import WriteFigures
from trackmania_rl.training.hooks.hook import Hook, Interval
from trackmania_rl.training.hooks.races import CountRaces
from trackmania_rl.training.hooks.recordings import start_in_background

log = logging.getLogger(__name__)

FIRST_SET_AFTER_S: Final = 60.0
"""Time of the first set; later ones are drawn every `pictures_interval_s`."""
RECENT_RACES: Final = 10
"""Evaluated races in which predicted and realised values are compared."""
TIME_LIMIT_S: Final = 600.0
"""Of the process that draws; with low priority it may have to wait."""
LAST_TIME_LIMIT_S: Final = 10.0
"""At the end of the run."""
DATA_FILE: Final = "data.npz"


class DrawDiagnostics(Hook):
    """Draws plots of values, quantiles, errors and expectations every `pictures_interval_s` into diagnostics/.

    A set is of one map: of the maps whose races are evaluated the one that was drawn least often. Gathering computes
    without gradient and draws no random numbers, so a run learns the same with and without diagnostics.

    Args:
        races: has the race.
        loggers: log the pictures.
        disk: has space, or not.
    """

    def __init__(self, races: CountRaces, loggers: WriteFigures, disk: DiskWatch) -> None:
        self._races = races
        self._loggers = loggers
        self._disk = disk
        self._interval = Interval()
        self._is_first = True
        self._is_due = False
        self._evaluated: deque[RecentRace] = deque(maxlen=RECENT_RACES)
        self._explored: dict[str, RecentRace] = {}  # the first of each map since a set became due
        self._n_sets: Counter[str] = Counter()
        self._drawing: subprocess.Popen[str] | None = None
        self._began_s = 0.0
        self._set = (0, "")

    def batch_process(self, _: TensorDictBase) -> None:
        """Keep the races that plots are made of, and begin a set that is due."""
        record, race = self._races.record, self.run.race
        assert race is not None
        if self.run.settings.telemetry.pictures_interval_s == 0 or not record.counts:
            return
        map_name = record.map_name
        if record.is_explo:
            if self._is_due and map_name not in self._explored:
                self._explored[map_name] = copy_of_race(race.rollout_results, race.end_race_stats)
            return
        self._evaluated.append(copy_of_race(race.rollout_results, race.end_race_stats, with_frames=False))
        if self._is_due and self._drawing is None and not self._disk.is_short and self._is_turn_of(map_name):
            self._begin_set(RecentRace(race.rollout_results, race.end_race_stats), map_name)

    def tick(self) -> None:
        """Check whether a set is due, or drawn."""
        every_s = self.run.settings.telemetry.pictures_interval_s
        if self._is_first:
            every_s = min(every_s, FIRST_SET_AFTER_S)
        if self.run.agent.updates == 0:
            self._interval = Interval()
        elif every_s > 0 and not self._is_due and self._interval.is_due(every_s):
            self._is_due, self._is_first = True, False
        if self._drawing is not None and self._drawing.poll() is not None:
            self._log_pictures(self._drawing)
        elif self._drawing is not None and time.monotonic() - self._began_s > TIME_LIMIT_S:
            self._drawing.kill()

    def end(self) -> None:
        """Wait for the set that is being drawn, within a time limit."""
        if self._drawing is None:
            return
        try:
            self._drawing.wait(LAST_TIME_LIMIT_S)
            self._log_pictures(self._drawing)
        except subprocess.TimeoutExpired:
            self._drawing.kill()
            self._drawing.communicate()
            log.info("the last diagnostics were not ready in time; scripts/tools/draw_diagnostics.py draws them")

    @property
    def _folder(self) -> Path:
        return self.run.folder.diagnostics

    def _is_turn_of(self, map_name: str) -> bool:
        """Return whether no evaluated map has fewer sets, and an explored race of the map is there, if it has any."""
        cycle = self.run.settings.game.map_cycle
        if map_name not in self._explored and any(e.is_explo and e.map_name == map_name for e in cycle):
            return False
        evaluated = {entry.map_name for entry in cycle if not entry.is_explo} | {map_name}
        return self._n_sets[map_name] == min(self._n_sets[name] for name in evaluated)

    def _begin_set(self, newest: RecentRace, map_name: str) -> None:
        """Gather the data, and start the process that draws them."""
        run = self.run
        subject = Subject(
            agent=run.agent,
            settings=run.settings,
            spaces=run.spaces,
            reward=run.reward,
            frames_total=run.statistics.frames_total,
            training_s=run.statistics.training_s,
            line_m=run.reference_lines_m.get(map_name),
        )
        data = gather(subject, newest, self._evaluated, self._explored.get(map_name))
        self._n_sets[map_name] += 1
        self._explored.clear()
        self._is_due = False
        with self._disk.surviving():
            self._folder.mkdir(exist_ok=True)
            file = (self._folder / DATA_FILE).absolute()
            save_data(file, data)
            module = "trackmania_rl.telemetry.diagnostics"
            self._drawing = start_in_background(module, str(file), str(file.parent), gives_way=True)
            self._began_s, self._set = time.monotonic(), (subject.frames_total, map_name)

    def _log_pictures(self, drawing: subprocess.Popen[str]) -> None:
        """Log the pictures of a set that is drawn; racing lines are logged by `WriteFigures`."""
        self._drawing = None
        _, error_output = drawing.communicate()
        if drawing.returncode != 0:
            last_line = next(iter(error_output.strip().splitlines()[-1:]), f"exit code {drawing.returncode}")
            log.warning("the diagnostics in %s could not be drawn: %s", self._folder, last_line)
            return
        for entry in list_pictures(self._folder):
            if (entry["frames"], entry["map"]) == self._set and entry["kind"] != "racing_line":
                with Image.open(self._folder / entry["file"]) as picture:
                    pixels = np.asarray(picture.convert("RGB"))
                name = f"rollout/diagnostics/{entry['kind']}/{entry['map']}"
                self._loggers.log_picture(name, pixels, entry["frames"])
