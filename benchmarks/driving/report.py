"""What the benchmark measured: tables for pages (markdown, reStructuredText), all figures as JSON, and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.driving.comparison import Comparison, Difference
from benchmarks.driving.measured import Group, MeasuredRun, compare_variants, results_of
from benchmarks.driving.pictures import draw_comparison, draw_curves
from benchmarks.driving.results import RUNS_FILE, write_results
from benchmarks.driving.score import Spread, Yardstick

TABLE_MINUTES = (1, 2, 3, 5, 10, 20, 30, 60, 120, 180, 240, 360, 480, 720, 1440)
"""Minutes that the table shows, as far as they were driven, beside the last one; the JSON file holds all of them."""


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
    varied = [n for n in minutes if any(n in run.scores_each_minute for group in groups for run in group.runs)]
    head += [f"{minute} min, varied starts" for minute in varied]
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
        row += [_varied(group.runs, minute) for minute in varied]
        rows.append(row)
    return rows + _rows_of_all_tracks(groups, minutes, len(head))


def comparison_table(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """The table of at least one comparison as texts, its headings first."""
    first = comparisons[0]
    rows = [["variant", "runs", "frames", "last minute", f"less {first.variant}", "mean", f"less {first.variant}"]]
    for one in comparisons:
        row = [one.variant, str(one.n_pairs), f"{one.frames:,.0f}"]
        for score, difference in (
            (one.last_minute_score, one.last_minute_difference),
            (one.mean_score, one.mean_difference),
        ):
            row += [f"{score:.3f}", "" if one is first else _difference(difference)]
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
    """Write `table.md`, `table.rst`, `results.json`, `runs.csv`, `curves.png`; of several variants `comparison.png`.

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
            run.note
            | {
                "figures": asdict(run.figures),
                "final": run.final,
                "blind": run.blind,
                "scores_each_minute": run.scores_each_minute,
            }
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
    files = [folder / name for name in (*texts, RUNS_FILE, "curves.png")]
    write_results(files[-2], results_of(groups))
    draw_curves(files[-1], groups, yardsticks)
    if comparisons:
        files.append(folder / "comparison.png")
        draw_comparison(files[-1], comparisons)
    return files


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


def _difference(difference: Difference) -> str:
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


def _varied(runs: Sequence[MeasuredRun], minute: int) -> str:
    """Races with varied starts at the end of a minute: median score, spread over the seeds, and how many finished."""
    scores = [run.scores_each_minute[minute] for run in runs if minute in run.scores_each_minute]
    if not scores:
        return ""
    n_finished = sum(score > 0 for own in scores for score in own)
    medians = Spread.of([float(np.median(own)) for own in scores])
    return f"{_spread(medians)}, {n_finished}/{sum(map(len, scores))} finished"


def _finite(content: Any) -> Any:
    """Plain values for JSON, which knows no infinity: never is null."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and math.isinf(content) else content
