"""What the driver expects in chosen states: quantile functions, distributions, and values as a mini-race runs out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from trackmania_rl.telemetry.mind.numbers import About, Array, Expectations, MindNumbers
from trackmania_rl.telemetry.mind.style import (
    GRID,
    TEXT,
    action_legend,
    draw_small_map,
    head,
    new_figure,
    styles_of,
    tidy,
)

RIDGE_POINTS = 160
RIDGE_HEIGHT = 0.86
"""Of the distance between two ridges."""
NARROWEST_KERNEL = 1 / 120
"""Of the width of the picture, so that a distribution without spread can still be seen."""


def draw_quantile_functions(numbers: MindNumbers) -> Figure | None:
    """Draw returns against tau for each action of each state; nothing without quantiles."""
    seen = numbers.expectations
    if seen is None or len(seen.taus) < 2:
        return None
    return _draw_fans(
        numbers,
        seen,
        _Fans(
            f"Quantile functions: what {_ahead(numbers.about)} may bring, from the worst luck (0) to the best (1)",
            seen.taus,
            seen.returns,
            1.0,
            "tau (share of worse outcomes)",
            "return (reward)",
        ),
    )


def draw_return_distributions(numbers: MindNumbers) -> Figure | None:
    """Draw the density of the return for each action of each state; nothing without quantiles."""
    seen = numbers.expectations
    if seen is None or len(seen.taus) < 2:
        return None
    figure = new_figure((13.0, 1.9 + 0.42 * len(numbers.about.action_names)))
    head(figure, numbers.about, f"Distributions of the return of {_ahead(numbers.about)}, by action")
    states = range(len(seen.time_s))
    columns = np.atleast_1d(figure.subplots(1, len(states), sharey=True))
    for state, axes in zip(states, columns.tolist(), strict=True):
        _draw_ridges(axes, numbers.about, seen, state)
        _title(axes, numbers.about, seen, state)
    names = [style.name for style in styles_of(numbers.about)]
    columns[0].set_yticks(range(len(names)), names, fontsize=10)
    figure.supxlabel(
        "return (reward); line: the mean; yellow: the best action; numbers: means, less that of the best action",
        fontsize=10,
    )
    return figure


def draw_values_over_elapsed_time(numbers: MindNumbers) -> Figure | None:
    """Draw values against the elapsed time of the mini-race; nothing without mini-races."""
    seen, about = numbers.expectations, numbers.about
    if seen is None or len(seen.elapsed_actions) == 0:
        return None
    return _draw_fans(
        numbers,
        seen,
        _Fans(
            f"Value against the elapsed time of the mini-race of {_mini_race_s(about):g} s",
            seen.elapsed_actions * about.s_per_action,
            seen.values,
            _mini_race_s(about),
            "elapsed time of the mini-race (s)",
            "value Q (reward)",
        ),
    )


def density(samples: Array, points: Array) -> Array:
    """The density of samples (n,) at points (p,), by a Gaussian kernel of Silverman's width; its maximum is 1."""
    spread = min(float(samples.std()), float(np.subtract(*np.percentile(samples, [75, 25]))) / 1.34)
    narrowest = NARROWEST_KERNEL * float(np.ptp(points))
    width = max(0.9 * spread * len(samples) ** -0.2, narrowest, 1e-12)
    heights = np.exp(-0.5 * ((points[:, None] - samples) / width) ** 2).sum(axis=1)
    result: Array = heights / max(float(heights.max()), 1e-12)
    return result


