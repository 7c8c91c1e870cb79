"""What every logger takes, whatever stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch


class RunLogger(Protocol):
    """Takes what there is to see of a run; what it can't show it leaves out. Steps are the run's frames.

    A disk that fails raises `OSError` in any of its methods.
    """

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Take figures by name."""
        ...

    def log_histogram(self, name: str, values: torch.Tensor, step: int) -> None:
        """Take finite values (n,), on the CPU, to show how they are spread."""
        ...

    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        """Take a picture, (H, W, 3) uint8 RGB."""
        ...

    def log_film(self, name: str, film: Path, step: int) -> None:
        """Take a film: an .mp4 file. Beside it lies a smaller .gif for what shows pictures only."""
        ...

    def log_recording(self, name: str, recording: Path, step: int) -> None:
        """Take the file of a race's columns."""
        ...

    def log_text(self, name: str, text: str, step: int) -> None:
        """Take a text to be shown as it is, such as a configuration file's."""
        ...

    def log_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Take the run's settings by name."""
        ...

    def flush(self) -> None:
        """Make everything visible."""
        ...

    def reopen(self) -> None:
        """Go on after an `OSError`."""
        ...

    def close(self) -> None:
        """Write what is left, and end."""
        ...
