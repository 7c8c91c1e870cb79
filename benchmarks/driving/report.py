"""What the benchmark measured: a table for pages (markdown, reStructuredText), all figures as JSON, and a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.driving.comparison import Comparison, Difference, RunKey, compare
from benchmarks.driving.score import (
    Axis,
    RunFigures,
    Spread,
    Summary,
    Yardstick,
    greedy_races,
    run_figures,
    scores_at,
    summarize,
)
from trackmania_rl.telemetry.learning_summary import Race

TABLE_MINUTES = (1, 2, 3, 5, 10, 20, 30, 60, 120, 180, 240, 360, 480, 720, 1440)
"""Minutes that the table shows, as far as they were driven, beside the last one; the JSON file holds all of them."""
CURVE_POINTS = 300
SCORE_TICKS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
SCORE_AXIS_POWER = 3.0
"""The picture's score axis is drawn as score^power: what matters lies near 1."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933", "#882255", "#44aa99")
"""Told apart by colour-blind readers as well: M. Okabe, K. Ito, Color Universal Design, 2008; P. Tol's for the rest."""


@dataclass(frozen=True)
class MeasuredRun:
    """A complete run.

    Attributes:
        note: its note, see `runs`.
        races: lines of its `races.jsonl`, as far as they are judged.
        figures: what they came to.
        final: what `scripts/evaluate.py` found of its checkpoint, if it was asked.
        blind: the same on generated tracks, by `blind-{difficulty}-{seeds}`.
    """

    note: dict[str, Any]
    races: list[Race]
    figures: RunFigures
    final: dict[str, Any] | None
    blind: dict[str, dict[str, Any]]

    @classmethod
    def judge(
        cls,
        note: dict[str, Any],
        races: Sequence[Race],
        yardstick: Yardstick,
        minutes: int,
        final: dict[str, Any] | None,
        blind: dict[str, dict[str, Any]],
    ) -> MeasuredRun:
        """Look at a run's first minutes."""
        seen = [race for race in races if race["wall_s"] <= 60 * minutes]
        return cls(note, seen, run_figures(seen, note["track"], yardstick, minutes), final, blind)


@dataclass(frozen=True)
class Group:
    """The runs of one variant on one track."""

    variant: str
    track: str
    runs: list[MeasuredRun]
    summary: Summary


def group_runs(runs: Sequence[MeasuredRun]) -> list[Group]:
    """Runs that differ in their seed alone, together: by track, then by variant, each in the order of its first run."""
    tracks = list(dict.fromkeys(run.note["track"] for run in runs))
    variants = list(dict.fromkeys(run.note["variant"] for run in runs))
    groups = []
    for track in tracks:
        for variant in variants:
            own = [run for run in runs if (run.note["track"], run.note["variant"]) == (track, variant)]
            if own:
                groups.append(Group(variant, track, own, summarize([run.figures for run in own])))
    return groups


def table_of(groups: Sequence[Group]) -> list[list[str]]:
    """The table as texts, its headings first: a line for each group, and with several tracks one for each variant."""
    longest = max(len(group.summary.score_by_minute) for group in groups)
    minutes = [minute for minute in TABLE_MINUTES if minute < longest] + [longest]
    has_final = any(run.final for group in groups for run in group.runs)
    head = ["track", "variant", "seeds", "first finish", "9 of 10 finish", "beats scripted"]
    head += [f"{minute} min" for minute in minutes] + ["mean", "best race"]
    head += ["final races"] * has_final
    blind = sorted({name for group in groups for run in group.runs for name in run.blind})
    head += blind
    rows = [head]
    for group in groups:
        summary = group.summary
        scores = summary.score_by_minute
        row = [group.track, group.variant, str(summary.n_seeds)]
        row += [
            _milestone(summary.first_finish_s.median, summary.first_finish_frames.median),
            _milestone(summary.regular_finish_s.median, summary.regular_finish_frames.median),
            _milestone(summary.beats_scripted_s.median, summary.beats_scripted_frames.median),
        ]
        row += [_spread(scores[minute - 1]) if minute <= len(scores) else "" for minute in minutes]
        row += [_spread(summary.mean_score), _seconds(summary.best_ms.lowest / 1000, 2)]
        row += [_final(group.runs)] * has_final + [_blind(group.runs, name) for name in blind]
        rows.append(row)
    return rows + _rows_of_all_tracks(groups, minutes, len(head))


def compare_variants(groups: Sequence[Group]) -> list[Comparison]:
    """Each variant against the first, over all tracks; empty where there is but one."""
    runs: dict[str, dict[RunKey, RunFigures]] = {}
    for group in groups:
        for run in group.runs:
            runs.setdefault(group.variant, {})[group.track, run.note["seed"]] = run.figures
    return compare(runs) if len(runs) > 1 else []


def comparison_table(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """The table of at least one comparison as texts, its headings first."""
    first = comparisons[0].variant
    rows = [["variant", "runs", "frames", "last minute", f"less {first}", "mean", f"less {first}"]]
    for one in comparisons:
        last_minute, mean = f"{one.last_minute_score:.3f}", f"{one.mean_score:.3f}"
        row = [one.variant, str(one.n_pairs), f"{one.frames:,.0f}"]
        row += [last_minute, _difference(one.last_minute_difference), mean, _difference(one.mean_difference)]
        rows.append(row)
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines) + "\n"


