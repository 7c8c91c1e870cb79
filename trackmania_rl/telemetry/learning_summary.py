"""Learning speed, from a run's log."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from trackmania_rl.runs.log import query
from trackmania_rl.telemetry.statistics import RECENT_RACES

Race = Mapping[str, Any]
"""A race from `iterate_races`."""

_EVALUATIONS: Final = "FROM races WHERE NOT is_undone AND NOT is_explo"
_BEST: Final = f"""
    SELECT map, MIN(CASE WHEN race_finished AND NOT is_generated THEN race_time_ms END) {_EVALUATIONS} GROUP BY map
"""
_FINISHED: Final = f"SELECT id, map, race_finished {_EVALUATIONS} ORDER BY id"
_FIRST_AFTER: Final = "SELECT id FROM races WHERE NOT is_undone AND training_s > ? ORDER BY id LIMIT 1"
_NEWEST: Final = "SELECT id, training_s FROM races WHERE NOT is_undone ORDER BY id DESC LIMIT 1"
_BEFORE: Final = f"""
    SELECT race_finished, race_time_ms, is_generated {_EVALUATIONS} AND map = ? AND id < ? ORDER BY id DESC LIMIT ?
"""


class Driving(NamedTuple):
    """The last evaluation races before a moment, at most `RECENT_RACES`.

    The median counts unfinished races as infinity; None if it is infinite, or from several tracks.
    """

    n_races: int
    n_finished: int
    median_time_s: float | None


class Moment(NamedTuple):
    """Time of a race: training seconds and the run's frames."""

    training_s: float
    frames_total: int


class LearningSummary(NamedTuple):
    """A run's evaluation races on one map. Times are for a single track.

    Attributes:
        regular_finish: race after which all but one of the last `RECENT_RACES` finished.
        driving: by the moments asked for, in seconds.
    """

    first_finish: Moment | None
    regular_finish: Moment | None
    driving: dict[int, Driving]
    best_time_s: float | None


def summarize_learning(log: Path, moments_s: Sequence[int]) -> dict[str, LearningSummary]:
    """Summarize a run by map, with driving at those moments (s) that it reached. Session seconds add up.

    Raises:
        UserError: if the log is missing or damaged.
    """
    best_ms = dict(query(log, _BEST))
    first, regular = _finishes(log, len(best_ms))
    newest_id, end_s = next(query(log, _NEWEST), (0, 0.0))
    ends = {}
    for moment_s in moments_s:
        if moment_s <= end_s + 10:  # a run's last race ends a little before the limit
            ends[moment_s] = next(query(log, _FIRST_AFTER, (moment_s,)), (newest_id + 1,))[0]
    return {
        name: LearningSummary(
            first_finish=_moment(log, first.get(name)),
            regular_finish=_moment(log, regular.get(name)),
            driving={moment_s: _driving(log, name, end) for moment_s, end in ends.items()},
            best_time_s=None if time_ms is None else time_ms / 1000,
        )
        for name, time_ms in best_ms.items()
    }


def _finishes(log: Path, n_maps: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return two race ids for each map: the first finish, and the race from which finishes are regular."""
    first: dict[str, int] = {}
    regular: dict[str, int] = {}
    windows: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=RECENT_RACES))
    for number, name, finished in query(log, _FINISHED):
        if name in regular:
            continue
        window = windows[name]
        window.append(finished)
        if finished:
            first.setdefault(name, number)
        if is_regular_finishing(window):
            regular[name] = number
            if len(regular) == n_maps:
                break
    return first, regular


def _moment(log: Path, number: int | None) -> Moment | None:
    select = "SELECT training_s, frames_total FROM races WHERE id = ?"
    return next((Moment(*values) for values in query(log, select, (number,))), None)


def _driving(log: Path, name: str, end: int) -> Driving:
    recent = list(query(log, _BEFORE, (name, end, RECENT_RACES)))
    times_s = [time_ms / 1000 if finished else None for finished, time_ms, _ in recent]
    return Driving(
        n_races=len(recent),
        n_finished=sum(finished for finished, _, _ in recent),
        median_time_s=None if any(is_generated for *_, is_generated in recent) else median_time_s(times_s),
    )


def first_race_with(greedy: Sequence[Race], holds: Callable[[Sequence[Race]], bool]) -> Race | None:
    """Return the first race at which a condition holds for the last `RECENT_RACES`."""
    for end in range(RECENT_RACES, len(greedy) + 1):
        if holds(greedy[end - RECENT_RACES : end]):
            return greedy[end - 1]
    return None


def is_regular_finishing(finished: Collection[int]) -> bool:
    """Return whether at most one of the last `RECENT_RACES` missed the finish, by race 0 or 1."""
    return len(finished) == RECENT_RACES and sum(finished) >= RECENT_RACES - 1


def median_time_s(times_s: Collection[float | None]) -> float | None:
    """Return the median time, unfinished races (None) as infinity; None if infinite."""
    known_s = [float("inf") if time_s is None else time_s for time_s in times_s]
    median_s = statistics.median(known_s) if known_s else float("inf")
    return None if median_s == float("inf") else median_s
