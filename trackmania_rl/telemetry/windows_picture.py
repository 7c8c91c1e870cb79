"""A picture of replay windows: over the map's blocks, and along the race."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from trackmania_rl.gbx.challenge import Challenge
from trackmania_rl.telemetry.figure_file import write_figure
from trackmania_rl.telemetry.line_picture import (
    DOTS_PER_INCH,
    HEIGHT_FROM_ABOVE_IN,
    MARGIN_M,
    WIDTH_IN,
    draw_blocks,
)
from trackmania_rl.track.ghost_motion import GhostMotion
from trackmania_rl.track.replay_windows import WindowResult

CLASSES: Final = ((0.05, "#1a7a32"), (0.15, "#6fbf4b"), (0.3, "#e3c229"), (1.0, "#ee8322"), (np.inf, "#c9242b"))
"""(largest distance at the end in m, colour) of the windows."""
LABEL_EVERY_MS: Final = 1000
TIMELINE_IN: Final = 3.4
LEAST_M: Final = 0.01
"""Where the logarithmic axis of distances begins."""

FloatArray = npt.NDArray[np.float64]


def draw_windows(
    file: Path, title: str, motion: GhostMotion, results: Sequence[WindowResult], challenge: Challenge | None
) -> None:
    """Write a PNG: where each window begins and how far from the ghost it ends.

    Args:
        file: the picture; its folder must exist.
        title: what is written above it.
        motion: the ghost's.
        results: of its windows, in order of time.
        challenge: the map whose blocks are drawn.

    Raises:
        UserError: if the picture cannot be written.
    """
    way_m = motion.position_m[:, [0, 2]]
    extent_m = np.ptp(way_m, axis=0) + 2.0 * MARGIN_M
    above_in = float(np.clip(0.95 * WIDTH_IN * extent_m[1] / extent_m[0] + 0.5, *HEIGHT_FROM_ABOVE_IN))
    figure = Figure(figsize=(WIDTH_IN, above_in + TIMELINE_IN), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    above, timeline = figure.subplots(2, 1, height_ratios=(above_in, TIMELINE_IN))
    figure.suptitle(title, parse_math=False)
    _draw_from_above(above, way_m, motion.time_ms, results, challenge)
    _draw_timeline(timeline, results)
    write_figure(figure, file)


def colour_of(result: WindowResult) -> str:
    """The colour of how far from the ghost a window ends."""
    return next(colour for limit_m, colour in CLASSES if result.position_m[-1] <= limit_m)


def _draw_from_above(
    axes: Axes,
    way_m: FloatArray,
    time_ms: npt.NDArray[np.int64],
    results: Sequence[WindowResult],
    challenge: Challenge | None,
) -> None:
    """The ghost's way, each piece in the colour of the window that begins with it, and where the simulated car went."""
    if challenge is not None:
        draw_blocks(axes, challenge)
    axes.plot(*way_m.T, color="#9a9a94", linewidth=1.2, zorder=2)
    starts_ms = [result.window.start_ms for result in results] + [results[-1].window.start_ms + LABEL_EVERY_MS // 2]
    pieces, colours = [], []
    for result, begin_ms, end_ms in zip(results, starts_ms, starts_ms[1:], strict=False):
        inside = (time_ms >= begin_ms) & (time_ms <= min(end_ms, begin_ms + LABEL_EVERY_MS))
        pieces.append(way_m[inside])
        colours.append(colour_of(result))
        axes.plot(result.path_m[:, 0], result.path_m[:, 2], color=colour_of(result), linewidth=0.9, zorder=4)
        if begin_ms % LABEL_EVERY_MS == 0:
            axes.annotate(
                f"{begin_ms / 1000:.0f}",
                way_m[inside][0],
                xytext=(6, 6),
                textcoords="offset points",
                fontsize=8,
                zorder=6,
            )
    axes.add_collection(LineCollection(pieces, colors=colours, linewidths=5.0, alpha=0.8, zorder=3))
    low_m, high_m = way_m.min(axis=0) - MARGIN_M, way_m.max(axis=0) + MARGIN_M
    axes.set_xlim(low_m[0], high_m[0])
    axes.set_ylim(high_m[1], low_m[1])
    axes.set_aspect("equal")
    axes.set_xlabel("x in m; numbers: race time in s; thin lines: where the simulated car went")
    axes.set_ylabel("z in m")
    handles = [
        Line2D([], [], color=colour, linewidth=5.0, label="further" if np.isinf(limit_m) else f"within {limit_m:g} m")
        for limit_m, colour in CLASSES
    ]
    axes.legend(handles=handles, title="after a window", loc="best", fontsize=8)


def _draw_timeline(axes: Axes, results: Sequence[WindowResult]) -> None:
    """How far each window is off at its end, and what it drives on."""
    for result in results:
        begin_s = result.window.start_ms / 1000
        end_m = max(float(result.position_m[-1]), LEAST_M)
        axes.plot([begin_s, begin_s], [LEAST_M, end_m], color=colour_of(result), linewidth=4.0, solid_capstyle="butt")
    last_kind, begin_s = None, 0.0
    for result in results:
        if result.window.kind is not last_kind:
            last_kind, begin_s = result.window.kind, result.window.start_ms / 1000
            axes.text(
                begin_s, 0.98, last_kind.value, transform=axes.get_xaxis_transform(), rotation=90, fontsize=7, va="top"
            )
    axes.set_yscale("log")
    for limit_m, colour in CLASSES[:-1]:
        axes.axhline(limit_m, color=colour, linewidth=0.7)
    axes.set_ylim(LEAST_M, None)
    axes.set_xlabel("beginning of the window in s")
    axes.set_ylabel("m away at its end")
    axes.grid(axis="x", alpha=0.3)