def restructured(rows: Sequence[Sequence[str]]) -> str:
    """A table in reStructuredText, as the pages in docs/ have it."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows:
        first, *others = row
        lines += [f"   * - {first}", *(f"     - {text}".rstrip() for text in others)]
    return "\n".join(lines) + "\n"


def write_report(
    folder: Path, groups: Sequence[Group], yardsticks: dict[str, Yardstick], made: dict[str, Any]
) -> list[Path]:
    """Write `table.md`, `table.rst`, `results.json` and `curves.png`.

    Args:
        folder: exists.
        groups: at least one.
        yardsticks: of their tracks.
        made: how and where the report was made, for the JSON file.

    Returns:
        The files.
    """
    tables = [table_of(groups)]
    comparisons = compare_variants(groups)
    if comparisons:
        tables.append(comparison_table(comparisons))
    content = {
        "made": made,
        "yardsticks": {name: yardstick.model_dump() for name, yardstick in yardsticks.items()},
        "groups": [
            {"track": group.track, "variant": group.variant, "summary": asdict(group.summary)} for group in groups
        ],
        "comparisons": [asdict(one) for one in comparisons],
        "runs": [
            run.note | {"figures": asdict(run.figures), "final": run.final, "blind": run.blind}
            for group in groups
            for run in group.runs
        ],
    }
    texts = {
        "table.md": "\n".join(map(markdown, tables)),
        "table.rst": "\n".join(map(restructured, tables)),
        "results.json": json.dumps(_finite(content), indent=1) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    draw_curves(folder / "curves.png", groups, yardsticks)
    return [folder / name for name in (*texts, "curves.png")]


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
                f"{track} ({yardstick.length_m:,.0f} m, planner {yardstick.planner_ms / 1000:.2f} s)", fontsize=11
            )
        panels[row][0].set_ylabel("score: planner's time / race time\n(median of the last 10 greedy races)")
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
    panel.axhline(1.0, color="0.3", linewidth=1, label="planner")
    tuned = yardstick.planner_ms / yardstick.scripted_tuned_ms
    panel.axhline(tuned, color="0.3", linewidth=1, linestyle="--", label="tuned scripted driver")
    if yardstick.scripted_careful_ms:
        careful = yardstick.planner_ms / yardstick.scripted_careful_ms
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
            scores_at(greedy_races(run.races, group.track), yardstick.planner_ms, axis, moments.tolist())
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


def _rows_of_all_tracks(groups: Sequence[Group], minutes: Sequence[int], width: int) -> list[list[str]]:
    """For each variant that was run on all of several tracks: the means over the tracks of the seeds' medians."""
    tracks = {group.track for group in groups}
    rows = []
    for variant in dict.fromkeys(group.variant for group in groups):
        summaries = [group.summary for group in groups if group.variant == variant]
        if len(tracks) == 1 or len(summaries) < len(tracks):
            continue
        row = ["mean of tracks", variant, str(min(summary.n_seeds for summary in summaries))]
        for name in ("first_finish", "regular_finish", "beats_scripted"):
            row.append(
                _milestone(*(_mean([getattr(one, f"{name}_{unit}") for one in summaries]) for unit in ("s", "frames")))
            )
        for minute in minutes:
            reached = [one.score_by_minute[minute - 1] for one in summaries if minute <= len(one.score_by_minute)]
            row.append(f"{_mean(reached):.3f}" if len(reached) == len(tracks) else "")
        row.append(f"{_mean([one.mean_score for one in summaries]):.3f}")
        rows.append(row + [""] * (width - len(row)))
    return rows


def _mean(spreads: Sequence[Spread]) -> float:
    return sum(one.median for one in spreads) / len(spreads)


def _milestone(wall_s: float, frames: float) -> str:
    return "never" if math.isinf(wall_s) else f"{_seconds(wall_s, 0)} ({frames:,.0f} frames)"


def _seconds(seconds: float, digits: int) -> str:
    return "none" if math.isinf(seconds) else f"{seconds:,.{digits}f} s"


def _spread(scores: Spread) -> str:
    if scores.lowest == scores.highest:
        return f"{scores.median:.3f}"
    return f"{scores.median:.3f} ({scores.lowest:.3f} to {scores.highest:.3f})"


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return ""
    error = "" if math.isinf(difference.standard_error) else f" ± {difference.standard_error:.3f}"
    return f"{difference.mean:+.3f}{error}"


def _final(runs: Sequence[MeasuredRun]) -> str:
    """Races of the last checkpoints, all seeds together: finished of driven, and the median of their times."""
    races = [race for run in runs if run.final for one in run.final["maps"] for race in one["races"]]
    times_s = [race["race_time_ms"] / 1000 for race in races if race["race_finished"]]
    if not races:
        return ""
    median = f", median {np.median(times_s):.2f} s" if times_s else ""
    return f"{len(times_s)}/{len(races)} finished{median}"


def _blind(runs: Sequence[MeasuredRun], name: str) -> str:
    """Share of generated tracks finished by the last checkpoints, spread over the seeds."""
    shares = [float(run.blind[name]["share_of_maps_finished"]) for run in runs if name in run.blind]
    return f"{_spread(Spread.of(shares))} finished" if shares else ""


def _finite(content: Any) -> Any:
    """Plain values for JSON, which knows no infinity: never is null."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and math.isinf(content) else content
