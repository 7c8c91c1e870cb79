"""Picture of the benchmark: curves of each track."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.driving.score import Axis, Group, Yardstick, greedy_races, scores_at

CURVE_POINTS = 300
SCORE_TICKS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
SCORE_AXIS_POWER = 3.0
"""The score axis of the curves is drawn as score^power: what matters lies near 1."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933", "#882255", "#44aa99")
"""Distinct for colour-blind readers: M. Okabe, K. Ito, Color Universal Design, 2008; P. Tol's for the rest."""


def draw_curves(file: Path, groups: Sequence[Group], yardsticks: dict[str, Yardstick]) -> None:
    """Draw the score against wall-clock (left) and frames (right), a row for each track, a curve for each variant."""
    tracks = list(dict.fromkeys(group.track for group in groups))
    variants = list(dict.fromkeys(group.variant for group in groups))
    figure = Figure(figsize=(11, 1.2 + 3.6 * len(tracks)), dpi=130, layout="constrained")
    panels = figure.subplots(len(tracks), 2, squeeze=False, sharey=True)
    for row, track in enumerate(tracks):
        yardstick = yardsticks[track]
        axes: tuple[Axis, Axis] = ("wall_s", "frames_total")
        for panel, axis in zip(panels[row], axes, strict=True):
            _draw_yardsticks(panel, yardstick)
            for group in groups:
                if group.track == track:
                    color = COLORS[variants.index(group.variant) % len(COLORS)]
                    _draw_curve(panel, group, yardstick, axis, color)
            panel.set_title(
                f"{track} ({yardstick.length_m:,.0f} m, record {yardstick.record_ms / 1000:.2f} s)", fontsize=11
            )
        panels[row][0].set_ylabel("score: record's time / race time\n(median of the last 10 greedy races)")
    panels[-1][0].set_xlabel("wall-clock since the start of the command, in minutes")
    panels[-1][1].set_xlabel("frames (actions of all games together)")
    handles = {text: line for row in panels for line, text in zip(*row[0].get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)), frameon=False
    )
    figure.suptitle(
        "line: median over the seeds; shaded: from the lowest seed to the highest; the score's axis widens towards 1",
        fontsize=9,
    )
    figure.savefig(file)


def _draw_yardsticks(panel: Axes, yardstick: Yardstick) -> None:
    panel.set_yscale(
        "function",
        functions=(
            lambda score: np.sign(score) * np.abs(score) ** SCORE_AXIS_POWER,
            lambda height: np.sign(height) * np.abs(height) ** (1 / SCORE_AXIS_POWER),
        ),
    )
    panel.set_yticks(SCORE_TICKS, [f"{tick:g}" for tick in SCORE_TICKS])
    panel.set_ylim(-0.2, 1.03)  # a curve at 0 is to be seen
    panel.margins(x=0.0)
    panel.grid(color="0.92")
    panel.set_axisbelow(True)
    panel.axhline(1.0, color="0.3", linewidth=1, label="record")
    tuned = yardstick.record_ms / yardstick.scripted_tuned_ms
    panel.axhline(tuned, color="0.3", linewidth=1, linestyle="--", label="tuned scripted driver")
    if yardstick.scripted_careful_ms:
        careful = yardstick.record_ms / yardstick.scripted_careful_ms
        panel.axhline(careful, color="0.3", linewidth=1, linestyle=":", label="careful scripted driver")


def _draw_curve(panel: Axes, group: Group, yardstick: Yardstick, axis: Axis, color: str) -> None:
    """Draw as far as the shortest run goes, so that the median is of the same seeds throughout."""
    if axis == "wall_s":
        end = 60.0 * min(run.figures.minutes for run in group.runs)
    else:
        end = float(min(run.figures.frames for run in group.runs))
    moments: npt.NDArray[np.float64] = np.linspace(0.0, end, CURVE_POINTS)
    scores = np.array(
        [
            scores_at(greedy_races(run.races, group.track), yardstick.record_ms, axis, moments.tolist())
            for run in group.runs
        ]
    )
    assert scores.shape == (len(group.runs), CURVE_POINTS)
    at = moments / 60 if axis == "wall_s" else moments
    seeds = "1 seed" if len(group.runs) == 1 else f"{len(group.runs)} seeds"
    panel.plot(at, np.median(scores, axis=0), color=color, linewidth=1.8, label=f"{group.variant} ({seeds})")
    if len(group.runs) > 1:
        panel.fill_between(at, scores.min(axis=0), scores.max(axis=0), color=color, alpha=0.15, linewidth=0)
    if axis == "frames_total":
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    if scores.max() > panel.get_ylim()[1]:
        panel.set_ylim(top=scores.max() + 0.02)
