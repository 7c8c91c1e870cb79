"""What the pictures share: sizes, colours, how an action looks, and the small map of chosen states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from trackmania_rl.telemetry.mind.numbers import PEDALS, About, Array

Dash = Any
"""What matplotlib calls a line style."""

SIZE_IN: Final = (12.0, 7.4)
DOTS_PER_INCH: Final = 100
TEXT: Final = "#222222"
FAINT: Final = "#777777"
GRID: Final = "#e4e4e4"
ROAD: Final = "#d0d0d0"
TRAIN, TEST = "#0072b2", "#d55e00"
"""Okabe and Ito's palette: told apart also by those who do not see red and green alike."""
_STEERING: Final = (("left", -1, "#0072b2"), ("straight", 0, "#333333"), ("right", 1, "#d55e00"))
_DASHES: Final[tuple[Dash, ...]] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
"""Of `PEDALS`, in their order."""
_OTHER_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#333333", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class ActionStyle:
    """How an action's line looks.

    Attributes:
        name: the action's.
        colour: says how it steers.
        dash: says which pedals it presses.
    """

    name: str
    colour: str
    dash: Dash


def action_styles(names: Sequence[str], controls: Array) -> list[ActionStyle]:
    """The styles of A actions.

    Args:
        names: theirs.
        controls: (A, 3) gas, brake and steer; (0, 3) where they are no keys.
    """
    if len(controls) != len(names):
        return [
            ActionStyle(
                str(name),
                _OTHER_COLOURS[index % len(_OTHER_COLOURS)],
                _DASHES[index // len(_OTHER_COLOURS) % len(_DASHES)],
            )
            for index, name in enumerate(names)
        ]
    styles = []
    for name, (gas, brake, steer) in zip(names, controls.tolist(), strict=True):
        colour = next(colour for _, side, colour in _STEERING if side == np.sign(steer))
        pressed = (int(gas > 0), int(brake > 0))
        dash = next(dash for (_, pedals), dash in zip(PEDALS, _DASHES, strict=True) if pedals == pressed)
        styles.append(ActionStyle(str(name), colour, dash))
    return styles


def styles_of(about: About) -> list[ActionStyle]:
    """The styles of a run's actions."""
    return action_styles(about.action_names.tolist(), about.action_controls)


def new_figure(size_in: tuple[float, float] = SIZE_IN) -> Figure:
    """An empty figure."""
    figure = Figure(figsize=size_in, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def head(figure: Figure, about: About, title: str) -> None:
    """Write what is seen and of when it is above a figure."""
    when = f"{about.map_name}, {about.frames_total:,} frames, {about.training_s / 60:.1f} min of training"
    figure.suptitle(f"{title}\n{when}", fontsize=13, color=TEXT, parse_math=False)


def tidy(axes: Axes, x_label: str, y_label: str) -> None:
    """Give axes their labels, and a grid that stays behind."""
    axes.set_xlabel(x_label, fontsize=10)
    axes.set_ylabel(y_label, fontsize=10)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def action_legend(figure: Figure, about: About) -> None:
    """Say below a figure which line is which action."""
    if len(about.action_controls) == len(about.action_names):
        handles = [Line2D([], [], color="none", label="steering:")]
        handles += [Line2D([], [], color=colour, linewidth=3, label=name) for name, _, colour in _STEERING]
        handles += [Line2D([], [], color="none", label="    pedals:")]
        handles += [
            Line2D([], [], color=TEXT, linestyle=dash, label=name)
            for (name, _), dash in zip(PEDALS, _DASHES, strict=True)
        ]
    else:
        handles = [Line2D([], [], color=s.colour, linestyle=s.dash, label=s.name) for s in styles_of(about)]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 9),
        fontsize=10,
        frameon=False,
        handlelength=2.6,
        columnspacing=1.4,
    )


def draw_small_map(axes: Axes, line_m: Array, driven_m: Array | None, points_m: Array) -> None:
    """Draw a track from above with numbered places.

    Args:
        axes: an empty one.
        line_m: (M, 3) the reference line; may be empty.
        driven_m: (T, 3) the race.
        points_m: (K, 3) the places.
    """
    draw_track(axes, line_m, driven_m, road_pt=7.0)
    for number, (x_m, _, z_m) in enumerate(points_m.tolist(), start=1):
        axes.plot(x_m, z_m, "o", markersize=15, color=TEXT, markeredgecolor="white", zorder=5)
        axes.text(
            x_m, z_m, str(number), color="white", fontsize=9, fontweight="bold", ha="center", va="center", zorder=6
        )
    axes.margins(0.08)
    axes.set_title("where: from above", fontsize=10, color=FAINT)


def draw_track(axes: Axes, line_m: Array, driven_m: Array | None, road_pt: float) -> None:
    """Draw road, so many points wide, and race as the game's maps lie: x to the right, z downwards."""
    if len(line_m):
        axes.plot(line_m[:, 0], line_m[:, 2], color=ROAD, linewidth=road_pt, solid_capstyle="round", zorder=1)
    if driven_m is not None:
        axes.plot(driven_m[:, 0], driven_m[:, 2], color=FAINT, linewidth=1.0, zorder=2)
    axes.set_aspect("equal", adjustable="datalim")
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
