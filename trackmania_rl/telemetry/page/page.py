"""Content for one run's page, read once for all tabs."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.games.race_games import check_edited_maps
from trackmania_rl.race.race import RACE_KINDS
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.log import last_written_s, read_status
from trackmania_rl.runs.snapshot import edit_setting, read_snapshot, stamp_of, toml_of
from trackmania_rl.settings import Settings, changed_settings
from trackmania_rl.settings.descriptions import settings_rows
from trackmania_rl.telemetry.live import LiveRace, LiveReader
from trackmania_rl.telemetry.page.curves import LogMessages, Point, RunCurves, Topics
from trackmania_rl.telemetry.page.races import WatchedRaces, race_sections, shape_of
from trackmania_rl.telemetry.page.runs import RunFiles, list_runs
from trackmania_rl.telemetry.terminal_view import MEDALS
from trackmania_rl.track.game_map import load_reference_times, map_file

MOST_WATCHED: Final = 3
MOST_SHAPES: Final = 20
FILES_LISTED_EVERY_S: Final = 3.0

Watch = tuple[int, int] | None
"""Collector and game; None for the newest evaluation race."""


class RunPage:
    """Page for one run. Thread-safe. A `UserError` if the run's settings cannot be used."""

    def __init__(self, run: RunFolder, project_folder: Path) -> None:
        self.run = run
        self.project_folder = project_folder
        self.files = RunFiles(run)
        self.watched = WatchedRaces()
        self._curves = RunCurves(run.run_log)
        self._messages = LogMessages(run.run_log)
        self._read_settings()
        self._settings_error = ""
        self._settings_stamp = stamp_of(run.settings)
        self._reader = LiveReader(run.path)
        self._announced: dict[Watch, str] = {}
        self._listed: dict[str, Any] = {}
        self._runs: list[dict[str, Any]] = []
        self._list_at_s = 0.0
        self._shapes: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._editing = threading.Lock()

    def snapshot(self) -> Topics:
        """Return all content, as of the last `read`."""
        with self._lock:
            return {
                "run": self._about(),
                "state": self._state(),
                **self._curves.all(),
                "log": {"reset": True, "messages": list(self._messages.messages)},
                "files": self._listed,
                "newest": [{"watch": watch, "id": name} for watch, name in self._announced.items()],
            }

    def read(self) -> Topics:
        """Read the run's files; return what is new."""
        with self._lock:
            news: Topics = {}
            try:
                self._read_files(news)
            except OSError as error:  # such as a failing disk; it is read again
                news["trouble"] = f"the run's files cannot be read: {error.strerror}"
            except UserError as error:
                news["trouble"] = str(error)
            news["state"] = self._state()
            return news

    def cars(self, watches: set[Watch]) -> Topics:
        """Return all games' cars, and ids for new races in watched games."""
        with self._lock:
            self._announced = {watch: name for watch, name in self._announced.items() if watch in {None, *watches}}
            news: Topics = {"cars": [vars(car) | {"age_s": car.age_s} for car in self._reader.cars()]}
            for watch in [None, *sorted(watch for watch in watches if watch is not None)][: MOST_WATCHED + 1]:
                race = (watch and self._reader.race_of(*watch)) or self._reader.evaluated()
                if race is not None and self._announced.get(watch) != (name := self.watched.keep(race)):
                    self._announced[watch] = name
                    news.setdefault("newest", []).append({"watch": watch, "id": name})
            return news

    def figure(self, name: str) -> list[Point]:
        """Return a figure's points, if any."""
        with self._lock:
            return self._curves.figure(name)

    def shape(self, name: str) -> dict[str, Any]:
        """Return a map from above, as `shape_of`."""
        with self._lock:
            settings, shape = self._settings, self._shapes.get(name)
        if shape is None:
            shape = shape_of(name, settings, self._maps_folder(settings), self.run.path)
            with self._lock:
                if len(self._shapes) >= MOST_SHAPES:
                    self._shapes.clear()
                self._shapes[name] = shape
        return shape

    def record(self, name: str) -> str:
        """Drive a record again; return its id in `watched`. A `UserError` if the page cannot."""
        best = next((best for best in self.files.best_runs() if best.folder.name == name), None)
        if best is None:
            raise UserError(f"{name}: there is no such record")
        settings = self._settings
        if settings.game.game != "simulated":
            raise UserError(f"{name} was driven in the real game: load its inputs file there to watch it")
        entry = next((entry for entry in settings.game.map_cycle if entry.map_name == best.map_name), None)
        if entry is None or not entry.has_files:
            raise UserError(f"{name}: the run's map_cycle has no map {best.map_name} with files of its own")
        return self.watched.record(best, str(map_file(entry, self._maps_folder(settings))))

    def sections(self, name: str) -> dict[str, Any] | None:
        """Compare a race in `watched` by section; None if no longer kept."""
        race = self.watched.race(name)
        if race is None:
            return None
        is_generated = race.map_name in self._about_maps()["generators"]
        shape = self.shape(race.track if is_generated else race.map_name)
        best: LiveRace | None = None
        fastest = next((best for best in self.files.best_runs() if best.map_name == race.map_name), None)
        if fastest is not None:
            with contextlib.suppress(UserError):  # a real game's race: the run log has the checkpoint times
                best = self.watched.race(self.record(fastest.folder.name))
        with self._lock:
            medals_ms = self._medals_ms.get(race.map_name, {})
        return race_sections(race, best, shape, self._splits(race.map_name), medals_ms)

    def settings(self) -> dict[str, Any]:
        """Return the run's settings, and the error in them."""
        with self._lock:
            return {"rows": settings_rows(self._in_file, text_of=toml_of), "error": self._settings_error}

    def edit(self, name: str, text: str) -> dict[str, str]:
        """Change a setting in the run's file; return "old -> new" by name. A `UserError` changes nothing."""
        with self._editing:
            changes = edit_setting(self.run.path, name, text, self._check_maps)
        return {name: f"{toml_of(old)} -> {toml_of(new)}" for name, (old, new) in changes.items()}

    def _check_maps(self, edited: Settings) -> None:
        if "map_cycle" in changed_settings(self._settings, edited):
            check_edited_maps(edited, self._maps_folder(edited).resolve())

    def _maps_folder(self, settings: Settings) -> Path:
        return self.project_folder / settings.game.maps_folder

    def _read_files(self, news: Topics) -> None:
        news |= self._curves.news()
        is_new = news.get("races", {}).get("reset", False)
        if is_new:
            self._messages = LogMessages(self.run.run_log)  # the log was made again
        if messages := self._messages.read():
            news["log"] = {"reset": is_new, "messages": messages}
        if time.monotonic() >= self._list_at_s:
            self._list_at_s = time.monotonic() + FILES_LISTED_EVERY_S
            self._runs = list_runs(self.run.path.parent)
            if (listed := self.files.listed()) != self._listed:
                news["files"] = self._listed = listed
        if (stamp := stamp_of(self.run.settings)) != self._settings_stamp:
            self._settings_stamp = stamp
            try:
                self._read_settings()
                self._settings_error = ""
                self._shapes.clear()
            except UserError as error:
                self._settings_error = str(error)
            news["run"] = self._about()

    def _read_settings(self) -> None:
        self._settings, self._in_file = read_snapshot(self.run.path), read_snapshot(self.run.path, is_stretched=False)
        self._medals_ms: dict[str, dict[str, int]] = {}
        with contextlib.suppress(UserError):  # a map's file is damaged
            times = load_reference_times(self._settings.game.map_cycle, self._maps_folder(self._settings))
            for name, of_map in times.items():
                known = ((medal, getattr(of_map, f"{medal}_ms")) for medal in MEDALS)
                self._medals_ms[name] = {medal: ms for medal, ms in known if ms is not None}

    def _about(self) -> dict[str, Any]:
        """Return the content that changes only with the settings."""
        game = self._settings.game
        return {
            "name": self.run.name,
            **self._about_maps(),
            "actions": [_arrows(keys) for keys in game.inputs] if game.actions == "keys" else [],
            "medals_ms": self._medals_ms,
            "settings_stamp": str(self._settings_stamp),
        }

    def _about_maps(self) -> dict[str, list[str]]:
        cycle = self._settings.game.map_cycle
        return {
            "maps": list(dict.fromkeys(entry.map_name for entry in cycle if entry.has_files)),
            "generators": list(dict.fromkeys(entry.map_name for entry in cycle if entry.generator)),
        }

    def _state(self) -> dict[str, Any]:
        written_s = last_written_s(self.run.run_log)
        status = read_status(self.run.run_log)
        figures = {} if status is None else status.figures
        return {
            "now": time.time(),
            "quiet_s": None if written_s is None else max(0.0, time.time() - written_s),
            "is_running": status is not None and status.what_is_wrong(time.monotonic()) is None,
            "frames": figures.get("frames_total", 0),
            "races": figures.get("races_total", 0),
            "training_s": round(figures.get("training_seconds_total", 0.0)),
            "frames_per_s": figures.get("frames_per_second"),
            "table": [] if status is None else status.maps,
            "runs": self._runs,
        }

    def _splits(self, map_name: str) -> dict[str, list[int]]:
        """Return checkpoint times: from a map's fastest race, and medians over recent evaluation races."""
        status = read_status(self.run.run_log)
        splits: dict[str, list[int]] = {"best_ms": [], "recent_ms": []}
        rows = [row for row in ([] if status is None else status.maps) if row["map"] == map_name]
        for row in sorted(rows, key=lambda row: row["best_ms"] or math.inf, reverse=True):
            splits["best_ms"] = row["best_checkpoints_ms"]
            if row["kind"] == RACE_KINDS["evaluated"]:
                splits["recent_ms"] = row["median_checkpoints_ms"]
        return splits


def _arrows(keys: Any) -> str:
    arrows = (("accelerate", "↑"), ("brake", "↓"), ("left", "←"), ("right", "→"))
    return "".join(arrow for name, arrow in arrows if getattr(keys, name)) or "·"
