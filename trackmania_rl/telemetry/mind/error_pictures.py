"""Where the driver errs: predicted and realised values, loss by horizon, and the transitions predicted worst."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from trackmania_rl.telemetry.mind.numbers import About, Array, Comparison, ErrorsByHorizon, MindNumbers, Surprises
from trackmania_rl.telemetry.mind.style import FAINT, TEST, TEXT, TRAIN, draw_track, head, new_figure, tidy
from trackmania_rl.telemetry.racing_line import ROAD_WIDTH_M

HEXAGONS_ACROSS = 42
SECTIONS_OF_TRACK = 50
HORIZONS = 12
AROUND_M = 45.0
"""How far a transition's map reaches to each side."""
CARD_IN = (4.7, 3.3)
MAP_IN = 2.2
POINTS_PER_INCH = 72
HEAD_IN = 0.85
LOG_FROM = 20.0
"""Losses whose largest is so many times the smallest get a logarithmic axis."""


def draw_predicted_and_realised(numbers: MindNumbers) -> Figure | None:
    """Draw values that were predicted while driving against what came."""
    compared = numbers.comparison
    if compared is None or len(compared.predicted) < 2:
        return None
    about = numbers.about
    figure = new_figure((13.0, 6.4))
    n_races = len(np.unique(compared.race))
    head(figure, about, f"Predicted and realised value of every action of {n_races} evaluated races")
    has_metres = bool((compared.is_of_map & np.isfinite(compared.meters)).any())
    grid = figure.add_gridspec(1, 1 + has_metres, width_ratios=[1.0] + [1.15] * has_metres)
    _draw_hexagons(figure, figure.add_subplot(grid[0]), compared)
    if has_metres:
        _draw_error_along_track(figure.add_subplot(grid[1]), about, compared)
    return figure


def draw_loss_by_horizon(numbers: MindNumbers) -> Figure | None:
    """Draw loss and error of transitions against the time that is left in their mini-race."""
    errors, about = numbers.errors, numbers.about
    if errors is None or about.mini_race_actions == 0 or len(errors.loss) < HORIZONS:
        return None
    has_errors = bool(np.isfinite(errors.error).any())
    figure = new_figure((13.0 if has_errors else 7.5, 6.0))
    head(figure, about, "Loss by horizon: transitions of the replay memory, by how much of their mini-race is left")
    panels = np.atleast_1d(figure.subplots(1, 1 + has_errors)).tolist()
    edges = np.linspace(0.5, about.mini_race_actions + 0.5, HORIZONS + 1)
    centres_s = (edges[:-1] + edges[1:]) / 2 * about.s_per_action
    for is_test, colour, name in ((False, TRAIN, "trained on"), (True, TEST, "kept apart")):
        of_side = errors.is_test == is_test
        if of_side.sum() >= HORIZONS:
            label = f"{name} ({of_side.sum():,})"
            _draw_side(panels, errors, of_side, edges, centres_s, colour, label)
    _finish_losses(panels[0])
    if has_errors:
        panels[1].axhline(0, color=FAINT, linewidth=0.9)
        tidy(panels[1], "time left in the mini-race (s)", "target - prediction (reward)")
        panels[1].set_title("error: line: mean; band: four of five transitions\nabove 0: too pessimistic", fontsize=10)
        panels[1].legend(fontsize=9, frameon=False)
    return figure


def draw_surprises(numbers: MindNumbers) -> Figure | None:
    """Draw the transitions that were predicted worst, one card for each."""
    surprises = numbers.surprises
    if surprises is None or len(surprises.time_s) == 0:
        return None
    n_cards = len(surprises.time_s)
    n_columns = min(3, n_cards)
    n_rows = math.ceil(n_cards / n_columns)
    width_in, height_in = n_columns * CARD_IN[0], HEAD_IN + n_rows * CARD_IN[1]
    figure = new_figure((width_in, height_in))
    figure.set_layout_engine("none")
    kinds = " and ".join(sorted(set(surprises.kind.tolist())))
    head(figure, numbers.about, f"Largest errors: what was predicted worst in the newest races ({kinds})")
    shown = np.concatenate([surprises.predicted, surprises.target, surprises.realised, [0.0]])
    limits = (float(np.nanmin(shown)), float(np.nanmax(shown)))
    for card in range(n_cards):
        row, column = divmod(card, n_columns)
        left_in, bottom_in = column * CARD_IN[0], height_in - HEAD_IN - (row + 1) * CARD_IN[1]

        def place(box_in: tuple[float, float, float, float], left: float = left_in, bottom: float = bottom_in) -> Axes:
            x, y, width, height = box_in
            return figure.add_axes(
                ((left + x) / width_in, (bottom + y) / height_in, width / width_in, height / height_in)
            )

        _draw_card(place, numbers, surprises, card, limits)
    return figure


