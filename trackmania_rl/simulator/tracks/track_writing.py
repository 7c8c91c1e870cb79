"""Writing a designed track to disk: its reference line (.npy) and the track file (.toml) that lays the road over it."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trackmania_rl.simulator.tracks.track_design import LaidOutTrack, TrackDesign

SHIPPED_ORIGIN = "scripts/tools/build_shipped_tracks.py: change the road book there"


def line_name(design: TrackDesign) -> str:
    """Return the file name of the design's reference line."""
    return f"{design.name}_0.5m.npy"


def track_file_text(design: TrackDesign, laid_out: LaidOutTrack, origin: str = SHIPPED_ORIGIN) -> str:
    """Return the .toml text that puts the design's road over its line; its first line says what wrote it."""
    lines = [
        f"# Written by {origin}. Format: docs/track_files.rst",
        f"name = {toml_value(design.name)}",
        f"description = {toml_value(design.description)}",
        f"line = {toml_value(line_name(design))}",
        f"laps = {design.laps}",
        f"width_m = {design.width_m}",
        f'surface = "{design.surface}"',
        f'edge = "{design.edge}"',
    ]
    if design.allow_crossing:
        lines.append("allow_crossing = true")
    lines.append(f"checkpoints_m = {list(laid_out.checkpoints_m)}")
    for section in laid_out.sections:
        lines += ["", "[[section]]", f"from_m = {section.from_m}", f"to_m = {section.to_m}"]
        lines += [f"{key} = {toml_value(value)}" for key, value in section.style.items()]
    if design.times_ms:
        lines += ["", "[times]", *(f"{name} = {time_ms}" for name, time_ms in design.times_ms)]
    return "\n".join(lines) + "\n"


def write_track(design: TrackDesign, laid_out: LaidOutTrack, track_file: Path, origin: str = SHIPPED_ORIGIN) -> Path:
    """Write a track file, and its line beside it; return the line's file.

    Each file appears whole or not at all, the line first: whoever sees the track file can read both.

    Args:
        design: the road book.
        laid_out: the same in the world.
        track_file: the .toml to write; its folder exists.
        origin: what wrote it, for the file's first line.

    Raises:
        OSError: if the disk says no.
    """
    line_file = track_file.with_name(line_name(design))
    temporary = track_file.with_name(f".{track_file.stem}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.lib.format.write_array(file, laid_out.line_m, allow_pickle=False)
        temporary.replace(line_file)
        temporary.write_text(track_file_text(design, laid_out, origin), encoding="utf-8")
        temporary.replace(track_file)
    finally:
        temporary.unlink(missing_ok=True)
    return line_file


def file_in_the_way(new_files: Iterable[Path], folder: Path, *, may_be_same: bool = True) -> Path | None:
    """A file of a folder that stands where one of some new files is to go; None if there is none.

    Args:
        new_files: written elsewhere, under their final names.
        folder: where they are to go.
        may_be_same: files that are there already may be the very same.
    """
    for new in new_files:
        present = folder / new.name
        if present.exists() and not (may_be_same and present.read_bytes() == new.read_bytes()):
            return present
    return None


def toml_value(value: object) -> str:
    """Write a value as TOML does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    # TOML's strings are JSON's, but for surrogates, which it has not, and DEL, which it wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
