"""Reference lines: points along a track from which the virtual checkpoints (zones) are made.

A line is a `.npy` file with shape (N, 3), in metres in the game's world axes, from the start line to the finish, one
point every `LINE_SPACING_M`.
"""

from __future__ import annotations

import logging
import multiprocessing
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError, warn_once
from trackmania_rl.files import read_npy
from trackmania_rl.gbx.reading import wrong_name
from trackmania_rl.paths import command_line_of
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M
from trackmania_rl.simulator.tracks.track_file import MAX_LINE_BYTES, MAX_RESAMPLED_SHARE
from trackmania_rl.track.line_building import resample

log = logging.getLogger(__name__)

MIN_SPACING_RATIO: Final = 0.25
MAX_SPACING_RATIO: Final = 2.0
"""Bounds for the distance between neighbouring points, as a factor on the nominal distance. Recorded lines smoothed by
hand keep within 0.7 to 1.3."""
MAX_RESAMPLED_STEP_RATIO: Final = 10.0
"""Longest step in a resampled line, as a factor on the nominal distance; at most a share `MAX_RESAMPLED_SHARE` of
steps are outside the bounds. Any other line is refused."""


class ReferenceLineError(UserError):
    """A reference line is missing, unreadable, or with another spacing than the settings say."""


def load_reference_line(path: Path, spacing_m: float = LINE_SPACING_M) -> npt.NDArray[np.float64]:
    """Read a reference line. Resample it if single steps are too short or long; the main process logs this once.

    Args:
        path: the `.npy` file; pickled objects are refused.
        spacing_m: the nominal distance between neighbouring points.

    Returns:
        (N, 3) float64 points in metres, N >= 2.

    Raises:
        ReferenceLineError: if the file is missing or damaged, or has non-finite points, another shape or spacing.
    """
    line = read_points(path)
    wrong, is_mendable = uneven_steps(line, spacing_m)
    if wrong is None:
        return line
    if not is_mendable:
        raise ReferenceLineError(f"reference line {path}: {wrong}; {resample_advice(path)}")
    if multiprocessing.parent_process() is None:
        warn_once(f"reference line {path}: {wrong}; resampled for now, and {resample_advice(path)}", log)
    return resample(line, spacing_m)


def read_points(path: Path) -> npt.NDArray[np.float64]:
    """Read a reference line's (N, 3) finite points, N >= 2, at any spacing.

    Raises:
        ReferenceLineError: if the file is missing, damaged, not finite, or has another shape.
    """
    if not path.exists():
        raise ReferenceLineError(
            f"reference line {path}: no such file; {command_line_of('tools/maps')} add makes it of a map and a replay "
            "(docs/tutorial_own_map.rst)"
        )
    if path.suffix in (".txt", ".csv"):
        raise ReferenceLineError(str(wrong_name(path)))
    try:
        stored = read_npy(path, MAX_LINE_BYTES)
    except UserError as error:
        raise ReferenceLineError(f"reference line {error}") from error
    if stored.ndim != 2 or stored.shape[1] != 3 or stored.shape[0] < 2:
        raise ReferenceLineError(f"reference line {path}: shape {stored.shape}; (N, 3) with N >= 2 is needed")
    line = np.array(stored, dtype=np.float64)
    not_finite = ~np.isfinite(line).all(axis=1)
    if not_finite.any():
        first = int(np.argmax(not_finite))
        raise ReferenceLineError(
            f"reference line {path}: {int(not_finite.sum())} points are not finite, the first is number {first}"
        )
    return line


def uneven_steps(line: npt.NDArray[np.float64], spacing_m: float) -> tuple[str | None, bool]:
    """Return a text on the steps outside the allowed distances, None if there are none; and whether to resample."""
    steps_m = np.linalg.norm(np.diff(line, axis=0), axis=1)
    lowest_m = MIN_SPACING_RATIO * spacing_m
    highest_m = MAX_SPACING_RATIO * spacing_m
    wrong = (steps_m < lowest_m) | (steps_m > highest_m)
    if not wrong.any():
        return None, False
    worst = int(np.argmax(np.where(wrong, np.abs(steps_m - spacing_m), -1.0)))
    text = (
        f"points {worst} and {worst + 1} are {steps_m[worst]:.3f} m apart ({wrong.sum()} of {len(steps_m)} steps are "
        f"wrong; {lowest_m:g} to {highest_m:g} m are allowed)"
    )
    return text, bool(wrong.mean() <= MAX_RESAMPLED_SHARE and steps_m.max() <= MAX_RESAMPLED_STEP_RATIO * spacing_m)


def resample_advice(path: Path) -> str:
    """Return the command that writes an even line."""
    return f"{command_line_of('tools/maps')} line --resample {path} --output EVEN.npy writes an even line"
