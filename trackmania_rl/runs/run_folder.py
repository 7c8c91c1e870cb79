"""Where each thing of a run lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trackmania_rl.runs.errors import CheckpointError
from trackmania_rl.settings.snapshot import SETTINGS_FILE

CHECKPOINTS: Final = "checkpoints"
KEPT_CHECKPOINTS: Final = 3
"""Number of newest checkpoints that are kept, beside the one with the best evaluation races."""
RACES_FILE: Final = "races.jsonl"


@dataclass(frozen=True)
class RunFolder:
    """Where each thing of a run lies.

    Attributes:
        path: save/{run_name}.
        tensorboard: tensorboard/{run_name}.
    """

    path: Path
    tensorboard: Path

    @classmethod
    def create(cls, root: Path, run_name: str) -> RunFolder:
        """The folders of a run below `root` (the project's folder), made where they do not exist.

        Raises:
            CheckpointError: if a folder cannot be made.
        """
        folder = cls.below(root, run_name)
        folder.make()
        return folder

    @classmethod
    def below(cls, root: Path, run_name: str) -> RunFolder:
        """The folders of a run below `root`, whether they are there or not."""
        return cls(path=root / "save" / run_name, tensorboard=root / "tensorboard" / run_name)

    def make(self) -> None:
        """Make the folders that are not there.

        Raises:
            CheckpointError: if one cannot be made.
        """
        for path in (self.path, self.best_runs, self.tensorboard):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(
                    f"cannot make the folder {path}: {error.strerror}; choose another place with --output-folder"
                ) from error

    @property
    def settings(self) -> Path:
        """The run's own settings, which may be edited while it trains."""
        return self.path / SETTINGS_FILE

    @property
    def best_runs(self) -> Path:
        """One folder for each record."""
        return self.path / "best_runs"

    @property
    def drivers(self) -> Path:
        """The driver on the way, one file for each moment."""
        return self.path / "drivers"

    @property
    def recordings(self) -> Path:
        """Evaluated races that were kept, and their films."""
        return self.path / "recordings"

    @property
    def diagnostics(self) -> Path:
        """Plots of values, quantiles, errors and expectations."""
        return self.path / "diagnostics"

    @property
    def races(self) -> Path:
        """One JSON line for each race."""
        return self.path / RACES_FILE

    @property
    def seeds(self) -> Path:
        """The run's seed, and those of the learner's parts; collectors draw theirs by names of their own."""
        return self.path / "seeds.json"

    @property
    def sessions(self) -> Path:
        """How often the run was started."""
        return self.path / "sessions.txt"

    @property
    def log(self) -> Path:
        """What was logged."""
        return self.path / "train.log"

    @property
    def checkpoints(self) -> Path:
        """One folder for each checkpoint, and the rows of the replay memory beside them."""
        return self.path / CHECKPOINTS

    @property
    def settings_in_force(self) -> Path:
        """The settings that were in force last."""
        return self.path / "settings_in_force.json"
