"""Plots of a run's values, quantiles, errors and expectations, from the data in `training.diagnostics`.

Sections without data are absent. Unknown values are NaN.
Lengths: A actions, N taus, K states, E elapsed times, T actions in a race, B transitions.

about: map_name, track (file, or a generated track's name), frames_total, training_s, s_per_action
    mini_race_actions (0 without mini-races), action_names (A,), line_m (M, 3) reference line, maybe empty
    driven_m (T, 3) positions in the newest evaluation race, maybe empty
    action_controls (A, 3) gas, brake (0 or 1) and steer (-1 left to 1); (0, 3) where actions are no keys
expectations: in K states of that race: time_s, meters, speed_km_h (K,), position_m (K, 3)
    taus (N,) and returns (K, N, A) with the whole mini-race ahead; without quantiles (0,) and means (K, 1, A)
    elapsed_actions (E,) in the mini-race and values (K, E, A), mean returns; E = 0 without mini-races
comparison: B actions in recent evaluation races: race (B,) number, meters, predicted, realised (B,)
errors: B transitions at all horizons: kind (B,) "explored" or "evaluated", actions_left, loss, error, target (B,)
largest: the B largest errors, largest first: kind, time_s, meters, speed_km_h, action (text) (B,), position_m (B, 3)
    n_steps (B,), reward (B,), error (B,) target - prediction or loss, predicted, target, realised (B,)
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from trackmania_rl.errors import UserError
from trackmania_rl.files import replace_patiently
from trackmania_rl.race.race import RACE_KINDS

if TYPE_CHECKING:  # matplotlib takes half a second to import, and not every run draws
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
Section = SimpleNamespace
Data = dict[str, Section]

SETS_KEPT: Final = 10
PNG_COLOURS: Final = 256
PEDALS: Final = (("gas", (1, 0)), ("no pedal", (0, 0)), ("brake", (0, 1)), ("gas and brake", (1, 1)))
_HORIZONS: Final = 12

DOTS_PER_INCH = 100
BAND_M: Final = 10.0
"""Grey band's width to each side of the reference line."""
NEAR_SHARE: Final = 0.05
"""Places nearer than this share of the race's extent have their numbers beside each other, `LABEL_POINTS` apart."""
LABEL_POINTS: Final = 20.0
TEXT, FAINT, GRID = "#222222", "#777777", "#e4e4e4"
STYLE: Final[dict[Any, Any]] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.titlesize": 13,
    "font.size": 9,
    "grid.color": GRID,
    "legend.frameon": False,
    "text.parse_math": False,
}
TRAIN, TEST = "#0072b2", "#d55e00"  # Okabe and Ito's palette: readable with red-green blindness
_STEERING: Final = {-1: "#0072b2", 0: "#333333", 1: "#d55e00"}
_DASHES: Final[tuple[Any, ...]] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))  # for PEDALS
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#333333", "#e69f00", "#56b4e9")


def key_action_name(gas: float, brake: float, steer: float) -> str:
    """Name an action from keys: "gas", "brake left", "left"..."""
    pedals = next(name for name, pressed in PEDALS if pressed == (int(gas > 0), int(brake > 0)))
    if steer == 0:
        return pedals
    side = "left" if steer < 0 else "right"
    return side if pedals == "no pedal" else f"{pedals} {side}"


def speeds_m_s(position_m: Array, s_per_action: float) -> Array:
    """Return (T,) speeds from positions (T, 3) at a race's decisions."""
    if len(position_m) < 2:
        return np.zeros(len(position_m))
    return np.linalg.norm(np.gradient(position_m.astype(np.float64), s_per_action, axis=0), axis=1)


class Picture(NamedTuple):
    """Plot in a file, with its pixels (H, W, 3)."""

    kind: str
    file: Path
    pixels: npt.NDArray[np.uint8]


