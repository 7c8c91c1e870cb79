"""A picture of two races along one line: who lies ahead, speeds, pedals and steering, and both lines from above."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.run_comparison import GRID_M, RunComparison

KM_H_PER_M_S: Final = 3.6
_COLOURS: Final = ("#1f77b4", "#d95f02")
"""Of A and B; told apart also by those who do not see red and green alike."""
_AHEAD, _BEHIND = "#2a9d5c", "#c0392b"
_GUIDE: Final = "0.75"
_PEDAL_ROWS: Final = (("gas", 0), ("brake", 1))
_MS_PER_S: Final = 1000.0


def draw_comparison(comparison: RunComparison, title: str) -> Figure:
    """Draw two races.

    Args:
        comparison: of them; its A is the one that the time difference refers to.
        title: for example the map's name.
    """
    figure = Figure(figsize=(18, 9), layout="constrained", dpi=100)
    FigureCanvasAgg(figure)
    columns = figure.add_gridspec(1, 2, width_ratios=(13, 6))
    rows = columns[0].subgridspec(4, 1, height_ratios=(3, 3, 1.3, 2))
    axes = [figure.add_subplot(rows[0])]
    axes += [figure.add_subplot(rows[row], sharex=axes[0]) for row in (1, 2, 3)]
    for axis in axes[:-1]:
        axis.tick_params(labelbottom=False)
    _draw_lines(figure.add_subplot(columns[1]), comparison)
    figure.suptitle(title, fontsize=13, parse_math=False)
    _draw_difference(axes[0], comparison)
    _draw_speeds(axes[1], comparison)
    _draw_pedals(axes[2], comparison)
    _draw_steering(axes[3], comparison)
    for axis in axes:
        _mark_sections(axis, comparison)
        axis.margins(x=0)
    axes[3].set_xlabel("distance along the line (m)")
    figure.align_ylabels(axes)
    return figure


def save_comparison(comparison: RunComparison, title: str, path: Path) -> None:
    """Draw two races into a file, of the kind that its name says (.png, .svg, .pdf).

    Raises:
        UserError: if the file can't be written, or its name says no kind of picture.
    """
    try:
        with warnings.catch_warnings():  # names of players may have letters that the font lacks
            warnings.filterwarnings("ignore", message="Glyph")
            draw_comparison(comparison, title).savefig(path)
    except (OSError, ValueError) as error:
        raise UserError(f"picture {path}: cannot be written: {error}") from error


def _draw_difference(axis: Axes, comparison: RunComparison) -> None:
    distance_m, behind_s = comparison.distance_m, comparison.behind_ms / _MS_PER_S
    axis.axhline(0.0, color="0.3", linewidth=0.8)
    axis.fill_between(distance_m, behind_s, where=behind_s >= 0, color=_BEHIND, alpha=0.25, linewidth=0)
    axis.fill_between(distance_m, behind_s, where=behind_s <= 0, color=_AHEAD, alpha=0.25, linewidth=0)
    axis.plot(distance_m, behind_s, color="0.15", linewidth=1.4)
    axis.set_ylabel("time difference (s)")
    axis.set_title("B lies behind A (red) or ahead of it (green); B loses time where the line rises", fontsize=10)
    lowest, highest = min(float(behind_s.min()), 0.0), max(float(behind_s.max()), 0.0)
    room = 0.12 * max(highest - lowest, 0.02)
    axis.set_ylim(lowest - room, highest + 2 * room)
    for section in comparison.sections:
        side = "right" if section is comparison.sections[-1] else "center"
        text = f"{section.name} {section.behind_ms / _MS_PER_S:+.2f} s"
        axis.text(section.end_m, highest + 0.7 * room, text, ha=side, fontsize=9, color="0.3")


def _draw_speeds(axis: Axes, comparison: RunComparison) -> None:
    for run, colour in zip((comparison.a, comparison.b), _COLOURS, strict=True):
        axis.plot(comparison.distance_m, run.speed_m_s * KM_H_PER_M_S, color=colour, linewidth=1.3, label=run.label)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("speed (km/h)")
    axis.grid(axis="y", color="0.9")
    for text in axis.legend(loc="lower right", fontsize=9).get_texts():
        text.set_parse_math(False)


def _draw_pedals(axis: Axes, comparison: RunComparison) -> None:
    """One strip for each pedal of each race, dark where it is pressed."""
    names: list[str] = []
    for pedal, column in _PEDAL_ROWS:
        for letter, run, colour in zip("AB", (comparison.a, comparison.b), _COLOURS, strict=True):
            row = len(names)
            names.append(f"{pedal} {letter}")
            if run.controls is None:
                axis.text(0.0, row, "  not known", va="center", fontsize=8, color="0.5")
                continue
            pressed = np.abs(run.controls[:, column])
            axis.fill_between(
                comparison.distance_m, row - 0.4, row - 0.4 + 0.8 * pressed, color=colour, step="post", linewidth=0
            )
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_ylabel("pedals")


def _draw_steering(axis: Axes, comparison: RunComparison) -> None:
    """One strip for each race: to the left above its middle line, to the right below it, as one sees it driving."""
    for row, (run, colour) in enumerate(zip((comparison.a, comparison.b), _COLOURS, strict=True)):
        axis.axhline(row, color=_GUIDE, linewidth=0.8)
        if run.controls is None:
            axis.text(0.0, row, "  not known", va="center", fontsize=8, color="0.5")
            continue
        turned = row + 0.44 * run.controls[:, 2]
        axis.fill_between(comparison.distance_m, row, turned, color=colour, step="post", linewidth=0)
    rows = [row + offset for row in range(2) for offset in (-0.3, 0.0, 0.3)]
    axis.set_yticks(rows, ("left", "A", "right", "left", "B", "right"), fontsize=8)
    axis.set_ylim(1.5, -0.5)
    axis.set_ylabel("steering")


def _draw_lines(axis: Axes, comparison: RunComparison) -> None:
    """Both lines from above, B's on A's, with the ends of the sections; x to the left, as the game's maps have it."""
    for run, colour, width in zip((comparison.a, comparison.b), _COLOURS, (3.0, 1.2), strict=True):
        axis.plot(run.position_m[:, 0], run.position_m[:, 2], color=colour, linewidth=width)
    for section in comparison.sections:
        at = min(int(section.end_m / GRID_M), len(comparison.distance_m) - 1)
        x, _, z = comparison.a.position_m[at]
        axis.annotate(section.name, (x, z), xytext=(6, 6), textcoords="offset points", fontsize=9, color="0.3")
        axis.plot(x, z, marker="o", color="0.3", markersize=4)
    axis.set_aspect("equal", adjustable="datalim")
    axis.invert_xaxis()
    axis.set_xlabel("x (m)")
    axis.set_ylabel("z (m)")
    axis.set_title("from above", fontsize=10)
    axis.grid(color="0.93")


def _mark_sections(axis: Axes, comparison: RunComparison) -> None:
    for section in comparison.sections:
        axis.axvline(section.end_m, color=_GUIDE, linewidth=0.9, linestyle="--", zorder=0)
