"""Films of evaluation races, and diagnostics. Threads wait for both, so that training continues."""

from __future__ import annotations

import copy
import logging
import threading
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
from typing_extensions import override

from trackmania_rl.errors import one_line
from trackmania_rl.processes import call_in_process
from trackmania_rl.race.observation_kernel import CAR_COLUMNS
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.telemetry.diagnostics import Data, draw_diagnostics
from trackmania_rl.telemetry.statistics import RECENT_RACES
from trackmania_rl.track.map_sources import generated_track, track_of
from trackmania_rl.training.diagnostics import Subject, gather
from trackmania_rl.training.hooks.hook import Hook, Interval

log = logging.getLogger(__name__)

MOST_KEPT: Final = 50
"""Races whose files stay in the run's folder: the newest ones."""
TIME_LIMIT_S: Final = 600.0
"""Timeout for a film. With low priority the process may have to wait."""
LAST_TIME_LIMIT_S: Final = 30.0
"""Timeout for a film at the run's end."""
FIRST_DIAGNOSTICS_AFTER_S: Final = 300.0
"""A set costs about 5 s of training, see docs/reading_a_run.rst."""


class RecordEvaluations(Hook):
    """Keeps each map's every `record_every_n_evaluations`-th evaluation race in recordings/, and logs it.

    With `record_every_s` it also keeps the first one after that training time.
    `{frames}_{map}.pt` holds the columns without frames, `.inputs` the inputs, `.mp4` the film and `.gif` a small one.
    A race due while another film is drawn is skipped.
    """

    section: ClassVar[str] = "recordings"

    def __init__(self) -> None:
        self._since_last: Counter[str] = Counter()
        self._kept_at_s: dict[str, float] = {}  # training time, by map
        self._filming: threading.Thread | None = None

    @override
    def on_race(self, race: Race) -> None:
        """Keep the race, if it is due. Log I/O errors."""
        facts = race.facts
        if facts.is_explo or not facts.counts:
            return
        map_name = facts.map_name
        self._since_last[map_name] += 1
        telemetry = self.run.settings.telemetry
        now_s = self.run.statistics.training_s
        last_s = self._kept_at_s.setdefault(map_name, now_s)
        is_due = (
            0 < telemetry.record_every_n_evaluations <= self._since_last[map_name]
            or 0 < telemetry.record_every_s <= now_s - last_s
        )
        if not is_due or (self._filming is not None and self._filming.is_alive()):
            return
        self._since_last[map_name] = 0
        self._kept_at_s[map_name] = now_s
        frames = self.run.statistics.frames_total
        recordings = self.run.folder.recordings
        stem = recordings / f"{frames:012d}_{map_name}"
        with self.run.surviving_disk():
            recordings.mkdir(exist_ok=True)
            _save_columns(race, _file(stem, "pt"))
            self.run.figures.log("recording", f"recording/{map_name}", _file(stem, "pt"), frames)
            if race.facts.inputs:
                _file(stem, "inputs").write_text(race.facts.inputs, encoding="utf-8")
            self._begin_film(race, stem)
            for oldest in sorted(recordings.glob("*.pt"))[:-MOST_KEPT]:
                for file in recordings.glob(f"{oldest.stem}.*"):
                    file.unlink(missing_ok=True)

    def end(self) -> None:
        if self._filming is not None:
            self._filming.join(LAST_TIME_LIMIT_S)

    def state_dict(self) -> dict[str, Any]:
        return {"since_last": dict(self._since_last), "kept_at_s": self._kept_at_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._since_last = Counter(state_dict["since_last"])
        self._kept_at_s = dict(state_dict["kept_at_s"])

    def _begin_film(self, race: Race, stem: Path) -> None:
        """Let a process film the race, if there is something to film, and a thread wait for it."""
        from trackmania_rl.telemetry.films import FilmData  # the renderer, which few runs need

        facts = race.facts
        track = self._track(facts) if facts.inputs else None
        if track is None and race.columns["frames"].size == 0:
            return
        data = FilmData.of_game(self.run.settings.game, race.columns.get("q_values"))
        if not facts.inputs:
            data = replace(data, action_keys=None)
        if track is None:  # the simulated game, driven again, has speed and gear itself
            data = replace(data, frames=race.columns["frames"][:-1, 0])
            if "speed_m_s" in race.columns:
                data = replace(data, speed_m_s=race.columns["speed_m_s"][:-1].astype(np.float32))
            if "car_gear_and_wheels" in race.columns:
                gears = race.columns["car_gear_and_wheels"][:, CAR_COLUMNS.index("gear")]
                data = replace(data, gear=gears.astype(np.int64))
        race_of_film = _file(stem, "mp4"), track, facts.inputs, copy.deepcopy(data), facts.race_time_ms
        log_name = f"rollout/film/{facts.map_name}"
        arguments = race_of_film, log_name, self.run.statistics.frames_total
        self._filming = threading.Thread(target=self._film, args=arguments, name="film", daemon=True)
        self._filming.start()

    def _film(self, race_of_film: tuple[Any, ...], log_name: str, frames_total: int) -> None:
        from trackmania_rl.telemetry.films import film_evaluation

        file = race_of_film[0]
        try:
            call_in_process(film_evaluation, *race_of_film, limit_s=TIME_LIMIT_S)
        except Exception as error:
            log.warning("no film of the evaluation race %s could be made: %s", file.stem, one_line(error))
            for left_over in file.parent.glob("*.part*"):
                left_over.unlink(missing_ok=True)
        else:
            self.run.figures.log("film", log_name, file, frames_total)

    def _track(self, facts: RaceFacts) -> str | None:
        """Return the simulated game's track, as `track_of` takes it; None for other games."""
        game = self.run.settings.game
        if (generated := generated_track(facts.track, self.run.folder.path)) is not None:
            return generated
        entry = next((entry for entry in game.map_cycle if entry.map_name == facts.map_name), None)
        if game.game != "simulated" or entry is None:
            return None
        file = (self.run.maps_folder / entry.map_path).absolute()
        return str(file) if file.is_file() else None


def _save_columns(race: Race, file: Path) -> None:
    """Write a race's columns without frames, and rewards and potentials."""
    columns = {name: column for name, column in race.columns.items() if name != "frames"}
    tensors = {name: torch.tensor(column) for name, column in columns.items()}
    torch.save(tensors | {"rewards": torch.tensor(race.rewards), "potentials": torch.tensor(race.potentials)}, file)


def _file(stem: Path, ending: str) -> Path:
    """Return a race's file as an absolute path. A map's name may contain a dot."""
    return stem.with_name(f"{stem.name}.{ending}").absolute()


class DrawDiagnostics(Hook):
    """Draws plots (values, quantiles, errors, expectations) every `pictures_interval_s` into diagnostics/.

    A thread draws, so neither races nor updates wait for it.
    A set is for one map: among maps with evaluation races, the one with the fewest sets.
    """

    def __init__(self) -> None:
        self._interval = Interval()
        self._is_first = True
        self._is_due = False
        self._evaluated: deque[Race] = deque(maxlen=RECENT_RACES)
        self._explored: dict[str, Race] = {}  # the first on each map since a set became due
        self._n_sets: Counter[str] = Counter()
        self._drawing: threading.Thread | None = None

    @override
    def on_race(self, race: Race) -> None:
        """Keep the races that plots need, and begin a due set."""
        name = race.facts.map_name
        if self.run.settings.telemetry.pictures_interval_s == 0 or not race.facts.counts:
            return
        if race.facts.is_explo:
            if self._is_due and name not in self._explored:
                self._explored[name] = race.copy()
            return
        self._evaluated.append(race.copy(with_frames=False))
        is_drawing = self._drawing is not None and self._drawing.is_alive()
        if self._is_due and not is_drawing and self._is_turn_of(name):
            self._begin_set(race, name)

    def tick(self) -> None:
        every_s = self.run.settings.telemetry.pictures_interval_s
        if self._is_first:
            every_s = min(every_s, FIRST_DIAGNOSTICS_AFTER_S)
        if self.run.agent.updates == 0:
            self._interval = Interval()
        elif every_s > 0 and not self._is_due and self._interval.is_due(every_s):
            self._is_due = True
            self._is_first = False

    def end(self) -> None:
        if self._drawing is not None:
            self._drawing.join(LAST_TIME_LIMIT_S)

    def _is_turn_of(self, map_name: str) -> bool:
        """Return whether the map has the fewest sets, and an exploration race if races on it explore."""
        cycle = self.run.settings.game.map_cycle
        if map_name not in self._explored and any(e.is_explo and e.map_name == map_name for e in cycle):
            return False
        evaluated = {entry.map_name for entry in cycle if not entry.is_explo} | {map_name}
        return self._n_sets[map_name] == min(self._n_sets[name] for name in evaluated)

    def _begin_set(self, newest: Race, map_name: str) -> None:
        run = self.run
        statistics = run.statistics
        line_m = run.reference_lines_m.get(map_name)
        counts = statistics.frames_total, statistics.training_s
        subject = Subject(run.agent, run.settings, run.spaces, run.reward, *counts, line_m)
        data = gather(subject, newest, self._evaluated, self._explored.get(map_name))
        self._n_sets[map_name] += 1
        self._explored.clear()
        self._is_due = False
        self._drawing = threading.Thread(target=self._draw, args=(data,), name="diagnostics", daemon=True)
        self._drawing.start()

    def _draw(self, data: Data) -> None:
        folder = self.run.folder.diagnostics
        about = data["about"]
        try:
            if len(about.line_m) == 0 and (track := generated_track(about.track, self.run.folder.path)) is not None:
                about.line_m = track_of(track).line_m
            for picture in draw_diagnostics(data, folder):
                kind = picture.kind if picture.kind == "racing_line" else f"diagnostics/{picture.kind}"
                self.run.figures.log("picture", f"rollout/{kind}/{about.map_name}", picture.pixels, about.frames_total)
        except Exception as error:
            log.warning("the diagnostics in %s could not be drawn: %s", folder, one_line(error))