def draw_diagnostics(data: Data, folder: Path) -> Iterator[Picture]:
    """Draw all kinds with data as {frames}_{map}_{kind}.png, yield each, and remove all but the newest sets.

    Raises:
        UserError: if a file cannot be written.
    """
    about = data["about"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, draw in KINDS.items():
            if (figure := draw(data)) is not None:
                file = folder / f"{about.frames_total:012d}_{about.map_name}_{kind}.png"
                yield Picture(kind, file, write_picture(file, figure))
        listed = list_pictures(folder)
        sets = dict.fromkeys([(about.frames_total, about.map_name), *((e["frames"], e["map"]) for e in listed)])
        for entry in listed:
            if (entry["frames"], entry["map"]) not in list(sets)[:SETS_KEPT]:
                (folder / entry["file"]).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"diagnostics {folder}: cannot be written: {error.strerror}") from error


def list_pictures(folder: Path) -> list[dict[str, Any]]:
    """List the pictures in a folder, newest set first."""
    order = list(KINDS)
    listed = []
    for file in folder.glob("*.png"):
        match = re.fullmatch(rf"(\d{{12}})_(.+)_({'|'.join(order)})\.png", file.name)
        if match is not None and file.is_file() and not file.is_symlink():
            frames, map_name, kind = match.groups()
            about = {"map": map_name, "frames": int(frames), "title": kind.replace("_", " ").capitalize()}
            listed.append({"file": file.name, "kind": kind, "caption": inspect.getdoc(KINDS[kind])} | about)
    return sorted(listed, key=lambda entry: (-entry["frames"], entry["map"], order.index(entry["kind"])))


def write_picture(file: Path, figure: Figure) -> npt.NDArray[np.uint8]:
    """Write a PNG with a palette, a third as large as without; return the pixels (H, W, 3)."""
    canvas: Any = figure.canvas
    canvas.draw()
    pixels = np.array(canvas.buffer_rgba())[:, :, :3]
    part = file.with_name(f".{file.name}.part")
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.quantize(PNG_COLOURS, dither=Image.Dither.NONE).save(part, format="PNG", optimize=True)
    replace_patiently(part, file)
    return pixels


def draw_quantile_functions(data: Data) -> Figure | None:
    """Return of each action in four states of the newest evaluation race, from worst luck (tau = 0) to best (1).

    Steep: uncertain; flat: sure. The driver takes the action with the highest mean.
    """
    seen = data.get("expectations")
    if seen is None or len(seen.taus) < 2:
        return None
    title = f"Quantile functions of the return of {_ahead(data['about'])}"
    return _draw_fans(data, title, seen.taus, seen.returns, "tau (share of worse outcomes)", "return (reward)")


def draw_return_distributions(data: Data) -> Figure | None:
    """Densities of the same returns, one row for each action.

    Actions whose hills are apart matter in that state. Where all hills overlap, the choice hardly matters.
    """
    seen, about = data.get("expectations"), data["about"]
    if seen is None or len(seen.taus) < 2:
        return None
    figure = new_figure((13.0, 1.9 + 0.42 * len(about.action_names)))
    _head(figure, about, f"Distributions of the return of {_ahead(about)}; filled strongly: the best action")
    panels = np.atleast_1d(figure.subplots(1, len(seen.time_s), sharey=True))
    for state, axes in enumerate(panels.tolist()):
        returns = seen.returns[state]  # (N, A)
        means = returns.mean(axis=0)
        best = int(means.argmax())
        rows = np.arange(returns.shape[1])
        hills = axes.violinplot(returns, -rows, orientation="horizontal", side="high", widths=1.7, showextrema=False)
        for action, (hill, (colour, _)) in enumerate(zip(hills["bodies"], _styles(about), strict=True)):
            hill.set(facecolor=colour, alpha=0.9 if action == best else 0.45, zorder=action + 2)
            right = "" if action == best else f"{means[action] - means[best]:+.3f}"
            axes.annotate(right, (1, -action), xycoords=("axes fraction", "data"), fontsize=8, ha="right", va="bottom")
        axes.plot(means, -rows, "|", color=TEXT, markersize=9, zorder=99)
        axes.set_xlim(right=returns.max() + 0.25 * np.ptp(returns))  # room for the numbers
        axes.set_title(_state_title(about, seen, state))
        axes.locator_params("x", nbins=4)
    panels[0].set_yticks(-np.arange(len(about.action_names)), about.action_names.tolist())
    figure.supxlabel("return (reward); mark: the mean; numbers: means, less that of the best action", fontsize=10)
    return figure


