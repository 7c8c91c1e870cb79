"""Pictures of lines and of replay windows over the blocks of their map; importing this imports matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import BLOCK_SIZE_M, Block, Challenge, Gate
from trackmania_rl.track.line_building import LINE_SPACING_M, arc_length, directions
from trackmania_rl.track.line_checks import TOLERATED_SPACING_M, GatePassage

if TYPE_CHECKING:
    from research.replay_windows.ghost_motion import GhostMotion
    from research.replay_windows.windows import WindowResult

FloatArray = npt.NDArray[np.float64]

WIDTH_IN: Final = 13.0
HEIGHT_FROM_ABOVE_IN: Final = (3.0, 13.0)
PROFILE_IN, SPACING_IN = 2.6, 1.8
DOTS_PER_INCH: Final = 110
MARGIN_M: Final = 40.0
N_ARROWS: Final = 28
BLOCK_COLOUR: Final = "#d9d9d4"
GATE_COLOURS: Final = {
    Gate.START: "#3aa655",
    Gate.START_AND_FINISH: "#3aa655",
    Gate.CHECKPOINT: "#4f8fe0",
    Gate.FINISH: "#d9483b",
}
GATE_NAMES: Final = {Gate.START: "start", Gate.START_AND_FINISH: "start, finish", Gate.FINISH: "finish"}
CLASSES: Final = ((0.05, "#1a7a32"), (0.15, "#6fbf4b"), (0.3, "#e3c229"), (1.0, "#ee8322"), (np.inf, "#c9242b"))
"""(largest distance at the end in m, colour) of the windows."""
LABEL_EVERY_MS: Final = 1000
TIMELINE_IN: Final = 3.4
LEAST_M: Final = 0.01
"""Where the logarithmic axis of distances begins."""


def draw_line(
    file: Path,
    title: str,
    line_m: FloatArray,
    speed_m_s: FloatArray | None = None,
    challenge: Challenge | None = None,
    passages: Sequence[GatePassage] = (),
) -> None:
    """Write a PNG of a line.

    Args:
        file: the picture; its folder must exist.
        title: what is written above it.
        line_m: (N, 3) metres, N >= 2.
        speed_m_s: (N,) colours the line; without it, its height does.
        challenge: the map whose blocks are drawn.
        passages: of the gates, in the line's order; checkpoints are numbered by it.

    Raises:
        UserError: if the picture cannot be written.
    """
    colour_of = 3.6 * speed_m_s if speed_m_s is not None else line_m[:, 1]
    colour_name = "speed in km/h" if speed_m_s is not None else "height in m"
    extent_m = np.ptp(line_m[:, [0, 2]], axis=0) + 2.0 * MARGIN_M
    above_in = float(np.clip(0.85 * WIDTH_IN * extent_m[1] / extent_m[0] + 0.7, *HEIGHT_FROM_ABOVE_IN))
    height_in = above_in + PROFILE_IN + SPACING_IN + 0.4
    figure = new_figure(height_in)
    grid = figure.add_gridspec(3, 1, height_ratios=(above_in, PROFILE_IN, SPACING_IN))
    above, heights, spacing = (figure.add_subplot(grid[row]) for row in range(3))
    stations_m = arc_length(line_m)
    figure.suptitle(f"{title}: {stations_m[-1]:.0f} m", parse_math=False)
    coloured = _draw_line_from_above(above, line_m, colour_of, challenge, passages)
    figure.colorbar(coloured, ax=above, label=colour_name, shrink=0.8, pad=0.01)
    _draw_heights(heights, line_m, stations_m, colour_of, passages)
    _draw_spacing(spacing, stations_m)
    write(figure, file)


def _draw_line_from_above(
    axes: Axes,
    line_m: FloatArray,
    colour_of: FloatArray,
    challenge: Challenge | None,
    passages: Sequence[GatePassage],
) -> LineCollection:
    """Draw blocks, line, arrows and gates as the game's stadium lies: x to the right, z downwards."""
    if challenge is not None:
        _draw_blocks(axes, challenge)
    coloured = _coloured_line(line_m[:, [0, 2]], colour_of, width=3.0)
    axes.add_collection(coloured)
    at = np.linspace(0, len(line_m) - 1, N_ARROWS + 2).astype(np.int64)[1:-1]
    towards = directions(line_m)[at][:, [0, 2]]
    towards /= np.maximum(np.linalg.norm(towards, axis=1, keepdims=True), 1e-9)  # as long on a slope as on the level
    axes.quiver(
        line_m[at, 0],
        line_m[at, 2],
        towards[:, 0],
        towards[:, 1],
        angles="xy",
        pivot="mid",
        color="black",
        scale=70,
        width=0.0022,
        headwidth=7,
        headlength=8,
        headaxislength=7,
        zorder=4,
    )
    for text, passage in zip(_labels(passages), passages, strict=True):
        x_m, _, z_m = passage.point_m
        axes.annotate(
            text,
            (x_m, z_m),
            xytext=(12, 12),
            textcoords="offset points",
            fontsize=11,
            fontweight="bold",
            color="white",
            bbox={"boxstyle": "round,pad=0.25", "facecolor": _colour(passage.gate), "edgecolor": "white"},
            arrowprops={"arrowstyle": "-", "color": _colour(passage.gate)},
            zorder=6,
        )
    axes.plot(*line_m[0, [0, 2]], "o", color=GATE_COLOURS[Gate.START], markeredgecolor="black", zorder=5)
    axes.plot(*line_m[-1, [0, 2]], "s", color=GATE_COLOURS[Gate.FINISH], markeredgecolor="black", zorder=5)
    show_around(axes, line_m[:, [0, 2]])
    return coloured


