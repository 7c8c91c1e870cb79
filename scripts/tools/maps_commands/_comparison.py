"""Comparison between two races along one line.

Race X reaches distance s at the time t_X(s); t_B(s) - t_A(s) is B's delay. The picture also shows
speeds, pedals, steering and both lines from above.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from trackmania_rl.cli import writing
from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.input_picture import InputTimeline

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ._runs import DrivenRun, FloatArray

GRID_M: Final = 1.0
"""Distance between compared points."""
_SEARCH_FACTOR, _SEARCH_M = 1.5, 10.0
"""The nearest point of the line is searched within this factor of the car's motion plus this distance, both ways."""
_FIRST_SEARCH_M: Final = 200.0
_FAR_OFF_M: Final = 40.0
"""Median distance from the line beyond which a race is on another track."""
KM_H_PER_M_S: Final = 3.6
_COLOURS: Final = ("#1f77b4", "#d95f02")  # A, B
_AHEAD, _BEHIND = "#2a9d5c", "#c0392b"
_GUIDE: Final = "0.75"


class RunComparisonError(UserError):
    """Two races cannot be compared."""


class Section(NamedTuple):
    """Line part that ends at a checkpoint or the finish, with times for A and B."""

    name: str  # at the end: "CP 1", ..., "finish"
    end_m: float
    end_ms: tuple[int, int]
    section_ms: tuple[int, int]

    @property
    def lost_ms(self) -> int:
        """Time that B loses to A in the section; negative for a gain."""
        return self.section_ms[1] - self.section_ms[0]

    @property
    def behind_ms(self) -> int:
        """Time that B is behind A at the end."""
        return self.end_ms[1] - self.end_ms[0]


@dataclass(frozen=True)
class RunOnLine:
    """A race at D distances along a line."""

    label: str
    time_ms: FloatArray  # (D,) when it first was that far
    speed_m_s: FloatArray  # (D,)
    position_m: FloatArray  # (D, 3)
    controls: FloatArray | None  # (D, 3) gas, brake, steer; None if unknown


@dataclass(frozen=True)
class RunComparison:
    """Comparison between races B and A along a line."""

    distance_m: FloatArray  # (D,) every `GRID_M`, as far as both came
    a: RunOnLine
    b: RunOnLine
    sections: tuple[Section, ...]  # while both races have checkpoint times

    @property
    def behind_ms(self) -> FloatArray:
        """(D,) B's delay behind A; negative if ahead."""
        return self.b.time_ms - self.a.time_ms


def compare_runs(a: DrivenRun, b: DrivenRun, line_m: FloatArray) -> RunComparison:
    """Compare a map's races A and B along a line (N, 3) from start to finish.

    Raises:
        RunComparisonError: if a race does not follow the line, or stays at the start.
    """
    stations_m = [stations_along(line_m, run) for run in (a, b)]
    reach_m = min(float(of_run.max()) for of_run in stations_m)
    if reach_m < GRID_M:
        raise RunComparisonError(f"{a.label} and {b.label} have no way in common: one of them stays at the start")
    distance_m = np.arange(0.0, reach_m, GRID_M)
    return RunComparison(
        distance_m,
        a=_on_line(a, stations_m[0], distance_m),
        b=_on_line(b, stations_m[1], distance_m),
        sections=_sections(a, b, stations_m[0]),
    )


def stations_along(line_m: FloatArray, run: DrivenRun) -> FloatArray:
    """Return the distance along a line (N, 3) to the point nearest to each race sample, (S,).

    The search is limited to the previous point's neighbourhood, as a track may cross itself.

    Raises:
        RunComparisonError: if the race is far from the line most of the time.
    """
    segment_m = np.diff(line_m, axis=0)
    length_m = np.linalg.norm(segment_m, axis=1)
    begin_m = np.concatenate(([0.0], np.cumsum(length_m)))
    moved_m = np.linalg.norm(np.diff(run.position_m, axis=0), axis=1)
    station_m, away_m = np.empty(len(run.time_ms)), np.empty(len(run.time_ms))
    low_m, high_m = 0.0, _FIRST_SEARCH_M
    for index, position_m in enumerate(run.position_m):
        first = max(0, int(np.searchsorted(begin_m, low_m)) - 1)
        near = slice(min(first, len(segment_m) - 1), max(int(np.searchsorted(begin_m, high_m)), first + 1))
        share = np.einsum("nd,nd->n", position_m - line_m[:-1][near], segment_m[near])
        share = np.clip(share / np.maximum(length_m[near] ** 2, 1e-12), 0.0, 1.0)
        distances_m = np.linalg.norm(line_m[:-1][near] + share[:, None] * segment_m[near] - position_m, axis=1)
        nearest = int(np.argmin(distances_m))
        station_m[index] = begin_m[near][nearest] + share[nearest] * length_m[near][nearest]
        away_m[index] = distances_m[nearest]
        if index < len(moved_m):
            reach_m = _SEARCH_FACTOR * float(moved_m[index]) + _SEARCH_M
            low_m, high_m = station_m[index] - reach_m, station_m[index] + reach_m
    if np.median(away_m) > _FAR_OFF_M:
        raise RunComparisonError(
            f"{run.label} does not follow the line: it is {np.median(away_m):.0f} m away from it most of the time; "
            "compare races of one map, along that map's line"
        )
    return station_m