def draw_values_over_elapsed_time(data: Data) -> Figure | None:
    """Value of each action as the mini-race runs out.

    All end near 0, as nothing is left to earn. The fan between the actions is widest where most is at stake.
    """
    seen, about = data.get("expectations"), data["about"]
    if seen is None or len(seen.elapsed_actions) == 0:
        return None
    title = f"Value against the elapsed time of the mini-race of {about.mini_race_actions * about.s_per_action:g} s"
    elapsed_s = seen.elapsed_actions * about.s_per_action
    return _draw_fans(data, title, elapsed_s, seen.values, "elapsed time of the mini-race (s)", "value Q (reward)")


def _draw_fans(data: Data, title: str, x: Array, values: Array, x_label: str, y_label: str) -> Figure:
    """Draw values (K, X, A) over x (X,), a column for each state, and their difference to the best action."""
    about, seen = data["about"], data.get("expectations")
    assert seen is not None
    n_states, has_map = len(seen.time_s), bool(np.isfinite(seen.position_m).all())
    figure = new_figure((3.1 * n_states + 2.2 * has_map, 7.6))
    _head(figure, about, f"{title}; thick: the best action")
    grid = figure.add_gridspec(2, n_states + has_map, width_ratios=[1.0] * n_states + [0.8] * has_map)
    for state in range(n_states):
        best = int(seen.returns[state].mean(axis=0).argmax())
        differences = values[state] - values[state][:, [best]]
        for row, shown in enumerate((values[state], differences)):
            axes = figure.add_subplot(grid[row, state])
            for action, (colour, dash) in enumerate(_styles(about)):
                width = 3.2 if action == best else 1.3
                axes.plot(x, shown[:, action], color=colour, linestyle=dash, linewidth=width, zorder=2 + width)
            labels = (y_label, "minus that of the best action (reward)")
            axes.set(xlim=(0, x[-1]), xlabel=x_label if row else "", ylabel="" if state else labels[row])
            axes.set_title("" if row else _state_title(about, seen, state))
    if has_map:
        _draw_places(figure.add_subplot(grid[:, n_states]), data, seen.position_m)
    names = about.action_names.tolist()
    lines, n_columns = figure.axes[0].get_lines(), min(len(names), 6)
    figure.legend(lines, names, loc="outside lower center", ncols=n_columns)
    return figure


