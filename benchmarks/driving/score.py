"""Scores of races and runs, and comparisons of variants, from race logs.

The score of a race is the record's time / its own time, and 0 if it does not finish. The score of a run at a moment is
the median over its last ten evaluation races. Figures of several seeds are joined by their median; a milestone that a
seed never reached is later than any (inf).
"""

from __future__ import annotations

import bisect
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, TypeAdapter, ValidationError

from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.learning_summary import (
    Race,
    first_race_with,
    is_regular_finishing,
    median_time_s,
)
from trackmania_rl.telemetry.statistics import RECENT_RACES

Axis = Literal["wall_s", "frames_total"]
"""Seconds since the command, or actions of all games together."""


class Yardstick(BaseModel):
    """One entry of `yardsticks.json`: length of a track, times of the scripted driver, and the record."""

    model_config = ConfigDict(frozen=True)

    length_m: float
    scripted_careful_ms: PositiveInt | None
    scripted_fast_ms: PositiveInt | None
    scripted_tuned_ms: PositiveInt
    record_ms: PositiveInt


@dataclass(frozen=True)
class RunFigures:
    """Figures of one run. Milestones are in seconds since the command and in actions until then, inf for never."""

    minutes: int  # length
    score_by_minute: tuple[float, ...]  # at the end of each minute
    first_finish_s: float  # first evaluation race that finished
    first_finish_frames: float
    regular_finish_s: float  # first time that all but one of the last ten evaluation races finished
    regular_finish_frames: float
    beats_scripted_s: float  # first time that their median time was below the tuned scripted driver's
    beats_scripted_frames: float
    best_ms: float  # fastest evaluation race
    n_greedy: int  # number of evaluation races
    frames: int  # actions in all
    last_minute_score: float  # median over all evaluation races of the last minute; 0 without one
    mean_score: float  # mean over the minutes, the area under the curve


@dataclass(frozen=True)
class MeasuredRun:
    """A complete run: its note (see `runs`), its races as far as they are judged, and their figures."""

    note: Mapping[str, Any]
    races: Sequence[Race]
    figures: RunFigures


@dataclass(frozen=True)
class Spread:
    """One figure over several seeds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value; inf is allowed."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Group:
    """Runs of one variant on one track, which differ in their seed alone."""

    variant: str
    track: str
    runs: Sequence[MeasuredRun]

    def spread(self, name: str) -> Spread:
        """Return the spread of one of `RunFigures`' numbers."""
        return Spread.of([getattr(run.figures, name) for run in self.runs])

    @property
    def score_by_minute(self) -> list[Spread]:
        """Spread of the score at the end of each minute, up to the length of the shortest run."""
        return [Spread.of(scores) for scores in zip(*(run.figures.score_by_minute for run in self.runs), strict=False)]


@dataclass(frozen=True)
class Difference:
    """Difference of a variant's figure to the first variant's over pairs of runs."""

    mean: float
    standard_error: float  # standard deviation / sqrt(pairs); inf with one pair
    of_pairs: tuple[float, ...]

    @classmethod
    def of(cls, differences: Sequence[float]) -> Difference:
        """Return the difference over at least one pair."""
        n_pairs = len(differences)
        error = statistics.stdev(differences) / math.sqrt(n_pairs) if n_pairs > 1 else math.inf
        return cls(statistics.fmean(differences), error, tuple(differences))


@dataclass(frozen=True)
class Comparison:
    """One variant beside another, over pairs of runs of the same track, seed and length.

    Tracks differ more than variants do, so differences are taken within pairs before they are averaged.
    """

    variant: str
    n_pairs: int
    frames: float  # mean over the runs, as are the scores
    last_minute_score: float
    mean_score: float
    last_minute_difference: Difference
    mean_difference: Difference


def read_yardsticks(file: Path, tracks: Sequence[str]) -> dict[str, Yardstick]:
    """Read the yardsticks of some tracks.

    Raises:
        UserError: if the file is damaged, or a track has no entry.
    """
    try:
        entries = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error}") from error
    missing = [track for track in tracks if track not in entries]
    if missing:
        raise UserError(
            f"{file} has no times for {', '.join(missing)} (it has {', '.join(sorted(entries)) or 'none'}); write an "
            "entry like the others"
        )
    try:
        return TypeAdapter(dict[str, Yardstick]).validate_python({track: entries[track] for track in tracks})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{file}: {where} = {first['input']!r}: {first['msg']}") from error


def race_score(race: Race, record_ms: int) -> float:
    """Return the record's time / the race's time; 0 for a race that does not finish."""
    return record_ms / race["race_time_ms"] if race["race_finished"] else 0.0


