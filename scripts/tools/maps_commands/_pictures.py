"""Pictures of lines and block worlds. Imports matplotlib."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trackmania_rl.cli import writing
from trackmania_rl.gbx.challenge import BLOCK_SIZE_M, Block, Challenge, Gate
from trackmania_rl.gbx.replay import GhostSamples
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.block_world import BlockWorld
from trackmania_rl.track.line_building import arc_length, directions
from trackmania_rl.track.line_checks import GatePassage
from trackmania_rl.track.pieces import footprint
from trackmania_rl.track.placed_blocks import to_world

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PatchCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

if TYPE_CHECKING:
    from trackmania_rl.simulator.picture.block_scene import BlockScene

FloatArray = npt.NDArray[np.float64]

WIDTH_IN: Final = 13.0
FROM_ABOVE_IN: Final = (3.0, 13.0)
DOTS_PER_INCH: Final = 110
MARGIN_M: Final = 40.0
N_ARROWS: Final = 28
GATE_COLOURS: Final = {
    Gate.START: "#3aa655",
    Gate.START_AND_FINISH: "#3aa655",
    Gate.CHECKPOINT: "#4f8fe0",
    Gate.FINISH: "#d9483b",
}
GATE_NAMES: Final = {Gate.START: "start", Gate.START_AND_FINISH: "start, finish", Gate.FINISH: "finish"}
SURFACE_COLOURS: Final = {
    Surface.ASPHALT: "#5c5e66",
    Surface.CONCRETE: "#b4b0a6",
    Surface.DIRT: "#b08052",
    Surface.GRASS: "#68a042",
    Surface.TURBO: "#deaa28",
    Surface.TURBO_ROULETTE: "#de8c28",
    Surface.FREE_WHEEL: "#8052a8",
}
GRASS, WATER, UNKNOWN, SCENERY = "#7fa565", "#466ea0", "#e24a1e", "#e4e2da"
SUN: Final = np.array((0.35, 0.85, 0.40)) / np.linalg.norm((0.35, 0.85, 0.40))
UNKNOWN_LISTED: Final = 12
TITLE_LETTERS: Final = 140
ROWS, COLUMNS = 6, 4
VIEW_PX: Final = (400, 300)
TITLE_IN: Final = 0.25


def draw_line(
    file: Path,
    title: str,
    line_m: FloatArray,
    speed_m_s: FloatArray | None,
    challenge: Challenge | None,
    passages: Sequence[GatePassage],
) -> None:
    """Write a PNG of a line from above and its heights.

    Args:
        file: in an existing folder.
        title: text above the picture.
        line_m: (N, 3) metres, N >= 2.
        speed_m_s: (N,) colours the line; None for height.
        challenge: the map whose blocks are drawn.
        passages: through the gates, in line order.
    """
    colour_of = line_m[:, 1] if speed_m_s is None else 3.6 * speed_m_s
    stations_m = arc_length(line_m)
    figure, (above, heights) = _new_map_figure(f"{title}: {stations_m[-1]:.0f} m", line_m[:, [0, 2]], 2.6)
    if challenge is not None:
        _draw_blocks(above, challenge)
    coloured = _add_coloured_line(above, line_m[:, [0, 2]], colour_of)
    label = "height in m" if speed_m_s is None else "speed in km/h"
    figure.colorbar(coloured, ax=above, label=label, shrink=0.8, pad=0.01)
    at = np.linspace(0, len(line_m) - 1, N_ARROWS + 2).astype(np.int64)[1:-1]
    towards = directions(line_m)[at][:, [0, 2]]
    towards /= np.maximum(np.linalg.norm(towards, axis=1, keepdims=True), 1e-9)
    arrows: dict[str, Any] = {
        "angles": "xy",
        "pivot": "mid",
        "scale": 70,
        "width": 0.0022,
        "headwidth": 7,
        "headlength": 8,
    }
    above.quiver(*line_m[at][:, [0, 2]].T, *towards.T, zorder=4, **arrows)
    _add_coloured_line(heights, np.stack((stations_m, line_m[:, 1]), axis=1), colour_of)
    low_m, high_m = float(line_m[:, 1].min()), float(line_m[:, 1].max())
    room_m = max(2.0, 0.12 * (high_m - low_m))
    heights.set_xlim(0.0, stations_m[-1])
    heights.set_ylim(low_m - room_m, high_m + 2.2 * room_m)
    numbers: dict[Block, int] = {}  # checkpoints, by first passage
    for passage in passages:
        kind = passage.gate.gate or Gate.CHECKPOINT
        text = GATE_NAMES.get(kind) or str(numbers.setdefault(passage.gate, len(numbers) + 1))
        x_m, _, z_m = passage.point_m
        box = {"boxstyle": "round,pad=0.25", "facecolor": GATE_COLOURS[kind], "edgecolor": "white"}
        at_point: dict[str, Any] = {"xytext": (12, 12), "textcoords": "offset points", "fontsize": 11}
        above.annotate(text, (x_m, z_m), color="white", bbox=box, zorder=6, **at_point)
        heights.axvline(passage.station_m, color=GATE_COLOURS[kind], linestyle="--", linewidth=1.0)
        side = "right" if passage.station_m > 0.9 * stations_m[-1] else "left"
        heights.text(passage.station_m, high_m + 1.1 * room_m, f" {text} ", ha=side, color=GATE_COLOURS[kind])
    heights.set_ylabel("height in m")
    heights.set_xlabel("metres along the line")
    heights.grid(alpha=0.3)
    _write(figure, file)


def draw_world(file: Path, title: str, world: BlockWorld) -> None:
    cells = np.concatenate([np.zeros((0, 2, 3)), *map(_cell_corners, (*world.unknown, *world.water))])
    points_m = np.concatenate((world.corners_m.reshape(-1, 3), cells.reshape(-1, 3)))
    if len(points_m) == 0:
        points_m = np.array(((0.0, 0.0, 0.0), (1024.0, 16.0, 1024.0)))
    title = f"{title}: {100.0 * world.known_share:.0f} % of its road pieces are known"
    if world.unknown:
        names = world.unknown_names
        listed = ", ".join(f"{count} {name.removeprefix('Stadium')}" for name, count in names[:UNKNOWN_LISTED])
        more = f" and {len(names) - UNKNOWN_LISTED} other kinds" if len(names) > UNKNOWN_LISTED else ""
        title += "\n" + textwrap.fill(f"not in the catalogue (red): {listed}{more}", TITLE_LETTERS)
    figure, (above,) = _new_map_figure(title, points_m[:, [0, 2]])
    rgb = _lit_surface_rgb(world)
    highest_last = np.argsort(world.corners_m[:, :, 1].mean(axis=1), kind="stable")
    ground_m, of_ground = world.corners_m[highest_last][:, :, [0, 2]], rgb[highest_last]
    above.set_facecolor(GRASS)
    above.add_collection(PolyCollection(list(ground_m), facecolors=of_ground, edgecolors=of_ground, linewidths=0.2))
    _add_cells(above, world.scenery, facecolor="none", edgecolor=SCENERY, linewidth=0.4, zorder=2)
    _add_cells(above, world.water, facecolor=WATER, edgecolor=WATER, alpha=0.8, zorder=2)
    _add_cells(above, world.unknown, facecolor=UNKNOWN, edgecolor="#8c2406", alpha=0.75, hatch="//", zorder=3)
    for gate in world.gates:
        (x0, _, z0), (x1, _, z1) = gate.trigger_m
        size_m = x1 - x0 + 2.0, z1 - z0 + 2.0
        above.add_patch(Rectangle((x0 - 1.0, z0 - 1.0), *size_m, color=GATE_COLOURS[gate.kind], zorder=4))
    above.legend(handles=_legend(world), loc="best", fontsize=8)
    _write(figure, file)


def draw_views(file: Path, title: str, scene: BlockScene, samples: GhostSamples) -> None:
    """Write a PNG of views from behind a ghost's car, equally spaced in time from the first to the last sample."""
    from trackmania_rl.simulator.picture.renderer import Renderer

    renderer = Renderer(scene)
    width_in, height_in = (size / DOTS_PER_INCH for size in VIEW_PX)
    figure = _new_figure(COLUMNS * width_in, ROWS * (height_in + TITLE_IN) + TITLE_IN)
    figure.suptitle(title, parse_math=False)
    times_ms = np.linspace(samples.time_ms[0], samples.time_ms[-1], ROWS * COLUMNS)
    for axes, time_ms in zip(figure.subplots(ROWS, COLUMNS).ravel(), times_ms, strict=True):
        sample = int(np.argmin(np.abs(samples.time_ms - time_ms)))
        view = renderer.render(samples.position_m[sample], samples.axes[sample], 0, *VIEW_PX)
        axes.imshow(view[..., 2::-1])
        axes.set_axis_off()
        axes.set_title(f"{samples.time_ms[sample] / 1000.0:.1f} s", fontsize=8, pad=2.0)
    _write(figure, file)


