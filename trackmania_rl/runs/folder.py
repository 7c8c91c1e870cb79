"""File names in a run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError

SETTINGS_FILE: Final = "settings.toml"
CHECKPOINTS: Final = "checkpoints"
KEPT_CHECKPOINTS: Final = 3
"""Number of newest checkpoints kept, beside the one with the best evaluation races."""
RUN_LOG: Final = "run.sqlite"
REPLAY: Final = "replay"
"""Folder with a disk replay memory's files."""


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run folder, which has a settings file."""
    return (folder / SETTINGS_FILE).is_file()


class RunFolder:
    """A run's files, save/{run_name} and tensorboard/{run_name}; `trackmania_rl.runs` describes them."""

    def __init__(self, path: Path, tensorboard: Path) -> None:
        self.path = path
        self.tensorboard = tensorboard
        self.name = path.name
        self.settings = path / SETTINGS_FILE
        self.checkpoints = path / CHECKPOINTS
        self.replay = path / REPLAY
        self.best_runs = path / "best_runs"
        self.good_runs = path / "good_runs"
        self.drivers = path / "drivers"
        self.recordings = path / "recordings"
        self.diagnostics = path / "diagnostics"
        self.run_log = path / RUN_LOG
        self.seeds = path / "seeds.json"
        self.sessions = path / "sessions.txt"
        self.log = path / "train.log"
        self.lock = path / ".train.lock"

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """Return the files for the run whose folder is `path`."""
        return cls(path, path.parent.parent / "tensorboard" / path.name)

    @classmethod
    def below(cls, root: Path, run_name: str) -> RunFolder:
        """Return a run's files below an output folder."""
        return cls.at(root / "save" / run_name)

    @classmethod
    def create(cls, root: Path, run_name: str) -> RunFolder:
        """Make a run's folders below an output folder."""
        folder = cls.below(root, run_name)
        folder.make()
        return folder

    def make(self) -> None:
        """Make the folders that do not exist. Raise `UserError` if that fails."""
        for path in (self.path, self.best_runs, self.tensorboard, self.checkpoints):
            if path.is_symlink():  # leads to a disk that may not be mounted, which the checkpoint check names
                continue
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"cannot make the folder {path}: {error.strerror}; choose another place with --output-folder"
                ) from error
