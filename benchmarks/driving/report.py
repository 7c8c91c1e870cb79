"""Report of the driving benchmark: tables in markdown, all figures as JSON, and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.driving.pictures import draw_curves
from benchmarks.driving.score import Comparison, Difference, Group, Spread, Yardstick, compare

TABLE_MINUTES = (1, 2, 3, 5, 10, 20, 30, 60, 120, 180, 240, 360, 480, 720, 1440)
"""Minutes in the table, as far as they were driven, beside the last one; the JSON file holds all of them."""
MILESTONES = ("first_finish", "regular_finish", "beats_scripted")


def write_report(
    folder: Path, groups: Sequence[Group], yardsticks: dict[str, Yardstick], made: dict[str, Any]
) -> list[Path]:
    """Write `table.md`, `results.json` and `curves.png` of at least one group into a folder; return the files.

    `made` has command, commit and machine, for the JSON file.
    """
    comparisons = compare_variants(groups)
    content = {
        "made": made,
        "yardsticks": {name: yardstick.model_dump() for name, yardstick in yardsticks.items()},
        "comparisons": [asdict(one) for one in comparisons],
        "runs": [{**run.note, "figures": asdict(run.figures)} for group in groups for run in group.runs],
    }
    tables = [table_of(groups), *([comparison_table(comparisons)] if comparisons else [])]
    texts = {
        "table.md": "\n".join(map(markdown, tables)),
        "results.json": json.dumps(_finite(content), indent=1) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    files = [folder / name for name in (*texts, "curves.png")]
    draw_curves(files[-1], groups, yardsticks)
    return files


def compare_variants(groups: Sequence[Group]) -> list[Comparison]:
    """Compare each variant with the first; empty if no other variant has a run of the same track and seed."""
    comparisons = compare([run for group in groups for run in group.runs], groups[0].variant)
    return comparisons if len(comparisons) > 1 else []


def table_of(groups: Sequence[Group]) -> list[list[str]]:
    """Return the table as texts, headings first: a row for each group, with several tracks one for each variant."""
    longest = max(len(group.score_by_minute) for group in groups)
    minutes = [minute for minute in TABLE_MINUTES if minute < longest] + [longest]
    rows = [["track", "variant", "seeds", "first finish", "9 of 10 finish", "beats scripted"]]
    rows[0] += [f"{minute} min" for minute in minutes] + ["mean", "best race"]
    for group in groups:
        scores = group.score_by_minute
        row = [group.track, group.variant, str(len(group.runs))]
        row += [_milestone(*(group.spread(f"{name}_{unit}").median for unit in ("s", "frames"))) for name in MILESTONES]
        row += [_spread(scores[minute - 1]) if minute <= len(scores) else "" for minute in minutes]
        rows.append([*row, _spread(group.spread("mean_score")), _seconds(group.spread("best_ms").lowest / 1000, 2)])
    return rows + _rows_of_all_tracks(groups, minutes)


def _rows_of_all_tracks(groups: Sequence[Group], minutes: Sequence[int]) -> list[list[str]]:
    """Return a row of means over the tracks for each variant that was run on all of several tracks."""
    tracks = {group.track for group in groups}
    rows = []
    for variant in dict.fromkeys(group.variant for group in groups):
        own = [group for group in groups if group.variant == variant]
        if len(tracks) == 1 or len(own) < len(tracks):
            continue
        row = ["mean of tracks", variant, str(min(len(group.runs) for group in own))]
        for name in MILESTONES:
            row.append(_milestone(*(_mean([one.spread(f"{name}_{unit}") for one in own]) for unit in ("s", "frames"))))
        for minute in minutes:
            reached = [one.score_by_minute[minute - 1] for one in own if minute <= len(one.score_by_minute)]
            row.append(f"{_mean(reached):.3f}" if len(reached) == len(tracks) else "")
        rows.append([*row, f"{_mean([one.spread('mean_score') for one in own]):.3f}", ""])
    return rows


def comparison_table(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """Return the table of at least one comparison as texts, headings first."""
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
    """Return a table in markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines) + "\n"


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


def _finite(content: Any) -> Any:
    """Replace infinity, which JSON lacks, by null."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and math.isinf(content) else content