def _new_figure(width_in: float, height_in: float) -> Figure:
    figure = Figure(figsize=(width_in, height_in), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _new_map_figure(title: str, ground_m: FloatArray, below_in: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes around points (N, 2), x to the right and z downwards as in the game, and axes below."""
    low_m, high_m = ground_m.min(axis=0) - MARGIN_M, ground_m.max(axis=0) + MARGIN_M
    extent_m = high_m - low_m
    above_in = float(np.clip(0.9 * WIDTH_IN * extent_m[1] / extent_m[0] + 0.7, *FROM_ABOVE_IN))
    figure = _new_figure(WIDTH_IN, above_in + below_in)
    ratios = (above_in, below_in) if below_in > 0.0 else (above_in,)
    axes: list[Axes] = figure.subplots(len(ratios), height_ratios=ratios, squeeze=False).ravel().tolist()
    above = axes[0]
    figure.suptitle(title, parse_math=False)
    above.set(xlim=(low_m[0], high_m[0]), ylim=(high_m[1], low_m[1]), aspect="equal", xlabel="x in m", ylabel="z in m")
    return figure, axes


def _write(figure: Figure, file: Path) -> None:
    with writing(file), warnings.catch_warnings():  # the font may lack letters of players' names
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(file, format="png")


def _draw_blocks(axes: Axes, challenge: Challenge) -> None:
    gates = challenge.gates
    plain = [_square(*block.cell) for block in challenge.blocks if block.gate is None]
    axes.add_collection(PatchCollection(plain, facecolor="#d9d9d4", edgecolor="#b4b4ae", linewidth=0.4, alpha=0.55))
    colours = [GATE_COLOURS[gate.gate or Gate.CHECKPOINT] for gate in gates]
    squares = [_square(*gate.cell) for gate in gates]
    axes.add_collection(PatchCollection(squares, facecolor=colours, edgecolor=colours, alpha=0.6, zorder=2))


def _square(x: float, _: float, z: float) -> Rectangle:
    return Rectangle((x * BLOCK_SIZE_M[0], z * BLOCK_SIZE_M[2]), BLOCK_SIZE_M[0], BLOCK_SIZE_M[2])


def _add_coloured_line(axes: Axes, points: FloatArray, colour_of: FloatArray) -> LineCollection:
    pieces = np.stack((points[:-1], points[1:]), axis=1)
    coloured = LineCollection(list(pieces), cmap="plasma", linewidths=3.0, capstyle="round", zorder=3)
    coloured.set_array(0.5 * (colour_of[:-1] + colour_of[1:]))
    axes.add_collection(coloured)
    return coloured


def _lit_surface_rgb(world: BlockWorld) -> FloatArray:
    """Return (T, 3) colours, 0 to 1, for the sunlit triangles."""
    names = np.array([SURFACE_COLOURS.get(Surface(surface), "#000000") for surface in world.surface.tolist()])
    rgb = np.array([[int(name[at : at + 2], 16) / 255 for at in (1, 3, 5)] for name in names]).reshape(-1, 3)
    corners_m = world.corners_m
    normals = np.cross(corners_m[:, 1] - corners_m[:, 0], corners_m[:, 2] - corners_m[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    return np.clip(rgb * (0.62 + 0.45 * np.abs(normals @ SUN))[:, None], 0.0, 1.0)


def _cell_corners(block: Block) -> FloatArray:
    """Return (C, 2, 3) opposite corners of a block's cells, world axes."""
    cells = np.array(footprint(block.name), dtype=np.float64)
    return to_world(np.stack((cells, cells + 1.0), axis=1) * BLOCK_SIZE_M, block)


def _add_cells(axes: Axes, blocks: tuple[Block, ...], **style: Any) -> None:
    corners_m = [cell_m.min(axis=0) / BLOCK_SIZE_M for block in blocks for cell_m in _cell_corners(block)]
    if corners_m:
        axes.add_collection(PatchCollection([_square(*corner) for corner in corners_m], **style))


def _legend(world: BlockWorld) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(color=colour, label=surface.name.lower().replace("_", " "))
        for surface, colour in SURFACE_COLOURS.items()
        if (world.surface == int(surface)).any()
    ]
    if world.water:
        handles.append(Patch(color=WATER, label="water"))
    if world.scenery:
        handles.append(Patch(facecolor="none", edgecolor="#9a988f", label="scenery, not driven against"))
    if world.unknown:
        handles.append(Patch(facecolor=UNKNOWN, hatch="//", label="not in the catalogue: nothing is there"))
    kinds = {gate.kind for gate in world.gates}
    return handles + [
        Line2D([], [], color=GATE_COLOURS[kind], linewidth=4.0, label=kind.value) for kind in Gate if kind in kinds
    ]
