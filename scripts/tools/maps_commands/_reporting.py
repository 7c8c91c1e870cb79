"""Showing and writing lines, as several commands do it."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from maps_commands._sources import Source
from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.tables import print_table
from trackmania_rl.track.line_checks import LineReport, Verdict

COLOURS = {Verdict.FINE: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}


def print_report(console: Console, report: LineReport) -> None:
    """Print what was checked, the passages of the gates, and a last line that sums it up."""
    table = Table("check", "", "found")
    for finding in report.findings:
        verdict = Text(finding.verdict.value, style=COLOURS[finding.verdict])
        table.add_row(finding.check, verdict, Text(finding.text))
    print_table(table, console)
    if report.passages:
        gates = Table("gate", "at m", "beside its middle, m", "above its floor, m", "nearest point to its plane, m")
        for passage in report.passages:
            gates.add_row(
                "" if passage.gate.gate is None else passage.gate.gate.value,
                f"{passage.station_m:.1f}",
                f"{passage.beside_m:+.1f}",
                f"{passage.above_m:.1f}",
                f"{passage.plane_distance_m:.2f}",
            )
        print_table(gates, console)
    console.print(f"{count(len(report.problems), 'problem')}, {count(len(report.warnings), 'warning')}")


def write_line(points_m: np.ndarray, output: Path, overwrite: bool) -> Path:
    """Write a line as a .npy file, whole or not at all; return the file.

    Raises:
        UserError: if another line is there and may not be overwritten, or the file cannot be written.
    """
    stored = io.BytesIO()
    np.save(stored, points_m.astype(np.float32))
    unfinished = output.with_name(f".{output.stem}_unfinished.npy")
    try:
        if output.exists() and not overwrite:
            if output.read_bytes() == stored.getvalue():
                return output
            raise UserError(f"{output}: another line is there; give another name, or --force to overwrite it")
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(stored.getvalue())
        os.replace(unfinished, output)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return output


def draw(picture: Path, title: str, source: Source, report: LineReport) -> None:
    """Draw a line's picture.

    Raises:
        UserError: if the picture cannot be written.
    """
    from maps_commands._line_pictures import draw_line  # matplotlib takes a second to import

    draw_line(picture, title, source.line.points_m, source.line.speed_m_s, source.challenge, report.passages)


def count(number: int, name: str) -> str:
    """A number of things in words: no problems, 1 problem, 2 problems."""
    return f"{number or 'no'} {name}{'' if number == 1 else 's'}"


def line_file(text: str) -> Path:
    """A type for command-line arguments: a file whose name ends in .npy."""
    if not text.endswith(".npy"):
        raise ValueError
    return Path(text)
