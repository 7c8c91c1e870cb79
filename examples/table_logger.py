"""A minimal logger of your own: a text file with a line per figure of a run.

    python scripts/train.py --set run_name=told --set 'loggers=("tensorboard", "examples.table_logger:TableLogger")'

A torchrl logger; the training calls it with the run's name and folder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor
from torchrl.record.loggers.common import Logger


class TableLogger(Logger):
    """Write `figures.txt` in the run's folder: frames, name and value, tab-separated."""

    def _create_experiment(self) -> TextIO:
        """Open the file for appending, as `experiment`."""
        return (Path(self.log_dir) / "figures.txt").open("a", buffering=1, encoding="utf-8")

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Write a figure."""
        self.experiment.write(f"{step}\t{name}\t{value:g}\n")

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Write the settings at each start."""
        self.experiment.writelines(f"setting\t{name}\t{value}\n" for name, value in cfg.items())

    def log_video(self, name: str, video: Tensor, step: int | None = None, **how: Any) -> None:
        """Ignore films."""
        raise NotImplementedError

    def log_histogram(self, name: str, data: Sequence[float], **how: Any) -> None:
        """Ignore histograms."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"TableLogger({self.experiment.name})"
