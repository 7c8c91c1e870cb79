"""All that the page shows of one run: read once, whoever looks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.places import WORKING_FOLDER
from trackmania_rl.settings import Settings, changed_settings
from trackmania_rl.settings.descriptions import settings_rows
from trackmania_rl.settings.snapshot import TRIAL_FILE, edit_setting, read_own
from trackmania_rl.telemetry.live import LiveCar, LiveRace, LiveReader
from trackmania_rl.telemetry.page.best_runs import RunFiles
from trackmania_rl.telemetry.page.figure_curves import FigureCurves
from trackmania_rl.telemetry.page.log_messages import LogMessages
from trackmania_rl.telemetry.page.race_curves import RaceCurves
from trackmania_rl.telemetry.page.race_sections import MEDALS, race_sections
from trackmania_rl.telemetry.page.run_on_disk import QUIET_AFTER_S, RunOnDisk, list_runs
from trackmania_rl.telemetry.page.track_shapes import shape_of
from trackmania_rl.telemetry.page.watched_races import WatchedRaces
from trackmania_rl.telemetry.run_status import read_status
from trackmania_rl.track.game_map import map_file
from trackmania_rl.track.reference_times import load_reference_times

SHOWN_FIGURES: Final = ("rollout/ep_", "train/", "waiting/")
"""Beginnings of the figures that every tab is sent; others it asks for by name."""
MOST_WATCHED: Final = 3
"""Games that are watched at a time; further wishes see the newest evaluated race."""
FILES_LISTED_EVERY_S: Final = 3.0
MAPS_ARE_CHECKED_WITHIN_S: Final = 120.0

Topics = dict[str, Any]
"""What is sent to tabs: messages by topic."""
Watch = tuple[int, int] | None
"""A game of a collector; None for the newest evaluated race."""


class RunPage:
    """One run, as the page sees it. Any thread may call it.

    Args:
        run: the run.

    Raises:
        UserError: if its configuration cannot be used.
    """

    def __init__(self, run: RunOnDisk) -> None:
        self.run = run
        self.files = RunFiles(run)
        self.watched = WatchedRaces()
        self._races = RaceCurves(run)
        self._figures = FigureCurves(run.event_files)
        self._messages = LogMessages(run.log)
        self._settings, self._in_file = read_own(run.path), read_own(run.path, is_stretched=False)
        self._settings_error = ""
        self._medals_ms = self._read_medals()
        self._config_stamp = _stamp(run.settings_file)
        self._readers: dict[Watch, LiveReader] = {}
        self._announced: dict[Watch, str] = {}
        self._listed: dict[str, Any] = {}
        self._runs: list[dict[str, Any]] = []
        self._list_at_s = 0.0
        self._shapes: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._editing = threading.Lock()

    def snapshot(self) -> Topics:
        """Everything that a new tab needs, as of the last `read`."""
        with self._lock:
            return {
                "run": self._about(),
                "state": self._state(),
                "races": self._races.snapshot() | {"reset": True},
                "figures": {"reset": True, "curves": self._shown_figures(), "names": sorted(self._figures.curves)},
                "log": {"reset": True, "messages": self._messages.snapshot()},
                "files": self._listed,
                "newest": [{"watch": watch, "id": name} for watch, name in self._announced.items()],
            }

    def read(self) -> Topics:
        """Read what is new in the run's files; what is told to every tab."""
        with self._lock:
            told: Topics = {}
            try:
                self._read_files(told)
            except OSError as error:  # the disk fails, or a file is held: the next reading may see it
                told["trouble"] = f"the run's files cannot be read: {error.strerror}"
            told["state"] = self._state()
            return told

    def cars(self, watches: set[Watch]) -> Topics:
        """Look at the games, and at the newest races of those that somebody watches."""
        with self._lock:
            wanted = [None, *sorted(watch for watch in watches if watch is not None)][: MOST_WATCHED + 1]
            for watch in [watch for watch in self._readers if watch not in wanted]:
                self._readers.pop(watch)
                self._announced.pop(watch, None)
            cars: list[LiveCar] = []
            told: Topics = {}
            for watch in wanted:
                reader = self._readers.setdefault(watch, LiveReader(self.run.path))
                if watch is None:
                    cars = reader.cars()
                else:
                    reader.watch(*watch)
                self._announce(watch, reader, told)
            told["cars"] = [_compact(car) for car in cars]
            return told

    def stop_looking(self) -> None:
        """Let go of the live feed: nobody looks."""
        with self._lock:
            self._readers.clear()
            self._announced.clear()

    def figure(self, name: str) -> list[Any]:
        """The points of a figure; none if there is no such figure."""
        with self._lock:
            curve = self._figures.curves.get(name)
            return [] if curve is None else list(curve.points)

    def shape(self, name: str) -> dict[str, Any]:
        """A map from above; see `track_shapes.shape_of`.

        Raises:
            UserError: if there is no such map.
        """
        with self._lock:
            settings = self._settings
            shape = self._shapes.get(name)
        if shape is None:
            shape = shape_of(name, settings, self.run.maps_folder(settings))
            with self._lock:
                while len(self._shapes) > 20:
                    self._shapes.pop(next(iter(self._shapes)))
                self._shapes[name] = shape
        return shape

    def record(self, name: str) -> str:
        """Drive a record again; returns its id in `watched`.

        Raises:
            UserError: if there is no such record, or nothing but the real game can drive it.
        """
        best = self.files.best_run(name)
        if best is None:
            raise UserError(f"{name}: there is no such record")
        settings = self._settings
        if settings.game.game != "simulated":
            raise UserError(f"{name} was driven in the real game: load its inputs file there to watch it")
        entry = next((entry for entry in settings.game.map_cycle if entry.map_name == best.map_name), None)
        if entry is None or not entry.has_files:
            raise UserError(f"{name}: the run's map_cycle has no map {best.map_name} with files of its own")
        return self.watched.record(best, str(map_file(entry, self.run.maps_folder(settings))))

    def sections(self, name: str) -> dict[str, Any] | None:
        """Where a race in `watched` wins or loses time; None if it is not kept (any more).

        Raises:
            UserError: if its map cannot be used.
        """
        race = self.watched.race(name)
        if race is None:
            return None
        is_generated = race.map_name in self._about_maps()["generators"]
        shape = self.shape(race.track if is_generated else race.map_name)
        best: LiveRace | None = None
        fastest = next((best for best in self.files.best_runs() if best.map_name == race.map_name), None)
        if fastest is not None:
            with contextlib.suppress(UserError):  # of the real game: races.jsonl has its times at the checkpoints
                best = self.watched.race(self.record(fastest.folder.name))
        with self._lock:
            splits, medals_ms = self._races.splits().get(race.map_name, {}), self._medals_ms.get(race.map_name, {})
        return race_sections(race, best, shape, splits, medals_ms)

    def settings(self) -> dict[str, Any]:
        """The settings as the run's configuration has them, and what is wrong with it, if something is."""
        with self._lock:
            settings, error = self._in_file, self._settings_error
        return {"rows": settings_rows(settings), "error": error}

    def edit(self, name: str, text: str) -> dict[str, str]:
        """Change a setting in the run's configuration; returns what has changed, as "old -> new" by name.

        Raises:
            UserError: if the configuration is not valid with it; nothing has changed then.
        """
        with self._editing:
            changes = edit_setting(self.run.path, name, text, self._check_maps)
        return {name: f"{old!r} -> {new!r}" for name, (old, new) in changes.items()}

    def _check_maps(self, edited: Settings) -> None:
        """See that an edited map cycle can be driven; in a process of its own, as that needs torch."""
        if "map_cycle" not in changed_settings(self._settings, edited):
            return
        program = "trackmania_rl.telemetry.page.check_maps"
        trial = self.run.path / TRIAL_FILE
        try:
            checked = subprocess.run(
                [sys.executable, "-m", program, str(trial), str(self.run.maps_folder(edited).resolve())],
                cwd=WORKING_FOLDER,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=MAPS_ARE_CHECKED_WITHIN_S,
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"the maps could not be checked within {MAPS_ARE_CHECKED_WITHIN_S:g} s: try again when the machine has "
                "less to do"
            ) from None
        if checked.returncode != 0:
            last_line = next(iter(checked.stderr.strip().splitlines()[-1:]), "the maps cannot be checked")
            raise UserError(last_line.removeprefix("error: "))

    def _read_files(self, told: Topics) -> None:
        new_races = self._races.read()
        if new_races is None:
            told["races"] = self._races.snapshot() | {"reset": True}
        elif new_races:
            told["races"] = {"reset": False, "curves": _by_name(new_races)}
        n_figures = len(self._figures.curves)
        new_figures, _ = self._figures.read()
        shown = [(name, point) for name, point in new_figures if name.startswith(SHOWN_FIGURES)]
        if shown or len(self._figures.curves) != n_figures:
            told["figures"] = {"reset": False, "curves": _by_name(shown)}
            if len(self._figures.curves) != n_figures:
                told["figures"]["names"] = sorted(self._figures.curves)
        if messages := self._messages.read():
            told["log"] = {"reset": False, "messages": messages}
        if time.monotonic() >= self._list_at_s:
            self._list_at_s = time.monotonic() + FILES_LISTED_EVERY_S
            self._runs = list_runs(self.run.path.parent)
            if (listed := self.files.listed()) != self._listed:
                told["files"] = self._listed = listed
        if (stamp := _stamp(self.run.settings_file)) != self._config_stamp:
            self._config_stamp = stamp
            self._reload_settings()
            told["run"] = self._about()

    def _reload_settings(self) -> None:
        try:
            self._settings, self._in_file = read_own(self.run.path), read_own(self.run.path, is_stretched=False)
            self._settings_error = ""
            self._medals_ms = self._read_medals()
            self._shapes.clear()
        except UserError as error:
            self._settings_error = str(error)

    def _about(self) -> dict[str, Any]:
        """What changes with an edit of the configuration only."""
        game = self._settings.game
        return {
            "name": self.run.name,
            "folder": str(self.run.path),
            "game": game.game,
            **self._about_maps(),
            "actions": [_keys(keys) for keys in game.inputs] if game.actions == "keys" else [],
            "medals_ms": self._medals_ms,
            "settings_error": self._settings_error,
            "settings_stamp": str(self._config_stamp),
        }

    def _about_maps(self) -> dict[str, list[str]]:
        cycle = self._settings.game.map_cycle
        return {
            "maps": list(dict.fromkeys(entry.map_name for entry in cycle if entry.has_files)),
            "generators": list(dict.fromkeys(entry.map_name for entry in cycle if entry.generator)),
        }

    def _read_medals(self) -> dict[str, dict[str, int]]:
        """Medal times by map and name, those that there are."""
        settings = self._settings
        try:
            times = load_reference_times(settings.game.map_cycle, self.run.maps_folder(settings))
        except UserError:  # a map's file is damaged, of which the training complains
            return {}
        told = {name: {medal: getattr(of_map, f"{medal}_ms") for medal in MEDALS} for name, of_map in times.items()}
        return {name: {medal: ms for medal, ms in of_map.items() if ms is not None} for name, of_map in told.items()}

    def _state(self) -> dict[str, Any]:
        races = self._races
        quiet_s = self.run.seconds_since_written()
        status = read_status(self.run.path)
        is_over = status is not None and status.is_over
        return {
            "now": time.time(),
            "quiet_s": quiet_s,
            "is_running": quiet_s is not None and quiet_s < QUIET_AFTER_S and not is_over,
            "frames": races.frames_total,
            "races": round(races.n_races),
            "training_s": round(races.training_s),
            "unreadable": races.n_unreadable,
            "table": races.table(),
            "runs": self._runs,
        }

    def _shown_figures(self) -> dict[str, Any]:
        curves = self._figures.snapshot()
        return {name: points for name, points in curves.items() if name.startswith(SHOWN_FIGURES)}

    def _announce(self, watch: Watch, reader: LiveReader, told: Topics) -> None:
        race = reader.race()
        if race is None:
            return
        name = self.watched.keep(race)
        if self._announced.get(watch) != name:
            self._announced[watch] = name
            told.setdefault("newest", []).append({"watch": watch, "id": name})


def _keys(keys: Any) -> str:
    """An action as arrows."""
    arrows = (("accelerate", "↑"), ("brake", "↓"), ("left", "←"), ("right", "→"))
    return "".join(arrow for name, arrow in arrows if getattr(keys, name)) or "·"


def _compact(car: LiveCar) -> list[Any]:
    """Collector, game, map, track, x, z, m/s, race time in ms, metres, explores, gas, brake, steer, gear, age in s."""
    x_m, _, z_m = car.position
    where = [car.collector, car.game, car.map_name, car.track, round(x_m, 1), round(z_m, 1), round(car.speed_mps, 1)]
    race = [car.race_time_ms, round(car.meters_advanced, 1), int(car.is_explo)]
    return [*where, *race, int(car.gas), int(car.brake), round(car.steer, 2), car.gear, round(car.age_s, 1)]


def _by_name(points: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, point in points:
        found.setdefault(name, []).append(point)
    return found


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size