def draw_predicted_and_realised(data: Data) -> Figure | None:
    """Q of the action taken against the rewards of its mini-race, in recent evaluation races, and the error by place.

    On the dashed line the prediction came true.
    """
    compared, about = data.get("comparison"), data["about"]
    if compared is None or len(compared.predicted) < 2:
        return None
    predicted, realised = compared.predicted, compared.realised
    error = predicted - realised
    n_races, has_meters = len(np.unique(compared.race)), bool(np.isfinite(compared.meters).any())
    figure = new_figure((13.0, 6.4))
    _head(figure, about, f"Predicted and realised value of every action of {n_races} evaluation races")
    panels = np.atleast_1d(figure.subplots(1, 1 + has_meters)).tolist()
    low, high = float(min(predicted.min(), realised.min())), float(max(predicted.max(), realised.max()))
    limits = low - 0.04 * max(high - low, 1e-3), high + 0.04 * max(high - low, 1e-3)
    extent = (*limits, *limits)
    counts = panels[0].hexbin(predicted, realised, gridsize=42, extent=extent, mincnt=1, norm="log", cmap="viridis")
    bar = figure.colorbar(counts, ax=panels[0], label="actions", shrink=0.8, pad=0.01)
    bar.ax.yaxis.set_major_formatter("{x:.0f}")
    panels[0].plot(limits, limits, color=TEST, linewidth=1.4, linestyle="--", label="as predicted")
    panels[0].legend(loc="upper left")
    root_mean_square = math.sqrt(float(np.square(error).mean()))
    panels[0].set(
        xlim=limits,
        ylim=limits,
        aspect="equal",
        xlabel="predicted: Q of the action taken (reward)",
        ylabel="realised: rewards of the mini-race",
        title=f"predicted - realised: mean {error.mean():+.3f}, root mean square {root_mean_square:.3f}\n"
        "above the dashed line: better than predicted",
    )
    if has_meters:
        at_m = compared.meters
        edges = np.linspace(float(np.nanmin(at_m)), float(np.nanmax(at_m)) + 1e-6, 51)
        centres = (edges[:-1] + edges[1:]) / 2
        _draw_binned(panels[1], at_m, error, edges, centres, TRAIN, "mean", "four of five actions")
        panels[1].axhline(0, color=FAINT, linewidth=0.9)
        panels[1].legend()
        panels[1].set(xlabel=f"distance along {about.map_name} (m)", ylabel="predicted - realised (reward)")
        panels[1].set_title("error along the track; above 0: too optimistic")
    return figure


def draw_loss_by_horizon(data: Data) -> Figure | None:
    """Loss and error of transitions of the newest races against the time left in the mini-race.

    A mean error away from 0: values are biased at that horizon.
    """
    errors, about = data.get("errors"), data["about"]
    if errors is None or about.mini_race_actions == 0 or len(errors.loss) < _HORIZONS:
        return None
    shown = [(errors.loss, "loss per transition")]
    if np.isfinite(errors.target).any():
        shown += [(errors.error, "target - prediction (reward)")]
    figure = new_figure((6.5 * len(shown), 6.0))
    _head(figure, about, "Loss by horizon: transitions of the newest races, by the time left in their mini-race")
    edges = np.linspace(0.5, about.mini_race_actions + 0.5, _HORIZONS + 1)
    left_s = (edges[:-1] + edges[1:]) / 2 * about.s_per_action
    panels = np.atleast_1d(figure.subplots(1, len(shown))).tolist()
    for axes, (values, label) in zip(panels, shown, strict=True):
        for kind, colour in (("explored", TRAIN), ("evaluated", TEST)):
            of_kind = errors.kind == kind
            if of_kind.any():
                label_of_kind = f"{RACE_KINDS[kind]} ({of_kind.sum():,})"
                _draw_binned(axes, errors.actions_left[of_kind], values[of_kind], edges, left_s, colour, label_of_kind)
        axes.legend()
        axes.set(xlabel="time left in the mini-race (s)", ylabel=label)
        axes.set_title("line: mean; band: four of five transitions")
    panels[0].set_ylim(bottom=0)
    panels[-1].axhline(0, color=FAINT, linewidth=0.9)
    return figure


def draw_largest_errors(data: Data) -> Figure | None:
    """Transitions of the newest exploration and evaluation race with the largest errors, and their places on the track.

    Target: what learning aims at. Realised: what the mini-race that began there brought.
    """
    largest, about = data.get("largest"), data["about"]
    if largest is None or len(largest.time_s) == 0:
        return None
    n_shown = len(largest.time_s)
    has_map = bool(np.isfinite(largest.position_m).any())
    figure = new_figure((8.0 + 4.5 * has_map, 1.6 + 0.95 * n_shown))
    _head(figure, about, "Largest errors of the newest races")
    panels = figure.subplots(1, 1 + has_map, width_ratios=[1.8, 1.0][: 1 + has_map], squeeze=False)[0].tolist()
    rows = np.arange(n_shown)
    for offset, name, colour in ((-0.26, "predicted", TRAIN), (0.0, "target", TEST), (0.26, "realised", FAINT)):
        bars = panels[0].barh(rows + offset, getattr(largest, name), 0.24, color=colour, label=name)
        panels[0].bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    panels[0].set_yticks(rows, [_description(about, largest, row) for row in range(n_shown)])
    panels[0].axvline(0, color=TEXT, linewidth=0.8)
    panels[0].margins(x=0.12)
    panels[0].invert_yaxis()
    panels[0].legend()
    panels[0].set_xlabel("return (reward)")
    if has_map:
        _draw_places(panels[1], data, largest.position_m)
    return figure