def _draw_blocks(axes: Axes, challenge: Challenge) -> None:
    """Every block is a square; gates are drawn over the others."""
    plain = [_square(block) for block in challenge.blocks if block.gate is None]
    axes.add_collection(
        PatchCollection(plain, facecolor=BLOCK_COLOUR, edgecolor="#b4b4ae", linewidth=0.4, alpha=0.55, zorder=1)
    )
    gates = challenge.gates
    colours = [_colour(gate) for gate in gates]
    axes.add_collection(
        PatchCollection(
            [_square(gate) for gate in gates], facecolor=colours, edgecolor=colours, linewidth=1.2, alpha=0.6, zorder=2
        )
    )


def _draw_heights(
    axes: Axes, line_m: FloatArray, stations_m: FloatArray, colour_of: FloatArray, passages: Sequence[GatePassage]
) -> None:
    points = np.stack((stations_m, line_m[:, 1]), axis=1)
    axes.add_collection(_coloured_line(points, colour_of, width=2.5))
    low_m, high_m = float(line_m[:, 1].min()), float(line_m[:, 1].max())
    room_m = max(2.0, 0.12 * (high_m - low_m))
    axes.set_xlim(0.0, stations_m[-1])
    axes.set_ylim(low_m - room_m, high_m + 2.2 * room_m)
    for text, passage in zip(_labels(passages), passages, strict=True):
        axes.axvline(passage.station_m, color=_colour(passage.gate), linestyle="--", linewidth=1.0)
        is_at_end = passage.station_m > 0.9 * stations_m[-1]
        axes.text(
            passage.station_m,
            high_m + 1.1 * room_m,
            f" {text} ",
            color=_colour(passage.gate),
            fontsize=9,
            horizontalalignment="right" if is_at_end else "left",
        )
    axes.set_ylabel("height in m")
    axes.set_xlabel("metres along the line")
    axes.grid(alpha=0.3)


def _draw_spacing(axes: Axes, stations_m: FloatArray) -> None:
    """Distances of neighbours, with the band that the simulated game takes."""
    axes.axhspan(LINE_SPACING_M - TOLERATED_SPACING_M, LINE_SPACING_M + TOLERATED_SPACING_M, color="#e3f1e3")
    axes.plot(stations_m[1:], np.diff(stations_m), linewidth=0.8, color="#444444")
    highest_m = max(2.0 * LINE_SPACING_M, 1.1 * float(np.diff(stations_m).max()))
    axes.set_xlim(0.0, stations_m[-1])
    axes.set_ylim(0.0, highest_m)
    axes.set_ylabel("spacing in m")
    axes.set_xlabel("metres along the line")


