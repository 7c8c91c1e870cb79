"""torchrl's loggers as loggers of a run; each is given what it can show.

The packages behind them are optional: those that need one are imported when their logger is opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageSequence
from torchrl.record.loggers import CSVLogger
from torchrl.record.loggers.common import Logger

HISTOGRAM_BINS: Final = 64


class TorchrlLogger:
    """Any of torchrl's loggers, a user's own included. A `RunLogger`.

    Args:
        logger: is given figures by `log_metrics`, settings by `log_hparams`, histograms and films by `log_histogram`
            and `log_video`, which may raise `NotImplementedError`. torchrl's loggers know no pictures and no files.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger: Any = logger

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """See `RunLogger`."""
        self.logger.log_metrics(dict(figures), step=step)

    def log_histogram(self, name: str, values: torch.Tensor, step: int) -> None:
        """See `RunLogger`."""
        with contextlib.suppress(NotImplementedError):
            self.logger.log_histogram(name, values.numpy(), step=step, bins=HISTOGRAM_BINS)

    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        """Leave it out."""

    def log_film(self, name: str, film: Path, step: int) -> None:
        """Hand the small one on as (1, T, 3, H, W) uint8, as torchrl has videos."""
        with Image.open(film.with_suffix(".gif")) as frames:
            frames_per_s = round(1000 / frames.info["duration"])
            pictures = np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(frames)])
        video = torch.from_numpy(pictures).permute(0, 3, 1, 2).unsqueeze(0)
        with contextlib.suppress(NotImplementedError):
            self.logger.log_video(name, video, step=step, fps=frames_per_s)

    def log_recording(self, name: str, recording: Path, step: int) -> None:
        """Leave it out."""

    def log_text(self, name: str, text: str, step: int) -> None:
        """Leave it out: torchrl's loggers have no common way to take it."""

    def log_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """See `RunLogger`."""
        self.logger.log_hparams(dict(settings))

    def flush(self) -> None:
        """Do nothing: torchrl's loggers hold nothing back."""

    def reopen(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class CsvFiles(TorchrlLogger):
    """A file `scalars/{figure}.csv` for each figure, with lines `frames,value`.

    Args:
        run_folder: gets the folder csv/.
        resumed_at_frame: where a resumed run goes on; lines beyond it, after its last checkpoint, are taken back.
    """

    def __init__(self, run_folder: Path, resumed_at_frame: int) -> None:
        for file in (run_folder / "csv" / "scalars").rglob("*.csv"):
            if file.is_file():
                _take_back_lines(file, resumed_at_frame)
        super().__init__(CSVLogger(exp_name="csv", log_dir=str(run_folder)))

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Write them; torchrl's logger would keep every file open, and every figure in memory, for weeks."""
        super().log_figures(figures, step)
        written = self.logger.experiment
        while written.files:
            written.files.popitem()[1].close()
        written.scalars.clear()

    def log_film(self, name: str, film: Path, step: int) -> None:
        """Leave it where it lies."""


def _take_back_lines(file: Path, last_frame: int) -> None:
    """Remove the lines beyond a frame, and one that a power cut left unfinished."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and int(line.partition(",")[0]) <= last_frame]
    if len(kept) < len(lines):
        file.write_text("".join(kept), encoding="utf-8")