def _description(about: Section, largest: Section, row: int) -> str:
    meters, speed, length_s = largest.meters[row], largest.speed_km_h[row], largest.n_steps[row] * about.s_per_action
    where = "" if np.isnan(meters) else f", {meters:.0f} m"
    how = "" if np.isnan(speed) else f" at {speed:.0f} km/h"
    return (
        f"{row + 1}: {RACE_KINDS[largest.kind[row]]}, {largest.time_s[row]:.2f} s{where}\n{largest.action[row]}{how}\n"
        f"reward of {length_s:g} s: {largest.reward[row]:.3f}; error {largest.error[row]:+.3f}"
    )


def binned(at: Array, values: Array, edges: Array) -> Array:
    """Return (E - 1, 3): mean, first and last decile of values (n,), binned by places (n,) between edges (E,)."""
    bins = np.digitize(at, edges) - 1
    result = np.full((len(edges) - 1, 3), np.nan)
    for index in np.unique(bins[(bins >= 0) & (bins < len(result))]):
        inside = values[bins == index]
        result[index] = inside.mean(), *np.quantile(inside, (0.1, 0.9))
    return result


def _draw_binned(
    axes: Axes, at: Array, values: Array, edges: Array, centres: Array, colour: str, label: str, band: str | None = None
) -> None:
    mean, low, high = binned(at, values, edges).T
    axes.fill_between(centres, low, high, color=colour, alpha=0.18, linewidth=0, label=band)
    axes.plot(centres, mean, ".-", color=colour, linewidth=1.8, label=label)


def draw_racing_line(data: Data) -> Figure | None:
    """Newest evaluation race from above, coloured by speed. Grey: 10 m to each side of the reference line."""
    from matplotlib.collections import LineCollection

    about = data["about"]
    if len(about.driven_m) < 2:
        return None
    ground_m = about.driven_m[:, [0, 2]]
    share_x, share_z = np.ptp(ground_m, axis=0) / max(1.0, np.ptp(ground_m, axis=0).max())
    figure = new_figure((max(6.0, 3.0 + 7.0 * share_x), max(5.0, 2.0 + 7.0 * share_z)))
    _head(figure, about, "Newest evaluation race")
    axes = figure.add_subplot()
    _draw_road(axes, about)
    speeds_km_h = 3.6 * speeds_m_s(about.driven_m, about.s_per_action)
    pieces = np.stack((ground_m[:-1], ground_m[1:]), axis=1)
    driven = LineCollection(list(pieces), array=speeds_km_h[:-1], cmap="turbo", linewidth=2.5, zorder=3)
    figure.colorbar(axes.add_collection(driven), ax=axes, label="speed (km/h)", shrink=0.6)
    for place, label, down in ((0, "start", 8), (-1, "end", -16)):
        axes.annotate(label, ground_m[place], xytext=(8, down), textcoords="offset points", fontsize=10, color=TEXT)
        axes.plot(*ground_m[place], "o", markersize=7, color=TEXT, zorder=4)
    axes.set(xlabel="x (m)", ylabel="z (m)")
    return figure


