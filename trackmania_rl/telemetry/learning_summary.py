"""Learning speed of a run, from its log."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trackmania_rl.runs.log import iterate_races
from trackmania_rl.telemetry.statistics import RECENT_RACES

_KEPT_KEYS = ("wall_s", "frames_total", "race_finished", "race_time_ms", "track")

Race = Mapping[str, Any]
"""A race of `iterate_races`."""


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
    end_s = 0.0
    for race in _on_one_clock(iterate_races(log)):
        end_s = race["wall_s"]
        if not race["is_explo"]:
            by_map[race["map"]].append({key: race[key] for key in _KEPT_KEYS if key in race})
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
        min((race["race_time_ms"] / 1000 for race in finishes if "track" not in race), default=None),
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


def _on_one_clock(races: Iterable[Race]) -> Iterator[Race]:
    """Continue `wall_s` from session to session."""
    before_s = last_s = 0.0
    last_session: int | None = None
    for race in races:
        if race.get("session") != last_session or race["wall_s"] < last_s:
            before_s += last_s
        last_s, last_session = race["wall_s"], race.get("session")
        yield {**race, "wall_s": before_s + last_s}


def _driving(recent: Collection[Race]) -> Driving:
    return Driving(
        n_races=len(recent),
        n_finished=sum(race["race_finished"] for race in recent),
        median_time_s=None if any("track" in race for race in recent) else median_time_s(recent),
    )
