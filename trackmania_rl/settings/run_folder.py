"""Names of the files in a run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.snapshot import SETTINGS_FILE

CHECKPOINTS: Final = "checkpoints"
KEPT_CHECKPOINTS: Final = 3
"""Number of newest checkpoints that are kept, beside the one with the best evaluation races."""
RACES_FILE: Final = "races.jsonl"


class RunFolder:
    """Files of a run; the package `trackmania_rl.runs` describes them.

    Args:
        path: save/{run_name}.
        tensorboard: tensorboard/{run_name}.
    """

    def __init__(self, path: Path, tensorboard: Path) -> None:
        self.path = path
        self.tensorboard = tensorboard
        self.name = path.name
        self.settings = path / SETTINGS_FILE
        self.checkpoints = path / CHECKPOINTS
        self.best_runs = path / "best_runs"
        self.drivers = path / "drivers"
        self.recordings = path / "recordings"
        self.diagnostics = path / "diagnostics"
        self.races = path / RACES_FILE
        self.seeds = path / "seeds.json"
        self.sessions = path / "sessions.txt"
        self.log = path / "train.log"
        self.lock = path / ".train.lock"

    @classmethod
    def create(cls, root: Path, run_name: str) -> RunFolder:
        """Make the folders of a run below `root`, as `below` and `make` do."""
        folder = cls.below(root, run_name)
        folder.make()
        return folder

    @classmethod
    def below(cls, root: Path, run_name: str) -> RunFolder:
        """Return the folders of a run below `root`; nothing is made."""
        return cls(root / "save" / run_name, root / "tensorboard" / run_name)

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """Return the folders of the run whose folder is `path`; nothing is made."""
        return cls(path, path.parent.parent / "tensorboard" / path.name)

    def make(self) -> None:
        """Make the folders that do not exist.

        Raises:
            UserError: if a folder cannot be made.
        """
        for path in (self.path, self.best_runs, self.tensorboard):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"cannot make the folder {path}: {error.strerror}; choose another place with --output-folder"
                ) from error