def new_figure(size_in: tuple[float, float]) -> Figure:
    """Return an empty figure, and set this module's plot style."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams.update(STYLE)
    figure = Figure(figsize=size_in, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _head(figure: Figure, about: Section, title: str) -> None:
    when = f"{about.map_name}, {about.frames_total:,} frames, {about.training_s / 60:.1f} min of training"
    figure.suptitle(f"{title}\n{when}")


def _ahead(about: Section) -> str:
    length_s = about.mini_race_actions * about.s_per_action
    return f"the next {length_s:g} s" if length_s else "the rest of the race"


def _state_title(about: Section, seen: Section, state: int) -> str:
    means = seen.returns[state].mean(axis=0)
    where = "" if np.isnan(seen.meters[state]) else f", {seen.meters[state]:.0f} m"
    speed = "" if np.isnan(seen.speed_km_h[state]) else f", {seen.speed_km_h[state]:.0f} km/h"
    best = f"{about.action_names[means.argmax()]}: Q = {means.max():.3f}"
    return f"{state + 1}: {seen.time_s[state]:.1f} s{where}{speed}\n{best}"


def _styles(about: Section) -> list[tuple[str, Any]]:
    if len(about.action_controls) == 0:
        n_colours = len(_COLOURS)
        return [(_COLOURS[i % n_colours], _DASHES[i // n_colours % 4]) for i in range(len(about.action_names))]
    dashes = {pressed: dash for (_, pressed), dash in zip(PEDALS, _DASHES, strict=True)}
    return [
        (_STEERING[int(np.sign(steer))], dashes[int(gas > 0), int(brake > 0)])
        for gas, brake, steer in about.action_controls.tolist()
    ]


def _draw_road(axes: Axes, about: Section) -> None:
    """Draw road and race from above, z downwards."""
    if len(about.line_m) > 1:
        axes.fill(*band_of(about.line_m).T, color="#d8d8d8", linewidth=0, zorder=1)
    axes.plot(*about.driven_m.T[[0, 2]], color=FAINT, linewidth=1.0, zorder=2)
    axes.set_aspect("equal", adjustable="datalim")
    axes.invert_yaxis()
    axes.margins(0.08)


def band_of(line_m: Array) -> Array:
    """Return the outline (2 M, 2), x and z, of a band that extends `BAND_M` to each side of a line (M, 3)."""
    ground_m = line_m[:, [0, 2]].astype(np.float64)
    along = np.gradient(ground_m, axis=0)
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    aside_m = BAND_M * np.stack((-along[:, 1], along[:, 0]), axis=1)
    return np.concatenate((ground_m + aside_m, (ground_m - aside_m)[::-1]))


def _draw_places(axes: Axes, data: Data, position_m: Array) -> None:
    """Draw road and race, and number places (n, 3)."""
    _draw_road(axes, data["about"])
    places_m = position_m[:, [0, 2]]
    near_m = NEAR_SHARE * float(np.ptp(data["about"].driven_m[:, [0, 2]], axis=0).max(initial=1.0))
    for index, place_m in enumerate(places_m):
        n_before = int((np.linalg.norm(places_m[:index] - place_m, axis=1) < near_m).sum())
        axes.annotate(
            str(index + 1),
            place_m,
            xytext=(LABEL_POINTS * n_before, 0),
            textcoords="offset points",
            color="white",
            fontsize=9,
            ha="center",
            va="center",
            zorder=6,
            bbox={"boxstyle": "circle", "facecolor": TEXT, "edgecolor": "white"},
            arrowprops={"arrowstyle": "-", "color": TEXT} if n_before else None,
        )
    axes.set_axis_off()
    axes.set_title("where: from above", color=FAINT)


KINDS: dict[str, Callable[[Data], Figure | None]] = {
    "quantile_functions": draw_quantile_functions,
    "return_distributions": draw_return_distributions,
    "values_over_elapsed_time": draw_values_over_elapsed_time,
    "predicted_and_realised": draw_predicted_and_realised,
    "loss_by_horizon": draw_loss_by_horizon,
    "largest_errors": draw_largest_errors,
    "racing_line": draw_racing_line,
}
"""Functions by the name in the file. The page shows their docstrings as captions."""
