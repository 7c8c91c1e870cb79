"""Names of the files in a run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.snapshot import SETTINGS_FILE

CHECKPOINTS: Final = "checkpoints"
KEPT_CHECKPOINTS: Final = 3
"""Number of newest checkpoints that are kept, beside the one with the best evaluation races."""
RACES_FILE: Final = "races.jsonl"


@dataclass(frozen=True)
class RunFolder:
    """Files of a run.

    Attributes:
        path: save/{run_name}.
        tensorboard: tensorboard/{run_name}.
    """

    path: Path
    tensorboard: Path

    @classmethod
    def create(cls, root: Path, run_name: str) -> RunFolder:
        """Make the folders of a run below `root` (the project's folder) that do not exist.

        Raises:
            UserError: if a folder cannot be made.
        """
        folder = cls.below(root, run_name)
        folder.make()
        return folder

    @classmethod
    def below(cls, root: Path, run_name: str) -> RunFolder:
        """Return the folders of a run below `root`; nothing is made."""
        return cls(path=root / "save" / run_name, tensorboard=root / "tensorboard" / run_name)

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

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def settings(self) -> Path:
        """The run's own settings, which may be edited while it trains."""
        return self.path / SETTINGS_FILE

    @property
    def best_runs(self) -> Path:
        """Folder of the records, one folder each."""
        return self.path / "best_runs"

    @property
    def drivers(self) -> Path:
        """Folder of the drivers that are kept during the training."""
        return self.path / "drivers"

    @property
    def recordings(self) -> Path:
        """Folder of recorded evaluation races and their films."""
        return self.path / "recordings"

    @property
    def diagnostics(self) -> Path:
        """Folder of the plots of values, quantiles, errors and expectations."""
        return self.path / "diagnostics"

    @property
    def races(self) -> Path:
        """One JSON line for each race."""
        return self.path / RACES_FILE

    @property
    def seeds(self) -> Path:
        """Seeds of the run and of the learner's parts. Collectors spawn theirs by name."""
        return self.path / "seeds.json"

    @property
    def sessions(self) -> Path:
        """Number of starts of the run."""
        return self.path / "sessions.txt"

    @property
    def log(self) -> Path:
        """Log messages."""
        return self.path / "train.log"

    @property
    def lock(self) -> Path:
        """Lock of the training."""
        return self.path / ".train.lock"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints and of the replay memory's rows."""
        return self.path / CHECKPOINTS
