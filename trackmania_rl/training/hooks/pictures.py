"""Pictures of the mind: the numbers are gathered here now and then, and drawn by a process of low priority."""

from __future__ import annotations

import logging
import subprocess
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from tensordict import TensorDictBase

from trackmania_rl.experience_replay.mini_race import MiniRaceRules
from trackmania_rl.schedules import linear
from trackmania_rl.telemetry.mind.index import RACING_LINE, Entry, read_index
from trackmania_rl.telemetry.mind.numbers import DrivenRace, columns_of, save_numbers, section_of
from trackmania_rl.training.background_process import start_in_background
from trackmania_rl.training.disk_watch import DiskWatch
from trackmania_rl.training.hooks.figures import WriteFigures
from trackmania_rl.training.hooks.hook import Hook, Interval
from trackmania_rl.training.hooks.races import CountRaces
from trackmania_rl.training.mind_numbers import Mind, RecentRace, driven_race, gather_numbers

log = logging.getLogger(__name__)

FIRST_SET_AFTER_S: Final = 60.0
"""The first pictures come early, so that there is something to see; later ones every `pictures_interval_s`."""
RECENT_RACES: Final = 10
"""Evaluated races in which predicted and realised values are compared."""
DRAWN_WITHIN_S: Final = 600.0
"""How long a set may take; with low priority it may have to wait."""
LAST_DRAWN_WITHIN_S: Final = 10.0
"""How long a run that ends waits for its last one."""
NUMBERS: Final = "numbers.npz"
"""The file that the drawing process reads."""


