"""Runs on the disk: the run that a user means, the run list, and a run's records, films and pictures."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from trackmania_rl.errors import UserError
from trackmania_rl.files import read_npy
from trackmania_rl.paths import command_line_of
from trackmania_rl.runs.folder import RunFolder, is_run
from trackmania_rl.runs.log import last_written_s, newest_race, read_status
from trackmania_rl.runs.snapshot import SETTINGS_FILE, read_snapshot
from trackmania_rl.telemetry.diagnostics import list_pictures

MOST_RUNS: Final = 100
MOST_FILES: Final = 200
"""Most records, and most films, that are listed."""
MOST_Q_VALUES_BYTES: Final = 64 << 20
FILM_FOLDERS: Final = ("best_runs", "evaluation", "recordings", "videos")
FILM_ENDINGS: Final = (".mp4", ".webm")

_BEST_RUN: Final = re.compile(r"(.+)_(\d+)")


def list_runs(save_folder: Path) -> list[dict[str, Any]]:
    """List the newest runs."""
    runs = sorted(((_last_written_s(folder), folder) for folder in _runs(save_folder)), reverse=True)[:MOST_RUNS]
    return [
        {
            "name": folder.name,
            "written_s": written_s,
            "is_running": status is not None and status.what_is_wrong(time.monotonic()) is None,
            "figures": {} if status is None else status.figures,
            "best": best and (best.map_name, best.race_time_ms),  # on the first map
        }
        for written_s, folder in runs
        for run in [RunFolder.at(folder)]
        for status in [read_status(run.run_log)]
        for best in [next(iter(RunFiles(run).best_runs()), None)]
    ]


def find_run(name: str | None, save_folder: Path) -> RunFolder:
    """Find a run by name in `save_folder` or by folder; None for the newest run.

    Raises:
        UserError: if there is no such run, if it has no race and does not train, or if another version wrote it.
    """
    folder = _newest(save_folder) if name is None else _named(name, save_folder)
    run = RunFolder.at(folder.resolve())
    try:
        read_snapshot(run.path)
    except UserError as error:
        raise UserError(
            f"{folder} is a run of another version, or its settings were edited wrongly: {error}"
        ) from error
    _check_races(run, folder)
    return run


def _newest(save_folder: Path) -> Path:
    runs = _runs(save_folder)
    if not runs:
        raise UserError(
            f"there is no run in {save_folder}: begin one ({command_line_of('train')}), or name a run's folder"
        )
    return max(runs, key=_last_written_s)


def _named(name: str, save_folder: Path) -> Path:
    places = (Path(name), save_folder / name)
    if found := next((folder for folder in places if is_run(folder)), None):
        return found
    if found := next((folder for folder in places if folder.is_dir()), None):
        raise UserError(f"{found} is no run's folder: it has no {SETTINGS_FILE}; name a folder in save/")
    known = ", ".join(sorted(run.name for run in _runs(save_folder))) or "none"
    raise UserError(f"{name}: there is no such run; those in {save_folder} are: {known}")


def _runs(save_folder: Path) -> list[Path]:
    return [folder for folder in save_folder.glob("*") if is_run(folder)]


def _last_written_s(folder: Path) -> float:
    run = RunFolder.at(folder)
    files_s = [file.stat().st_mtime for file in (run.log, run.settings) if file.is_file()]
    return max(last_written_s(run.run_log) or 0.0, *files_s)


def _check_races(run: RunFolder, folder: Path) -> None:
    newest_id, _ = newest_race(run.run_log)
    if newest_id == 0 and not _is_locked(run):
        raise UserError(f"{folder} has no race yet and is not being trained: {command_line_of('train')} resumes it")


def _is_locked(run: RunFolder) -> bool:
    try:
        with FileLock(run.lock).acquire(blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # the folder is read-only
        return False


class BestRun(NamedTuple):
    """Record: a race that was the map's fastest, at `driven_s` since 1970.

    The driver's file is None once a faster race replaced it.
    """

    folder: Path
    map_name: str
    race_time_ms: int
    inputs: Path
    driver: Path | None
    driven_s: float

    def q_values(self) -> np.ndarray | None:
        """Return the race's (T, A) Q values; None if missing or damaged."""
        try:
            values = read_npy(self.folder / "q_values.npy", MOST_Q_VALUES_BYTES)
        except UserError:
            return None
        return np.nan_to_num(values) if values.ndim == 2 and values.dtype.kind == "f" else None


class RunFiles:
    """A run's records, films and pictures. Only these can be downloaded."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def best_runs(self) -> list[BestRun]:
        """Return the records by map, fastest first."""
        found = []
        for folder in self._run.best_runs.glob("*"):
            match = _BEST_RUN.fullmatch(folder.name)
            inputs, driver = (folder / f"{folder.name}{ending}" for ending in (".inputs", ".driver"))
            if match and inputs.is_file() and not inputs.is_symlink():
                kept = driver if driver.is_file() and not driver.is_symlink() else None
                found.append(BestRun(folder, match[1], int(match[2]), inputs, kept, inputs.stat().st_mtime))
        return sorted(found, key=lambda best: (best.map_name, best.race_time_ms))[:MOST_FILES]

    def films(self) -> list[Path]:
        """Return the films, newest first."""
        files = [
            file
            for folder in FILM_FOLDERS
            for file in (self._run.path / folder).rglob("*")
            if file.suffix in FILM_ENDINGS and not file.name.startswith(".") and file.is_file()
        ]
        return sorted(files, key=lambda file: -file.stat().st_mtime)[:MOST_FILES]

    def listed(self) -> dict[str, Any]:
        """Return records, films and pictures as JSON values."""
        pictures = self._run.diagnostics
        return {
            "best_runs": [
                {
                    "name": best.folder.name,
                    "map": best.map_name,
                    "time_ms": best.race_time_ms,
                    "driven_s": best.driven_s,
                    "file": self._name(best.inputs),
                    "driver": best.driver and self._name(best.driver),
                }
                for best in self.best_runs()
            ],
            "films": [
                {"name": film.name, "file": self._name(film), "mb": round(film.stat().st_size / 1e6, 1)}
                for film in self.films()
            ],
            "pictures": [entry | {"file": self._name(pictures / entry["file"])} for entry in list_pictures(pictures)],
        }

    def file(self, name: str) -> Path | None:
        """Return the listed file with this name; None for any other."""
        entries = [entry for kind in self.listed().values() for entry in kind]
        names = {entry["file"] for entry in entries} | {entry.get("driver") for entry in entries}
        return self._run.path / name if name in names else None

    def _name(self, file: Path) -> str:
        return file.relative_to(self._run.path).as_posix()
