"""From a run's races to scores, curves and milestones; nothing here reads a clock or starts a process.

The score of a race is the record's time divided by its own, and 0 where it does not finish. The score of a run at a
moment is the median over its last ten greedy races. Figures of several seeds are joined by their median, a milestone
that a seed never reached counting as later than any.
"""

from __future__ import annotations

import bisect
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, TypeAdapter, ValidationError

from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.learning_summary import (
    WINDOW_RACES,
    Race,
    first_race_with,
    is_regular_finishing,
    median_time_s,
)

Axis = Literal["wall_s", "frames_total"]
"""What a run is measured against: seconds since its command, or actions of all its games together."""


class Yardstick(BaseModel):
    """What a track's times are held against; one entry of `yardsticks.json`."""

    model_config = ConfigDict(frozen=True)

    length_m: float
    scripted_careful_ms: PositiveInt | None
    scripted_fast_ms: PositiveInt | None
    scripted_tuned_ms: PositiveInt
    record_ms: PositiveInt


@dataclass(frozen=True)
class Milestone:
    """When something was first so.

    Attributes:
        wall_s: seconds since the command; inf for never.
        frames: actions until then; inf for never.
    """

    wall_s: float = math.inf
    frames: float = math.inf

    @classmethod
    def of_race(cls, race: Race | None) -> Milestone:
        """The moment at which a race was over; never, without one."""
        return cls() if race is None else cls(race["wall_s"], race["frames_total"])


@dataclass(frozen=True)
class RunFigures:
    """What one run came to.

    Attributes:
        minutes: its length.
        score_by_minute: (minutes,) the score at the end of each minute.
        frames_by_minute: (minutes,) actions until then.
        first_finish: of the first greedy race that finished.
        regular_finish: when first all but one of the last ten greedy races had finished.
        beats_scripted: when first the median of the last ten greedy races was below the tuned scripted driver's time.
        best_ms: the fastest greedy race; None without a finish.
        n_greedy: greedy races.
        frames: actions in all.
        last_minute_score: the median over all greedy races of the last minute, some fifty (the score at its end is of
            ten); 0 without one.
    """

    minutes: int
    score_by_minute: tuple[float, ...]
    frames_by_minute: tuple[int, ...]
    first_finish: Milestone
    regular_finish: Milestone
    beats_scripted: Milestone
    best_ms: int | None
    n_greedy: int
    frames: int
    last_minute_score: float

    @property
    def mean_score(self) -> float:
        """The mean over the minutes: the area under the curve."""
        return statistics.fmean(self.score_by_minute)


@dataclass(frozen=True)
class Spread:
    """The same figure of several runs.

    Attributes:
        median: of all of them.
        lowest: the smallest.
        highest: the largest.
    """

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; inf is one."""
        return cls(statistics.median(values), min(values), max(values))


def read_yardsticks(file: Path, tracks: Sequence[str]) -> dict[str, Yardstick]:
    """The yardsticks of some tracks.

    Args:
        file: `yardsticks.json`, or a file like it.
        tracks: names of its entries.

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
    """Record's time / race time; 0 for a race that does not finish."""
    return record_ms / race["race_time_ms"] if race["race_finished"] else 0.0


def scores_at(greedy: Sequence[Race], record_ms: int, axis: Axis, moments: Sequence[float]) -> list[float]:
    """The score at each moment: the median over the last ten greedy races by then (of fewer, where there are fewer).

    Args:
        greedy: greedy races of one track, in the order in which they were over.
        record_ms: the record's time on that track.
        axis: the unit of the moments.
        moments: seconds or actions.

    Returns:
        One score for each moment; 0 before the first race.
    """
    ends = [race[axis] for race in greedy]
    scores = [race_score(race, record_ms) for race in greedy]
    windows = [scores[:end][-WINDOW_RACES:] for end in (bisect.bisect_right(ends, moment) for moment in moments)]
    return [statistics.median(window) if window else 0.0 for window in windows]