def _on_line(run: DrivenRun, station_m: FloatArray, distance_m: FloatArray) -> RunOnLine:
    furthest_m = np.maximum.accumulate(station_m)
    time_ms = np.interp(distance_m, furthest_m, run.time_ms)
    controls = None
    if run.events:
        controls = InputTimeline(run.events).controls_at(time_ms)
        assert controls.shape == (len(distance_m), 3)
    position_m = np.stack([np.interp(time_ms, run.time_ms, run.position_m[:, axis]) for axis in range(3)], axis=1)
    return RunOnLine(run.label, time_ms, np.interp(time_ms, run.time_ms, run.speed_m_s), position_m, controls)


def _sections(a: DrivenRun, b: DrivenRun, station_of_a_m: FloatArray) -> tuple[Section, ...]:
    sections: list[Section] = []
    ends_m = np.interp(a.checkpoint_times_ms, a.time_ms, np.maximum.accumulate(station_of_a_m)).tolist()
    for end_ms, end_m in zip(zip(a.checkpoint_times_ms, b.checkpoint_times_ms, strict=False), ends_m, strict=False):
        before_ms = sections[-1].end_ms if sections else (0, 0)
        is_finish = a.race_time_ms == end_ms[0] or b.race_time_ms == end_ms[1]
        name = "finish" if is_finish else f"CP {len(sections) + 1}"
        sections.append(Section(name, end_m, end_ms, (end_ms[0] - before_ms[0], end_ms[1] - before_ms[1])))
    return tuple(sections)


def save_comparison(comparison: RunComparison, title: str, path: Path) -> None:
    """Draw two races into a PNG.

    Raises:
        UserError: if the file can't be written.
    """
    figure = Figure(figsize=(18, 9), layout="constrained", dpi=100)
    FigureCanvasAgg(figure)
    columns = figure.add_gridspec(1, 2, width_ratios=(13, 6))
    rows = columns[0].subgridspec(4, 1, height_ratios=(3, 3, 1.3, 2))
    axes = [figure.add_subplot(rows[0])]
    axes += [figure.add_subplot(rows[row], sharex=axes[0]) for row in (1, 2, 3)]
    figure.suptitle(title, fontsize=13, parse_math=False)
    _draw_lines(figure.add_subplot(columns[1]), comparison)
    _draw_difference(axes[0], comparison)
    _draw_speeds(axes[1], comparison)
    _draw_pedals(axes[2], comparison)
    _draw_steering(axes[3], comparison)
    for axis in axes:
        axis.margins(x=0)
        axis.tick_params(labelbottom=axis is axes[-1])
        for section in comparison.sections:
            axis.axvline(section.end_m, color=_GUIDE, linewidth=0.9, linestyle="--", zorder=0)
    axes[3].set_xlabel("distance along the line (m)")
    figure.align_ylabels(axes)
    with writing(path), warnings.catch_warnings():  # the font may lack letters of players' names
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(path, format="png")


def _draw_difference(axis: Axes, comparison: RunComparison) -> None:
    distance_m, behind_s = comparison.distance_m, comparison.behind_ms / 1000
    axis.axhline(0.0, color="0.3", linewidth=0.8)
    for where, colour in ((behind_s >= 0, _BEHIND), (behind_s <= 0, _AHEAD)):
        axis.fill_between(distance_m, behind_s, where=where, color=colour, alpha=0.25, linewidth=0)
    axis.plot(distance_m, behind_s, color="0.15", linewidth=1.4)
    axis.set_ylabel("time difference (s)")
    axis.set_title("B is behind A (red) or ahead of it (green); B loses time where the line rises", fontsize=10)
    lowest, highest = min(float(behind_s.min()), 0.0), max(float(behind_s.max()), 0.0)
    room = 0.12 * max(highest - lowest, 0.02)
    axis.set_ylim(lowest - room, highest + 2 * room)
    for section in comparison.sections:
        side = "right" if section is comparison.sections[-1] else "center"
        text = f"{section.name} {section.behind_ms / 1000:+.2f} s"
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
    """Draw one strip per pedal and race, filled where it is pressed."""
    names = ("gas A", "gas B", "brake A", "brake B")
    for row in range(len(names)):
        run, colour = (comparison.a, comparison.b)[row % 2], _COLOURS[row % 2]
        if run.controls is None:
            axis.text(0.0, row, "  not known", va="center", fontsize=8, color="0.5")
            continue
        top = row - 0.4 + 0.8 * np.abs(run.controls[:, row // 2])
        axis.fill_between(comparison.distance_m, row - 0.4, top, color=colour, step="post", linewidth=0)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_ylabel("pedals")


def _draw_steering(axis: Axes, comparison: RunComparison) -> None:
    """Draw one strip per race: left above the middle line, right below."""
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
    """Draw both lines from above with section ends; x to the left, as in the game's maps."""
    for run, colour, width in zip((comparison.a, comparison.b), _COLOURS, (3.0, 1.2), strict=True):
        axis.plot(run.position_m[:, 0], run.position_m[:, 2], color=colour, linewidth=width)
    for section in comparison.sections:
        at = min(int(section.end_m / GRID_M), len(comparison.distance_m) - 1)
        x, _, z = comparison.a.position_m[at]
        axis.annotate(section.name, (x, z), xytext=(6, 6), textcoords="offset points", fontsize=9, color="0.3")
        axis.plot(x, z, marker="o", color="0.3", markersize=4)
    axis.set_aspect("equal", adjustable="datalim")
    axis.invert_xaxis()
    axis.set(xlabel="x (m)", ylabel="z (m)", title="from above")
    axis.grid(color="0.93")