def scores_at(greedy: Sequence[Race], record_ms: int, axis: Axis, moments: Sequence[float]) -> list[float]:
    """Return the median score of the last ten of a track's evaluation races at each moment; 0 before the first race."""
    ends = [race[axis] for race in greedy]
    scores = [race_score(race, record_ms) for race in greedy]
    windows = [scores[:end][-RECENT_RACES:] for end in (bisect.bisect_right(ends, moment) for moment in moments)]
    return [statistics.median(window) if window else 0.0 for window in windows]


def greedy_races(races: Sequence[Race], track: str) -> list[Race]:
    """Return the evaluation races on one track."""
    return [race for race in races if race["map"] == track and not race["is_explo"]]


def run_figures(races: Sequence[Race], track: str, yardstick: Yardstick, minutes: int) -> RunFigures:
    """Judge the first `minutes` of a run of one session, whose races are in the order of the run log."""
    races = [race for race in races if race["wall_s"] <= 60 * minutes]
    greedy = greedy_races(races, track)
    score_by_minute = scores_at(greedy, yardstick.record_ms, "wall_s", [60 * (k + 1) for k in range(minutes)])
    last_minute = [race_score(race, yardstick.record_ms) for race in greedy if race["wall_s"] > 60 * (minutes - 1)]

    def beats_scripted(window: Sequence[Race]) -> bool:
        median_s = median_time_s([race["race_time_ms"] / 1000 if race["race_finished"] else None for race in window])
        return median_s is not None and 1000 * median_s < yardstick.scripted_tuned_ms

    def finishes_regularly(window: Sequence[Race]) -> bool:
        return is_regular_finishing([race["race_finished"] for race in window])

    first = next((race for race in greedy if race["race_finished"]), NEVER)
    regular = first_race_with(greedy, finishes_regularly) or NEVER
    beating = first_race_with(greedy, beats_scripted) or NEVER
    return RunFigures(
        minutes=minutes,
        score_by_minute=tuple(score_by_minute),
        first_finish_s=first["wall_s"],
        first_finish_frames=first["frames_total"],
        regular_finish_s=regular["wall_s"],
        regular_finish_frames=regular["frames_total"],
        beats_scripted_s=beating["wall_s"],
        beats_scripted_frames=beating["frames_total"],
        best_ms=min((race["race_time_ms"] for race in greedy if race["race_finished"]), default=math.inf),
        n_greedy=len(greedy),
        frames=races[-1]["frames_total"] if races else 0,
        last_minute_score=statistics.median(last_minute) if last_minute else 0.0,
        mean_score=statistics.fmean(score_by_minute),
    )


NEVER: Final = {"wall_s": math.inf, "frames_total": math.inf}


def group_runs(runs: Sequence[MeasuredRun]) -> list[Group]:
    """Group runs that differ in their seed alone: by track, then by variant, each in the order of its first run."""
    tracks = list(dict.fromkeys(run.note["track"] for run in runs))
    variants = list(dict.fromkeys(run.note["variant"] for run in runs))
    groups = []
    for track in tracks:
        for variant in variants:
            own = [run for run in runs if (run.note["track"], run.note["variant"]) == (track, variant)]
            if own:
                groups.append(Group(variant, track, own))
    return groups


def compare(runs: Sequence[MeasuredRun], against: str) -> list[Comparison]:
    """Compare each variant's runs with those of one variant.

    Returns:
        That variant, and the others in the order in which they come, without those that share no run with it.
    """
    keys = [(run.note["track"], run.note["seed"], run.figures.minutes) for run in runs]
    base = {key: run for key, run in zip(keys, runs, strict=True) if run.note["variant"] == against}
    pairs: dict[str, list[tuple[RunFigures, RunFigures]]] = {against: []}
    for key, run in zip(keys, runs, strict=True):
        if key in base:
            pairs.setdefault(run.note["variant"], []).append((run.figures, base[key].figures))

    def difference(of: list[tuple[RunFigures, RunFigures]], name: str) -> Difference:
        return Difference.of([getattr(one, name) - getattr(other, name) for one, other in of])

    return [
        Comparison(
            variant=variant,
            n_pairs=len(own),
            frames=statistics.fmean(one.frames for one, _ in own),
            last_minute_score=statistics.fmean(one.last_minute_score for one, _ in own),
            mean_score=statistics.fmean(one.mean_score for one, _ in own),
            last_minute_difference=difference(own, "last_minute_score"),
            mean_difference=difference(own, "mean_score"),
        )
        for variant, own in pairs.items()
        if own
    ]