def _coloured_line(points: FloatArray, colour_of: FloatArray, width: float) -> LineCollection:
    """A polyline (N, 2) whose pieces take their colours from (N,) values."""
    assert points.shape == (len(colour_of), 2)
    pieces = np.stack((points[:-1], points[1:]), axis=1)
    coloured = LineCollection(list(pieces), cmap="plasma", linewidths=width, capstyle="round", zorder=3)
    coloured.set_array(0.5 * (colour_of[:-1] + colour_of[1:]))
    return coloured


def _labels(passages: Sequence[GatePassage]) -> list[str]:
    """Names of gates; checkpoints are numbered as they are first passed, in each lap the same."""
    numbers: dict[Block, int] = {}
    labels = []
    for passage in passages:
        kind = passage.gate.gate
        if kind in GATE_NAMES:
            labels.append(GATE_NAMES[kind])
        else:
            labels.append(str(numbers.setdefault(passage.gate, len(numbers) + 1)))
    return labels


def _colour(gate: Block) -> str:
    return GATE_COLOURS[gate.gate or Gate.CHECKPOINT]


def _square(block: Block) -> Rectangle:
    x, _, z = block.cell
    return Rectangle((x * BLOCK_SIZE_M[0], z * BLOCK_SIZE_M[2]), BLOCK_SIZE_M[0], BLOCK_SIZE_M[2])


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
    figure = new_figure(above_in + TIMELINE_IN)
    above, timeline = figure.subplots(2, 1, height_ratios=(above_in, TIMELINE_IN))
    figure.suptitle(title, parse_math=False)
    _draw_windows_from_above(above, way_m, motion.time_ms, results, challenge)
    _draw_timeline(timeline, results)
    write(figure, file)


def _colour_of_window(result: WindowResult) -> str:
    """The colour of how far from the ghost a window ends."""
    return next(colour for limit_m, colour in CLASSES if result.position_m[-1] <= limit_m)


def _draw_windows_from_above(
    axes: Axes,
    way_m: FloatArray,
    time_ms: npt.NDArray[np.int64],
    results: Sequence[WindowResult],
    challenge: Challenge | None,
) -> None:
    """The ghost's way, each piece in the colour of the window that begins with it, and where the simulated car went."""
    if challenge is not None:
        _draw_blocks(axes, challenge)
    axes.plot(*way_m.T, color="#9a9a94", linewidth=1.2, zorder=2)
    starts_ms = [result.window.start_ms for result in results] + [results[-1].window.start_ms + LABEL_EVERY_MS // 2]
    pieces, colours = [], []
    for result, begin_ms, end_ms in zip(results, starts_ms, starts_ms[1:], strict=False):
        inside = (time_ms >= begin_ms) & (time_ms <= min(end_ms, begin_ms + LABEL_EVERY_MS))
        pieces.append(way_m[inside])
        colours.append(_colour_of_window(result))
        axes.plot(result.path_m[:, 0], result.path_m[:, 2], color=_colour_of_window(result), linewidth=0.9, zorder=4)
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
    show_around(axes, way_m)
    axes.set_xlabel("x in m; numbers: race time in s; thin lines: where the simulated car went")
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
        axes.plot([begin_s, begin_s], [LEAST_M, end_m], color=_colour_of_window(result), linewidth=4.0)
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


def new_figure(height_in: float, width_in: float = WIDTH_IN) -> Figure:
    """Return an empty figure."""
    figure = Figure(figsize=(width_in, height_in), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def show_around(axes: Axes, ground_m: FloatArray, margin_m: float = MARGIN_M) -> None:
    """Show points (N, 2) as the game's stadium lies: x to the right, z downwards."""
    low_m, high_m = ground_m.min(axis=0) - margin_m, ground_m.max(axis=0) + margin_m
    axes.set_xlim(low_m[0], high_m[0])
    axes.set_ylim(high_m[1], low_m[1])
    axes.set_aspect("equal")
    axes.set_xlabel("x in m")
    axes.set_ylabel("z in m")


def write(figure: Figure, file: Path) -> None:
    """Write a PNG; an existing file is overwritten.

    Raises:
        UserError: if the file cannot be written.
    """
    try:
        with warnings.catch_warnings():  # names of players may have letters that the font lacks
            warnings.filterwarnings("ignore", message="Glyph")
            figure.savefig(file, format="png")
    except OSError as error:
        raise UserError(f"picture {file}: cannot be written: {error.strerror}") from error