def _draw_ridges(axes: Axes, about: About, seen: Expectations, state: int) -> None:
    """One density for each action, the first action's on top."""
    returns = seen.returns[state]  # (N, A)
    low, high = float(returns.min()), float(returns.max())
    room = 0.05 * max(high - low, 1e-3)
    points = np.linspace(low - room, high + room, RIDGE_POINTS)
    right = points[-1] + 0.22 * float(np.ptp(points))  # room for the numbers
    best = int(seen.best_actions[state])
    best_mean = float(returns[:, best].mean())
    axes.axhspan(best - RIDGE_HEIGHT, best + 0.1, color="#fff3bf", zorder=0, linewidth=0)
    for action, style in enumerate(styles_of(about)):
        top = action - RIDGE_HEIGHT * density(returns[:, action], points)
        axes.fill_between(points, action, top, color=style.colour, alpha=0.8, linewidth=0, zorder=2)
        mean = float(returns[:, action].mean())
        height = float(np.interp(mean, points, action - top))
        axes.plot([mean, mean], [action, action - max(height, 0.25)], color="white", linewidth=2.6, zorder=3)
        axes.plot([mean, mean], [action, action - max(height, 0.25)], color=TEXT, linewidth=0.8, zorder=4)
        axes.axhline(action, color=GRID, linewidth=0.8, zorder=1)
        if action != best:
            told = f"{mean - best_mean:+.3f}"
            axes.text(right, action - 0.06, told, ha="right", va="bottom", fontsize=8, color=TEXT, zorder=5)
    axes.set_ylim(returns.shape[1] - 0.8, -1.1)
    axes.set_xlim(points[0], right)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=9)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


@dataclass(frozen=True)
class _Fans:
    """A line for each action of each state.

    Attributes:
        title: what is seen.
        x: (X,) where the values are.
        values: (K, X, A).
        x_end: where the horizontal axis ends.
        x_label: below it.
        y_label: beside the values.
    """

    title: str
    x: Array
    values: Array
    x_end: float
    x_label: str
    y_label: str


def _draw_fans(numbers: MindNumbers, seen: Expectations, fans: _Fans) -> Figure:
    """Draw a column for each state: the values, and below how far each action lies from the best one."""
    about = numbers.about
    n_states = len(seen.time_s)
    has_map = bool(np.isfinite(seen.position_m).all())
    figure = new_figure((3.1 * n_states + 2.2 * has_map, 7.6))
    head(figure, about, f"{fans.title}; thick: the best action")
    grid = figure.add_gridspec(2, n_states + has_map, width_ratios=[1.0] * n_states + [0.8] * has_map)
    for state in range(n_states):
        of_state, best = fans.values[state], int(seen.best_actions[state])
        above, below = figure.add_subplot(grid[0, state]), figure.add_subplot(grid[1, state])
        _draw_lines(above, about, fans.x, of_state, best)
        _draw_lines(below, about, fans.x, of_state - of_state[:, [best]], best)
        is_first = state == 0
        tidy(above, "", fans.y_label if is_first else "")
        tidy(below, fans.x_label, "minus that of the best action (reward)" if is_first else "")
        for axes in (above, below):
            axes.set_xlim(0, fans.x_end)
            axes.yaxis.set_major_locator(MaxNLocator(6))
        _title(above, about, seen, state)
    if has_map:
        axes = figure.add_subplot(grid[:, n_states])
        draw_small_map(axes, about.line_m, None if numbers.race is None else numbers.race.position_m, seen.position_m)
    action_legend(figure, about)
    return figure


def _draw_lines(axes: Axes, about: About, x: Array, values: Array, best: int) -> None:
    """A line for each action, of values (X, A)."""
    for action, style in enumerate(styles_of(about)):
        is_best = action == best
        axes.plot(
            x,
            values[:, action],
            color=style.colour,
            linestyle=style.dash,
            linewidth=3.2 if is_best else 1.3,
            alpha=1.0 if is_best else 0.8,
            zorder=3 if is_best else 2,
        )


def _title(axes: Axes, about: About, seen: Expectations, state: int) -> None:
    """Say which state it is, and what the driver would do there."""
    best = int(seen.best_actions[state])
    value = float(seen.returns[state, :, best].mean())
    where = "" if np.isnan(seen.meters[state]) else f", {seen.meters[state]:.0f} m"
    speed = "" if np.isnan(seen.speed_km_h[state]) else f", {seen.speed_km_h[state]:.0f} km/h"
    axes.set_title(
        f"{state + 1}: {seen.time_s[state]:.1f} s{where}{speed}\n{about.action_names[best]}: Q = {value:.3f}",
        fontsize=10,
        color=TEXT,
        parse_math=False,
    )


def _mini_race_s(about: About) -> float:
    return about.mini_race_actions * about.s_per_action


def _ahead(about: About) -> str:
    """What a return adds up."""
    return f"the next {_mini_race_s(about):g} s" if about.mini_race_actions else "the rest of the race"
