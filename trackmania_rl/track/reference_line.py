"""Reference lines: the points along a track from which the virtual checkpoints (zones) are made.

A line is a `.npy` file of shape (N, 3), in metres in the game's world axes, from the start line to the finish, one
point every `distance_between_zone_centers_m`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.bounded_files import parse_npy, read_bounded
from trackmania_rl.errors import UserError
from trackmania_rl.places import command_line_of

MAX_LINE_BYTES: Final = 4 << 20
"""Of a `.npy` file: some 87 km. Computing with a line takes many times its size."""

MIN_SPACING_RATIO: Final = 0.25
MAX_SPACING_RATIO: Final = 2.0
"""How far the distance of two neighbouring points may be from the nominal one, as a factor. Recorded lines that were
smoothed by hand keep within 0.7 to 1.3."""


class ReferenceLineError(UserError):
    """A reference line is missing, unreadable, or not a line at the distances the settings promise."""


def load_reference_line(path: Path, spacing_m: float) -> npt.NDArray[np.float64]:
    """Read a reference line and check that it can be driven along.

    Args:
        path: the `.npy` file; pickled objects in it are refused.
        spacing_m: the nominal distance of two neighbouring points (`distance_between_zone_centers_m`).

    Returns:
        (N, 3) float64 points in metres, N >= 2.

    Raises:
        ReferenceLineError: if the file is missing, damaged, of another shape, not finite or of another spacing.
    """
    if not path.exists():
        raise ReferenceLineError(
            f"reference line {path}: no such file; {command_line_of('tools/maps')} add makes it of a map and a replay "
            "(docs/tutorial_own_map.rst)"
        )
    try:
        stored = parse_npy(read_bounded(path, MAX_LINE_BYTES), most_numbers=MAX_LINE_BYTES // 8)
    except UserError as error:
        raise ReferenceLineError(f"reference line {error}") from error
    except ValueError as error:
        raise ReferenceLineError(f"reference line {path}: not a readable .npy file ({error})") from error
    if stored.ndim != 2 or stored.shape[1] != 3 or stored.shape[0] < 2:
        raise ReferenceLineError(f"reference line {path}: shape {stored.shape}; (N, 3) with N >= 2 is needed")
    line = np.array(stored, dtype=np.float64)
    _check_points(line, spacing_m, path)
    return line


def _check_points(line: npt.NDArray[np.float64], spacing_m: float, path: Path) -> None:
    not_finite = ~np.isfinite(line).all(axis=1)
    if not_finite.any():
        first = int(np.argmax(not_finite))
        raise ReferenceLineError(
            f"reference line {path}: {int(not_finite.sum())} points are not finite, the first is number {first}"
        )
    steps_m = np.linalg.norm(np.diff(line, axis=0), axis=1)
    lowest_m, highest_m = MIN_SPACING_RATIO * spacing_m, MAX_SPACING_RATIO * spacing_m
    wrong = (steps_m < lowest_m) | (steps_m > highest_m)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ReferenceLineError(
            f"reference line {path}: points {first} and {first + 1} are {steps_m[first]:.3f} m apart; {lowest_m:g} to "
            f"{highest_m:g} m are allowed for distance_between_zone_centers_m = {spacing_m:g}"
        )