def means_by_bin(at: Array, values: Array, edges: Array) -> Array:
    """(len(edges) - 1,) mean of the values (n,) whose places (n,) lie from one edge to the next; NaN where none is."""
    bins = np.digitize(at, edges) - 1
    inside = (bins >= 0) & (bins < len(edges) - 1)
    counts = np.bincount(bins[inside], minlength=len(edges) - 1)
    sums = np.bincount(bins[inside], weights=values[inside], minlength=len(edges) - 1)
    return np.divide(sums, counts, out=np.full(len(edges) - 1, np.nan), where=counts > 0)


def quantiles_by_bin(at: Array, values: Array, edges: Array, shares: tuple[float, ...]) -> Array:
    """(len(edges) - 1, len(shares)) quantiles of the same; NaN where none is."""
    bins = np.digitize(at, edges) - 1
    result = np.full((len(edges) - 1, len(shares)), np.nan)
    for index in range(len(edges) - 1):
        if (bins == index).any():
            result[index] = np.quantile(values[bins == index], shares)
    return result


def _draw_hexagons(figure: Figure, axes: Axes, compared: Comparison) -> None:
    predicted, realised = compared.predicted, compared.realised
    low = float(min(predicted.min(), realised.min()))
    high = float(max(predicted.max(), realised.max()))
    room = 0.04 * max(high - low, 1e-3)
    limits = (low - room, high + room)
    counts = axes.hexbin(
        predicted,
        realised,
        gridsize=HEXAGONS_ACROSS,
        extent=(*limits, *limits),
        mincnt=1,
        norm=LogNorm(),
        cmap="viridis",
    )
    axes.plot(limits, limits, color=TEST, linewidth=1.4, linestyle="--", label="as predicted")
    bar = figure.colorbar(counts, ax=axes, label="actions", shrink=0.8, pad=0.01)
    bar.ax.yaxis.set_major_formatter("{x:.0f}")
    tidy(axes, "predicted: Q of the action taken (reward)", "realised: what the mini-race brought (reward)")
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    axes.set_aspect("equal")
    error = predicted - realised
    spread = min(float(predicted.std()), float(realised.std()))
    correlation = f", correlation {np.corrcoef(predicted, realised)[0, 1]:.2f}" if spread > 1e-9 else ""
    root_mean_square = math.sqrt(float(np.square(error).mean()))
    axes.set_title(
        f"predicted - realised: mean {error.mean():+.3f}, root mean square {root_mean_square:.3f}{correlation}\n"
        "above the dashed line: better than predicted",
        fontsize=10,
    )
    axes.legend(fontsize=9, frameon=False, loc="upper left")


def _draw_error_along_track(axes: Axes, about: About, compared: Comparison) -> None:
    shown = compared.is_of_map & np.isfinite(compared.meters)
    meters, error = compared.meters[shown], (compared.predicted - compared.realised)[shown]
    edges = np.linspace(float(meters.min()), float(meters.max()) + 1e-6, SECTIONS_OF_TRACK + 1)
    centres_m = (edges[:-1] + edges[1:]) / 2
    low, middle, high = quantiles_by_bin(meters, error, edges, (0.1, 0.5, 0.9)).T
    axes.axhline(0, color=FAINT, linewidth=0.9)
    axes.fill_between(centres_m, low, high, color=TRAIN, alpha=0.25, linewidth=0, label="four of five actions")
    axes.plot(centres_m, middle, color=TRAIN, linewidth=1.8, label="median")
    tidy(axes, f"distance along {about.map_name} (m)", "predicted - realised (reward)")
    axes.set_title("where it errs; above 0: too optimistic", fontsize=10)
    axes.legend(fontsize=9, frameon=False)


def _draw_side(
    panels: list[Axes],
    errors: ErrorsByHorizon,
    of_side: Array,
    edges: Array,
    centres_s: Array,
    colour: str,
    label: str,
) -> None:
    """One side of the replay memory, in all panels."""
    left = errors.actions_left[of_side]
    loss = errors.loss[of_side]
    low, high = quantiles_by_bin(left, loss, edges, (0.25, 0.75)).T
    panels[0].fill_between(centres_s, low, high, color=colour, alpha=0.15, linewidth=0)
    panels[0].plot(centres_s, means_by_bin(left, loss, edges), "o-", color=colour, linewidth=1.8, label=label)
    if len(panels) > 1:
        error = errors.error[of_side]
        low, high = quantiles_by_bin(left, error, edges, (0.1, 0.9)).T
        panels[1].fill_between(centres_s, low, high, color=colour, alpha=0.15, linewidth=0)
        panels[1].plot(centres_s, means_by_bin(left, error, edges), "o-", color=colour, linewidth=1.8, label=label)


def _finish_losses(axes: Axes) -> None:
    tidy(axes, "time left in the mini-race (s)", "loss per transition")
    means = np.concatenate([np.zeros(0), *(np.asarray(line.get_ydata()) for line in axes.get_lines())])
    positive = means[np.isfinite(means) & (means > 0)]
    if len(positive) and positive.max() > LOG_FROM * positive.min():
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title("loss: line: mean; band: the middle half of transitions", fontsize=10)
    axes.legend(fontsize=9, frameon=False)


