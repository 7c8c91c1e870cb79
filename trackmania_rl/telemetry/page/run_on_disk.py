"""Which run the page shows, and where its things lie."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from trackmania_rl.errors import UserError
from trackmania_rl.places import command_line_of
from trackmania_rl.settings import Settings
from trackmania_rl.settings.snapshot import SETTINGS_FILE, own_file, read_own
from trackmania_rl.telemetry.learning_summary import MOST_LINE_BYTES, NEEDED_KEYS
from trackmania_rl.telemetry.run_status import read_status

QUIET_AFTER_S: Final = 60.0
"""A run that has written nothing for so long does not seem to be trained."""

MOST_RUNS: Final = 100
"""Runs in the page's list."""


@dataclass(frozen=True)
class RunOnDisk:
    """A run's folder, as `checkpoints.RunFolder` describes it, without what needs torch.

    Attributes:
        path: save/{run_name}.
        project_folder: where a relative `maps_folder` begins.
    """

    path: Path
    project_folder: Path

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.path.name

    @property
    def settings_file(self) -> Path:
        """The run's own settings, which an edit changes."""
        return own_file(self.path)

    @property
    def races(self) -> Path:
        """One JSON line for each race."""
        return self.path / "races.jsonl"

    @property
    def log(self) -> Path:
        """What was logged."""
        return self.path / "train.log"

    @property
    def best_runs(self) -> Path:
        """One folder for each record."""
        return self.path / "best_runs"

    @property
    def event_files(self) -> Path:
        """tensorboard/{run_name}, beside save/."""
        return self.path.parent.parent / "tensorboard" / self.name

    def maps_folder(self, settings: Settings) -> Path:
        """Where tracks and lines lie."""
        return self.project_folder / settings.game.maps_folder

    def seconds_since_written(self) -> float | None:
        """How long ago the run wrote a race or a message; None if it never did."""
        times_s = [file.stat().st_mtime for file in (self.races, self.log) if file.is_file()]
        return max(0.0, time.time() - max(times_s)) if times_s else None


def list_runs(save_folder: Path) -> list[dict[str, Any]]:
    """List the runs of a folder, the newest first, `MOST_RUNS` at most.

    Returns:
        For each its name, when it wrote last (s since 1970), whether it is trained, and the figures of its status.
    """
    runs = sorted(((_last_written_s(folder), folder) for folder in _runs(save_folder)), reverse=True)[:MOST_RUNS]
    return [
        {
            "name": folder.name,
            "written_s": written_s,
            "is_running": status is not None and status.what_is_wrong(time.monotonic()) is None,
            "figures": {} if status is None else status.figures,
        }
        for written_s, folder in runs
        for status in [read_status(folder)]
    ]


def find_run(name: str | None, save_folder: Path, project_folder: Path) -> RunOnDisk:
    """Find the run that a user means.

    Args:
        name: a name in the folder of runs, or a run's folder; None for the newest one.
        save_folder: the folder of runs, save/.
        project_folder: where relative paths of settings begin.

    Raises:
        UserError: if there is no such run, it has no race and is not trained either, or is of another version.
    """
    folder = _newest(save_folder) if name is None else _named(name, save_folder)
    run = RunOnDisk(folder.resolve(), project_folder)
    try:
        read_own(run.path)
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
    for folder in (Path(name), save_folder / name):
        if own_file(folder).is_file():
            return folder
    for folder in (Path(name), save_folder / name):
        if folder.is_dir():
            raise UserError(f"{folder} is no run's folder: it has no {SETTINGS_FILE}; name a folder in save/")
    known = ", ".join(sorted(run.name for run in _runs(save_folder))) or "none"
    raise UserError(f"{name}: there is no such run; those in {save_folder} are: {known}")


def _runs(save_folder: Path) -> list[Path]:
    return [folder for folder in save_folder.glob("*") if own_file(folder).is_file()]


def _last_written_s(folder: Path) -> float:
    files = (folder / "races.jsonl", folder / "train.log", own_file(folder))
    return max(file.stat().st_mtime for file in files if file.is_file())


def _check_races(run: RunOnDisk, folder: Path) -> None:
    """See that there is something to show, or will be."""
    first_line = b""
    if run.races.is_file():
        with run.races.open("rb") as file:
            first_line = file.readline(MOST_LINE_BYTES)
    if not first_line.endswith(b"\n"):
        if not _is_being_trained(run):
            raise UserError(
                f"{folder} has no race yet, and nobody trains it: {command_line_of('train')} goes on with it"
            )
        return
    try:
        race = json.loads(first_line)
    except ValueError:
        race = None
    missing = NEEDED_KEYS - race.keys() if isinstance(race, dict) else NEEDED_KEYS
    if missing:
        raise UserError(
            f"{run.races} is of another version or damaged: its first race has no {', '.join(sorted(missing))}"
        )


def _is_being_trained(run: RunOnDisk) -> bool:
    """Whether a training holds the run's lock."""
    try:
        with FileLock(run.path / ".train.lock").acquire(blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that may not be written to is nobody's training
        return False
