"""Writing what matplotlib has drawn."""

from __future__ import annotations

import warnings
from pathlib import Path

from matplotlib.figure import Figure

from trackmania_rl.errors import UserError


def write_figure(figure: Figure, file: Path) -> None:
    """Write a figure as a PNG; an existing file is overwritten.

    Raises:
        UserError: if the file cannot be written.
    """
    try:
        with warnings.catch_warnings():  # names of players may have letters that the font lacks
            warnings.filterwarnings("ignore", message="Glyph")
            figure.savefig(file, format="png")
    except OSError as error:
        raise UserError(f"picture {file}: cannot be written: {error.strerror}") from error
