"""Output shared by commands: line reports and pictures, line files, messages."""

from __future__ import annotations

import io
from pathlib import Path

from trackmania_rl.cli import writing
from trackmania_rl.errors import UserError
from trackmania_rl.files import write_durably
from trackmania_rl.telemetry.tables import PlainConsole, print_table
from trackmania_rl.telemetry.terminal_view import format_time
from trackmania_rl.track.line_checks import LineReport, Verdict, check_line
from trackmania_rl.track.line_sources import LineSource

import numpy as np
from rich.table import Table
from rich.text import Text

COLOURS = {Verdict.FINE: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}


def say(text: object) -> None:
    """Print a line without markup: it may contain names from files."""
    PlainConsole().print(str(text), soft_wrap=True)


def title_of(source: LineSource) -> str:
    return source.title if source.race_time_ms is None else f"{source.title} in {format_time(source.race_time_ms)}"


def report_on(source: LineSource, title: str) -> LineReport:
    """Check a line and print title, notes, findings, gate passages and a summary."""
    report = check_line(source.line.points_m, source.challenge, source.checkpoint_m)
    for text in (f"{title}: {len(source.line.points_m)} points, {report.length_m:.1f} m", *source.line.notes):
        say(text)
    table = Table("check", "", "found")
    for finding in report.findings:
        verdict = Text(finding.verdict.value, style=COLOURS[finding.verdict])
        table.add_row(finding.check, verdict, Text(finding.text))
    print_table(table)
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
        print_table(gates)
    say(f"problems: {len(report.problems)}, warnings: {len(report.warnings)}")
    return report


def write_line(points_m: np.ndarray, output: Path, overwrite: bool) -> Path:
    """Write and return a .npy file; UserError if another line may not be overwritten."""
    stored = io.BytesIO()
    np.save(stored, points_m.astype(np.float32))
    with writing(output):
        if not output.exists() or overwrite:
            output.parent.mkdir(parents=True, exist_ok=True)
            write_durably(output, stored.getvalue())
        elif output.read_bytes() != stored.getvalue():
            raise UserError(f"{output}: another line is there; give another name, or --force to overwrite it")
    return output


def draw(picture: Path | None, title: str, source: LineSource, report: LineReport) -> None:
    if picture is None:
        return
    from maps_commands._pictures import draw_line  # slow import

    draw_line(picture, title, source.line.points_m, source.line.speed_m_s, source.challenge, report.passages)
    say(f"wrote {picture}")
