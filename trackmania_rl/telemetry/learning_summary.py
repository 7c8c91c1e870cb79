"""Learning speed of a run, from its log."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trackmania_rl.runs.log import evaluation_races, total_s
from trackmania_rl.telemetry.statistics import RECENT_RACES

Race = Mapping[str, Any]
"""A race of `evaluation_races`."""


class Driving(NamedTuple):
    """The last evaluation races before a moment, at most `RECENT_RACES`.

    The median counts unfinished races as infinity; None if it is infinite, or of several tracks.
    """

    n_races: int
    n_finished: int
    median_time_s: float | None


class LearningSummary(NamedTuple):
    """Evaluation races of a run on one map, of which times are those of a single track.

    Attributes:
        regular_finish: race after which all but one of the last `RECENT_RACES` finished.
        driving: by the moments asked for, in seconds.
    """

    first_finish: Race | None
    regular_finish: Race | None
    driving: dict[int, Driving]
    best_time_s: float | None


def summarize_learning(log: Path, moments_s: Sequence[int]) -> dict[str, LearningSummary]:
    """Summarize a run by map, with driving at those moments (s) that it reached. The seconds of its sessions add up.

    Raises:
        UserError: if the log is missing or damaged.
    """
    by_map: defaultdict[str, list[Race]] = defaultdict(list)
    for race in evaluation_races(log):
        by_map[race["map"]].append(race)
    end_s = total_s(log)
    return {name: _summary(races, moments_s, end_s) for name, races in by_map.items()}


def _summary(greedy: Sequence[Race], moments_s: Sequence[int], end_s: float) -> LearningSummary:
    finishes = [race for race in greedy if race["race_finished"]]
    driving = {}
    for moment_s in moments_s:
        if moment_s <= end_s + 10:  # the last race of a run ends a little before its limit
            n_before = bisect_right(greedy, moment_s, key=lambda race: race["wall_s"])
            driving[moment_s] = _driving(greedy[max(0, n_before - RECENT_RACES) : n_before])
    return LearningSummary(
        next(iter(finishes), None),
        first_race_with(greedy, is_regular_finishing),
        driving,
        min((race["race_time_ms"] / 1000 for race in finishes if not race["is_generated"]), default=None),
    )


def first_race_with(greedy: Sequence[Race], holds: Callable[[Sequence[Race]], bool]) -> Race | None:
    """Return the first race at which a condition holds for the last `RECENT_RACES`."""
    for end in range(RECENT_RACES, len(greedy) + 1):
        if holds(greedy[end - RECENT_RACES : end]):
            return greedy[end - 1]
    return None


def is_regular_finishing(window: Collection[Race]) -> bool:
    """Return whether all races but at most one reached the finish."""
    return sum(race["race_finished"] for race in window) >= len(window) - 1


def median_time_s(window: Collection[Race]) -> float | None:
    """Return the median time, unfinished races as infinity; None if infinite."""
    times_s = [race["race_time_ms"] / 1000 if race["race_finished"] else float("inf") for race in window]
    median_s = statistics.median(times_s) if times_s else float("inf")
    return None if median_s == float("inf") else median_s


def _driving(recent: Collection[Race]) -> Driving:
    return Driving(
        n_races=len(recent),
        n_finished=sum(race["race_finished"] for race in recent),
        median_time_s=None if any(race["is_generated"] for race in recent) else median_time_s(recent),
    )