class DrawPictures(Hook):
    """Draws what the driver expects, where it errs and how it drives, every `pictures_interval_s`, into pictures/.

    A set is of one map: of the maps whose races are evaluated the one that was drawn least often. Whatever is looked
    into the agent for is computed without gradient and without its random numbers, so that a run learns the same with
    pictures and without.

    Args:
        races: has the race.
        loggers: are given the pictures.
        disk: has space, or not.
    """

    def __init__(self, races: CountRaces, loggers: WriteFigures, disk: DiskWatch) -> None:
        self._races = races
        self._loggers = loggers
        self._disk = disk
        self._interval = Interval()
        self._is_first = True
        self._is_due = False
        self._best: dict[str, DrivenRace] = {}
        self._best_before: dict[str, DrivenRace] = {}
        self._evaluated: deque[RecentRace] = deque(maxlen=RECENT_RACES)
        self._explored: dict[str, RecentRace] = {}  # of each map one, since a set became due
        self._n_sets: Counter[str] = Counter()
        self._drawing: subprocess.Popen[str] | None = None
        self._began_s = 0.0
        self._to_hand_on: deque[Entry] = deque()

    def batch_process(self, _: TensorDictBase) -> None:
        """Keep the race, if it will be looked at, and gather the numbers of a set that is due."""
        record, race = self._races.record, self.run.race
        assert race is not None
        if self.run.settings.telemetry.pictures_interval_s == 0 or not record.counts:
            return
        if self._races.is_best and "position_m" in race.rollout_results:
            if record.map_name in self._best:
                self._best_before[record.map_name] = self._best[record.map_name]
            recent = RecentRace(race.rollout_results, race.end_race_stats)
            self._best[record.map_name] = driven_race(recent, self.run.settings)
        if record.is_explo:
            if self._is_due and record.map_name not in self._explored:
                self._explored[record.map_name] = _copy(race.rollout_results, race.end_race_stats, with_frames=True)
            return
        self._evaluated.append(_copy(race.rollout_results, race.end_race_stats, with_frames=False))
        if self._is_due and self._drawing is None and not self._disk.is_short and self._is_turn_of(record.map_name):
            self._begin_set(RecentRace(race.rollout_results, race.end_race_stats))

    def tick(self) -> None:
        """See whether a set is due, or drawn, and hand on one picture at a time."""
        every_s = self.run.settings.telemetry.pictures_interval_s
        if every_s > 0 and not self._is_due and self._has_learned():
            if self._is_first:
                every_s = min(every_s, FIRST_SET_AFTER_S)
            if self._interval.is_due(every_s):
                self._is_due, self._is_first = True, False
        self._look_after_drawing()
        if self._to_hand_on:
            self._hand_on(self._to_hand_on.popleft())

    def end(self) -> None:
        """Wait for the set that is being drawn, and hand on what there is."""
        if self._drawing is not None:
            try:
                self._drawing.wait(LAST_DRAWN_WITHIN_S)
                self._look_after_drawing()
            except subprocess.TimeoutExpired:
                self._drawing.kill()
                self._drawing.communicate()
                log.info("the last pictures were not ready in time; scripts/tools/draw_mind.py draws them")
        while self._to_hand_on:
            self._hand_on(self._to_hand_on.popleft())

    def state_dict(self) -> dict[str, Any]:
        """The fastest race of each map."""
        return {"best": {name: _plain(columns_of(race)) for name, race in self._best.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the fastest races."""
        self._best = best_races(state_dict)

    @property
    def _folder(self) -> Path:
        return self.run.folder.pictures

    def _has_learned(self) -> bool:
        """Whether there is anything to see; time counts from there on."""
        if self.run.agent.updates == 0:
            self._interval = Interval()
        return self.run.agent.updates > 0

    def _is_turn_of(self, map_name: str) -> bool:
        """Whether no map that is evaluated has fewer sets, and an explored race is there, if there are any."""
        cycle = self.run.settings.game.map_cycle
        if map_name not in self._explored and any(e.is_explo and e.map_name == map_name for e in cycle):
            return False
        evaluated = {entry.map_name for entry in cycle if not entry.is_explo} | {map_name}
        return self._n_sets[map_name] == min(self._n_sets[name] for name in evaluated)

    def _begin_set(self, newest: RecentRace) -> None:
        """Gather the numbers, and let them be drawn."""
        run, map_name = self.run, newest.map_name
        gamma = linear(run.settings.agent.gamma_schedule, self.trainer.collected_frames)
        mind = Mind(
            agent=run.agent,
            settings=run.settings,
            spaces=run.spaces,
            reward=run.reward,
            rules=MiniRaceRules.from_settings(run.settings.replay, gamma),
            frames_total=run.statistics.frames_total,
            training_s=run.statistics.training_s,
            line_m=run.reference_lines_m.get(map_name),
        )
        best = (self._best_before if self._races.is_best else self._best).get(map_name)
        numbers = gather_numbers(mind, newest, self._evaluated, self._explored.get(map_name), best, run.memory)
        self._n_sets[map_name] += 1
        self._explored.clear()
        self._is_due = False
        with self._disk.surviving():
            self._folder.mkdir(exist_ok=True)
            file = (self._folder / NUMBERS).absolute()
            save_numbers(file, numbers)
            self._drawing = start_in_background(
                "trackmania_rl.telemetry.mind", str(file), str(file.parent), gives_way=True
            )
            self._began_s = time.monotonic()

    def _look_after_drawing(self) -> None:
        """Take up a set that is drawn; one that takes too long is given up."""
        drawing = self._drawing
        if drawing is None:
            return
        if drawing.poll() is None:
            if time.monotonic() - self._began_s > DRAWN_WITHIN_S:
                drawing.kill()
            return
        self._drawing = None
        _, told = drawing.communicate()
        if drawing.returncode != 0:
            last_line = next(iter(told.strip().splitlines()[-1:]), f"exit code {drawing.returncode}")
            log.warning("the pictures in %s could not be drawn: %s", self._folder, last_line)
            return
        entries = read_index(self._folder)
        self._to_hand_on.extend(entry for entry in entries if entry.is_of_set(entries[0]))

    def _hand_on(self, entry: Entry) -> None:
        """Give a picture to the loggers."""
        if entry.name == RACING_LINE:
            return
        try:
            with Image.open(self._folder / entry.file) as picture:
                pixels = np.asarray(picture.convert("RGB"))
        except OSError as error:
            log.warning("the picture %s is gone: %s", entry.file, error.strerror)
            return
        self._loggers.log_picture(f"rollout/mind/{entry.name}/{entry.map}", pixels, entry.frames)


def best_races(state_dict: Mapping[str, Any]) -> dict[str, DrivenRace]:
    """The fastest race of each map, out of the state of this hook."""
    return {
        name: section_of(DrivenRace, {column: np.asarray(values) for column, values in race.items()})
        for name, race in state_dict["best"].items()
    }


def _copy(columns: Mapping[str, Any], stats: Mapping[str, Any], *, with_frames: bool) -> RecentRace:
    """A race that may be looked at when its memory is another one's."""
    kept = {
        name: values.copy() if isinstance(values, np.ndarray) else values
        for name, values in columns.items()
        if name != "frames" or with_frames
    }
    return RecentRace(kept, dict(stats))


def _plain(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays as a checkpoint holds them: tensors, numbers and texts."""
    return {
        name: values.item() if values.ndim == 0 else torch.from_numpy(values.copy()) for name, values in columns.items()
    }