def _draw_card(
    place: Callable[[tuple[float, float, float, float]], Axes],
    numbers: MindNumbers,
    surprises: Surprises,
    card: int,
    limits: tuple[float, float],
) -> None:
    """One transition: where it began, what was done there, what was predicted and what came.

    Args:
        place: makes axes at (left, bottom, width, height) in the card, in inches.
        numbers: all of them.
        surprises: of these.
        card: which one.
        limits: of the bars.
    """
    if np.isfinite(surprises.position_m[card]).all():
        _draw_place(place((0.15, 0.45, MAP_IN, MAP_IN)), numbers, surprises, card)
    heading, words = place((0.15, 2.95, 4.4, 0.2)), place((2.5, 1.75, 2.1, 1.1))
    heading.axis("off")
    words.axis("off")
    where = "" if np.isnan(surprises.meters[card]) else f", {surprises.meters[card]:.0f} m"
    title = f"{card + 1}: {surprises.kind[card]}, {surprises.time_s[card]:.2f} s{where}"
    heading.text(0, 0, title, va="bottom", fontsize=10.5, fontweight="bold", color=TEXT)
    told = _words(numbers.about, surprises, card)
    words.text(0, 0.95, told, va="top", fontsize=9.5, color=TEXT, linespacing=1.45, parse_math=False)
    if surprises.frames.shape[1]:
        picture = place((1.35, 0.35, 1.0, 0.75))
        picture.imshow(surprises.frames[card], cmap="gray", vmin=0, vmax=255)
        picture.axis("off")
    _draw_bars(place((2.5, 0.55, 2.0, 1.15)), surprises, card, limits)


def _draw_place(axes: Axes, numbers: MindNumbers, surprises: Surprises, card: int) -> None:
    """The track around the car, which points where it goes."""
    x_m, _, z_m = surprises.position_m[card].tolist()
    driven_m = None if numbers.race is None else numbers.race.position_m
    road_pt = ROAD_WIDTH_M / (2 * AROUND_M) * MAP_IN * POINTS_PER_INCH
    draw_track(axes, numbers.about.line_m, driven_m, road_pt)
    ahead_x, ahead_z = surprises.direction[card].tolist()
    axes.annotate(
        "",
        xy=(x_m + 16 * ahead_x, z_m + 16 * ahead_z),
        xytext=(x_m, z_m),
        arrowprops={"arrowstyle": "-|>", "color": TEST, "linewidth": 2.4, "shrinkA": 0, "shrinkB": 0},
        zorder=5,
    )
    axes.plot(x_m, z_m, "o", color=TEST, markersize=8, zorder=6)
    axes.set_aspect("equal", adjustable="box")
    axes.set_xlim(x_m - AROUND_M, x_m + AROUND_M)
    axes.set_ylim(z_m + AROUND_M, z_m - AROUND_M)  # a map's z axis points down
    axes.set_title(f"{2 * AROUND_M:.0f} m across", fontsize=9, color=FAINT)


def _words(about: About, surprises: Surprises, card: int) -> str:
    n_steps = int(surprises.n_steps[card])
    speed = surprises.speed_km_h[card]
    lines = [] if np.isnan(speed) else [f"at {speed:.0f} km/h"]
    lines += [
        f"action: {surprises.action[card]}",
        f"reward of the first {n_steps * about.s_per_action:g} s: {surprises.reward[card]:.3f}",
    ]
    if np.isfinite(surprises.target[card]):
        lines.append(f"target - predicted: {surprises.error[card]:+.3f}")
    else:
        lines.append(f"error: {surprises.error[card]:.3f}")
    return "\n".join(lines)


def _draw_bars(axes: Axes, surprises: Surprises, card: int, limits: tuple[float, float]) -> None:
    """Predicted, target and realised return, as bars."""
    bars = (
        ("predicted", surprises.predicted[card], TRAIN),
        ("target", surprises.target[card], TEST),
        ("realised", surprises.realised[card], FAINT),
    )
    known = [(name, float(value), colour) for name, value, colour in bars if np.isfinite(value)]
    if not known:
        axes.axis("off")
        return
    rows = range(len(known))
    axes.barh(rows, [value for _, value, _ in known], color=[colour for *_, colour in known], height=0.42)
    axes.axvline(0, color=TEXT, linewidth=0.8)
    for row, (name, value, _) in zip(rows, known, strict=True):
        axes.text(limits[0], row - 0.28, f"{name} {value:.2f}", fontsize=8.5, color=TEXT, va="bottom")
    axes.set_yticks([])
    axes.set_ylim(len(known) - 0.5, -0.8)
    room = 0.05 * max(limits[1] - limits[0], 1e-3)
    axes.set_xlim(limits[0] - room, limits[1] + room)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("return (reward)", fontsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
