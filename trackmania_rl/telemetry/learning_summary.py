"""How fast a run learned to drive, read from its `races.jsonl`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackmania_rl.errors import UserError

WINDOW_RACES = 10
"""Races over which driving is judged."""

NEEDED_KEYS = frozenset({"wall_s", "frames_total", "map", "is_explo", "race_finished", "race_time_ms"})
"""Of one line of `races.jsonl`."""

Race = Mapping[str, Any]
"""One line of `races.jsonl`; its keys are those of `RaceLog`."""


@dataclass(frozen=True)
class Driving:
    """The last `WINDOW_RACES` evaluation races before a moment.

    Attributes:
        n_races: how many there were, at most `WINDOW_RACES`.
        n_finished: how many of them reached the finish.
        median_time_s: median of all of them, an unfinished one counting as slower than any; None if it is one of those.
    """

    n_races: int
    n_finished: int
    median_time_s: float | None


@dataclass(frozen=True)
class LearningSummary:
    """One run's greedy races.

    Attributes:
        first_finish_s: wall-clock time since the command until the first greedy finish; None before it.
        first_finish_frames: frames until then.
        regular_finish_s: time until all but one of the last `WINDOW_RACES` greedy races were finished.
        regular_finish_frames: frames until then.
        driving: how it drove at each of the moments asked for, by seconds.
        best_time_s: the fastest greedy finish.
    """

    first_finish_s: float | None
    first_finish_frames: int | None
    regular_finish_s: float | None
    regular_finish_frames: int | None
    driving: dict[int, Driving]
    best_time_s: float | None


def summarize_learning(races_file: Path, moments_s: Sequence[int]) -> dict[str, LearningSummary]:
    """Summarize a run, map by map; where it was resumed, its sessions' seconds add up.

    Args:
        races_file: `RunFolder.races`.
        moments_s: seconds since the command at which to judge the driving; those after the run's end are left out.

    Returns:
        By map, those with a greedy race. On generated tracks, which are many under one name, there are no times.

    Raises:
        UserError: if the file is missing or damaged.
    """
    races = _on_one_clock(read_races(races_file))
    end_s = races[-1]["wall_s"] if races else 0.0
    greedy = [race for race in races if not race["is_explo"] and is_full_race(race)]
    return {
        name: _summarize([race for race in greedy if race["map"] == name], moments_s, end_s)
        for name in dict.fromkeys(race["map"] for race in greedy)
    }


def _summarize(greedy: Sequence[Race], moments_s: Sequence[int], end_s: float) -> LearningSummary:
    first = next((race for race in greedy if race["race_finished"]), None)
    regular = first_race_with(greedy, is_regular_finishing)
    times_s = [race["race_time_ms"] / 1000 for race in greedy if race["race_finished"] and "track" not in race]
    return LearningSummary(
        first_finish_s=first["wall_s"] if first else None,
        first_finish_frames=first["frames_total"] if first else None,
        regular_finish_s=regular["wall_s"] if regular else None,
        regular_finish_frames=regular["frames_total"] if regular else None,
        # A run that ends by the clock has its last race a little before the moment asked for.
        driving={
            moment_s: _driving([race for race in greedy if race["wall_s"] <= moment_s])
            for moment_s in moments_s
            if moment_s <= end_s + 10
        },
        best_time_s=min(times_s, default=None),
    )


def is_full_race(race: Race) -> bool:
    """Whether a race began at the start line; runs of earlier versions have no others."""
    return race.get("started_at_m", 0.0) == 0


def first_race_with(greedy: Sequence[Race], holds: Callable[[Sequence[Race]], bool]) -> Race | None:
    """The first race at which something holds of the last `WINDOW_RACES` races, itself included; None without one."""
    for end in range(WINDOW_RACES, len(greedy) + 1):
        if holds(greedy[end - WINDOW_RACES : end]):
            return greedy[end - 1]
    return None


def is_regular_finishing(window: Sequence[Race]) -> bool:
    """Whether all races but at most one reached the finish."""
    return sum(race["race_finished"] for race in window) >= len(window) - 1


def median_time_s(window: Sequence[Race]) -> float | None:
    """Median time of the races, an unfinished one counting as slower than any; None if it is one of those."""
    times_s = [race["race_time_ms"] / 1000 if race["race_finished"] else float("inf") for race in window]
    median_s = statistics.median(times_s) if times_s else float("inf")
    return None if median_s == float("inf") else median_s


def read_races(races_file: Path) -> list[Race]:
    """The lines of a run's `races.jsonl`, in their order.

    Raises:
        UserError: if the file is missing or damaged.
    """
    try:
        races = [json.loads(line) for line in races_file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise UserError(f"cannot read {races_file}: {error.strerror}; give the folder of a run, save/...") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(f"{races_file} is damaged: {error}") from error
    for number, race in enumerate(races, start=1):
        if not isinstance(race, dict) or not race.keys() >= NEEDED_KEYS:
            raise UserError(f"{races_file} is damaged: line {number} is no race")
    return races


def _on_one_clock(races: Sequence[Race]) -> list[Race]:
    """The races with `wall_s` going on where the session before left it, not from 0 in each session."""
    joined: list[Race] = []
    before_s = last_s = 0.0
    last_session = races[0].get("session") if races else None
    for race in races:
        # Lines of earlier versions have no session; there only a clock that goes back tells where one begins.
        if race.get("session") != last_session or race["wall_s"] < last_s:
            before_s += last_s
        last_s, last_session = race["wall_s"], race.get("session")
        joined.append({**race, "wall_s": before_s + last_s})
    return joined


def _driving(greedy: Sequence[Race]) -> Driving:
    recent = greedy[-WINDOW_RACES:]
    return Driving(
        n_races=len(recent),
        n_finished=sum(race["race_finished"] for race in recent),
        median_time_s=None if any("track" in race for race in recent) else median_time_s(recent),
    )
