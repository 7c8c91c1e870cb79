"""Complete runs as the report looks at them: each judged, those that differ in their seed alone together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.driving.comparison import Comparison, compare
from benchmarks.driving.results import RunResult
from benchmarks.driving.score import RunFigures, Summary, Yardstick, run_figures, scores_each_minute, summarize
from trackmania_rl.telemetry.learning_summary import Race


@dataclass(frozen=True)
class MeasuredRun:
    """A complete run.

    Attributes:
        note: its note, see `runs`.
        races: lines of its `races.jsonl`, as far as they are judged.
        figures: what they came to.
        final: what `scripts/evaluate.py` found of its checkpoint, if it was asked.
        blind: the same on generated tracks, by `blind-{difficulty}-{seeds}`.
        scores_each_minute: of races with varied starts by what was learned until the end of each minute, if asked.
    """

    note: dict[str, Any]
    races: list[Race]
    figures: RunFigures
    final: dict[str, Any] | None
    blind: dict[str, dict[str, Any]]
    scores_each_minute: dict[int, tuple[float, ...]]

    @classmethod
    def judge(
        cls,
        note: dict[str, Any],
        races: Sequence[Race],
        yardstick: Yardstick,
        minutes: int,
        final: dict[str, Any] | None,
        blind: dict[str, dict[str, Any]],
        each_minute: Sequence[dict[str, Any]] = (),
    ) -> MeasuredRun:
        """Look at a run's first minutes."""
        seen = [race for race in races if race["wall_s"] <= 60 * minutes]
        figures = run_figures(seen, note["track"], yardstick, minutes)
        scores = scores_each_minute(each_minute, yardstick.record_ms)
        return cls(note, seen, figures, final, blind, scores)


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


def results_of(groups: Sequence[Group]) -> list[RunResult]:
    """Each run as a line of `runs.csv`, in the order in which they were begun."""
    results = [
        RunResult(
            variant=group.variant,
            track=group.track,
            seed=run.note["seed"],
            minutes=run.figures.minutes,
            frames=run.figures.frames,
            last_minute_score=run.figures.last_minute_score,
            mean_score=run.figures.mean_score,
            commit=run.note["commit"],
            started=run.note["started"],
        )
        for group in groups
        for run in group.runs
    ]
    return sorted(results, key=lambda result: result.started)


def compare_variants(groups: Sequence[Group]) -> list[Comparison]:
    """Each variant against the first, over all tracks; empty where none has runs of the same tracks and seeds."""
    comparisons = compare([results_of(groups)], groups[0].variant)
    return comparisons if len(comparisons) > 1 else []