def scores_each_minute(evaluations: Sequence[Mapping[str, Any]], record_ms: int) -> dict[int, tuple[float, ...]]:
    """The scores of the races in which what was learned by the end of a minute was driven, by minute.

    Args:
        evaluations: what `scripts/evaluate.py --json` wrote of a run's drivers, each of one map.
        record_ms: the record's time on it.
    """
    return {
        max(1, int(evaluation["training_s"] // 60)): tuple(
            race_score(race, record_ms) for one in evaluation["maps"] for race in one["races"]
        )
        for evaluation in evaluations
    }


def greedy_races(races: Sequence[Race], track: str) -> list[Race]:
    """Those that were driven greedily, and on this track: a run may have others in its map cycle."""
    return [race for race in races if race["map"] == track and not race["is_explo"]]


def run_figures(races: Sequence[Race], track: str, yardstick: Yardstick, minutes: int) -> RunFigures:
    """Judge one run.

    Args:
        races: all races of a run of one session, explored ones included, in the order of `races.jsonl`.
        track: the map cycle's name of the track.
        yardstick: the track's.
        minutes: how much of the run to look at.
    """
    races = [race for race in races if race["wall_s"] <= 60 * minutes]
    greedy = greedy_races(races, track)
    moments_s = [60 * (minute + 1) for minute in range(minutes)]
    ends_s = [race["wall_s"] for race in races]
    last_minute = [race_score(race, yardstick.record_ms) for race in greedy if race["wall_s"] > 60 * (minutes - 1)]
    frames = [0, *(race["frames_total"] for race in races)]

    def beats_scripted(window: Sequence[Race]) -> bool:
        median_s = median_time_s(window)
        return median_s is not None and 1000 * median_s < yardstick.scripted_tuned_ms

    return RunFigures(
        minutes=minutes,
        score_by_minute=tuple(scores_at(greedy, yardstick.record_ms, "wall_s", moments_s)),
        frames_by_minute=tuple(frames[bisect.bisect_right(ends_s, moment_s)] for moment_s in moments_s),
        first_finish=Milestone.of_race(next((race for race in greedy if race["race_finished"]), None)),
        regular_finish=Milestone.of_race(first_race_with(greedy, is_regular_finishing)),
        beats_scripted=Milestone.of_race(first_race_with(greedy, beats_scripted)),
        best_ms=min((race["race_time_ms"] for race in greedy if race["race_finished"]), default=None),
        n_greedy=len(greedy),
        frames=frames[-1],
        last_minute_score=statistics.median(last_minute) if last_minute else 0.0,
    )


@dataclass(frozen=True)
class Summary:
    """Runs that differ in their seed alone.

    Attributes:
        n_seeds: how many.
        score_by_minute: (minutes,) spread over the seeds, as far as the shortest run goes.
        mean_score: of `RunFigures.mean_score`.
        first_finish_s: of `RunFigures.first_finish`; `_frames`: the same in actions; likewise the other milestones.
        best_ms: of each seed's fastest greedy race, inf where it has none.
        frames: actions in all.
    """

    n_seeds: int
    score_by_minute: tuple[Spread, ...]
    mean_score: Spread
    first_finish_s: Spread
    first_finish_frames: Spread
    regular_finish_s: Spread
    regular_finish_frames: Spread
    beats_scripted_s: Spread
    beats_scripted_frames: Spread
    best_ms: Spread
    frames: Spread


def summarize(runs: Sequence[RunFigures]) -> Summary:
    """Join at least one run."""

    def spread(name: str) -> tuple[Spread, Spread]:
        milestones = [getattr(run, name) for run in runs]
        return Spread.of([one.wall_s for one in milestones]), Spread.of([one.frames for one in milestones])

    minutes = min(run.minutes for run in runs)
    first_finish, regular_finish, beats_scripted = map(spread, ("first_finish", "regular_finish", "beats_scripted"))
    return Summary(
        n_seeds=len(runs),
        score_by_minute=tuple(Spread.of([run.score_by_minute[minute] for run in runs]) for minute in range(minutes)),
        mean_score=Spread.of([run.mean_score for run in runs]),
        first_finish_s=first_finish[0],
        first_finish_frames=first_finish[1],
        regular_finish_s=regular_finish[0],
        regular_finish_frames=regular_finish[1],
        beats_scripted_s=beats_scripted[0],
        beats_scripted_frames=beats_scripted[1],
        best_ms=Spread.of([math.inf if run.best_ms is None else run.best_ms for run in runs]),
        frames=Spread.of([run.frames for run in runs]),
    )
