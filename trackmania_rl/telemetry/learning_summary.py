"""Learning speed of a run, from its `races.jsonl`."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from trackmania_rl.errors import UserError

MOST_LINE_BYTES: Final = 1 << 20
WINDOW_RACES = 10
"""Races over which driving is judged."""

NEEDED_KEYS = frozenset({"wall_s", "frames_total", "map", "is_explo", "race_finished", "race_time_ms"})

_KEPT_KEYS = ("wall_s", "frames_total", "race_finished", "race_time_ms", "track")

Race = Mapping[str, Any]
"""One line of `races.jsonl`; its keys are those of `RaceLog`."""


class Driving(NamedTuple):
    """The last evaluation races before a moment, at most `WINDOW_RACES`.

    The median counts unfinished races as infinity; None if it is infinite, or of several tracks.
    """

    n_races: int
    n_finished: int
    median_time_s: float | None


class LearningSummary(NamedTuple):
    """Evaluation races of a run on one map, of which times are those of a single track.

    Attributes:
        regular_finish: race after which all but one of the last `WINDOW_RACES` finished.
        driving: by the moments asked for, in seconds.
    """

    first_finish: Race | None
    regular_finish: Race | None
    driving: dict[int, Driving]
    best_time_s: float | None


def summarize_learning(races_file: Path, moments_s: Sequence[int]) -> dict[str, LearningSummary]:
    """Summarize a run by map, with driving at those moments (s) that it reached. The seconds of its sessions add up.

    Raises:
        UserError: if the file is missing or damaged.
    """
    by_map: defaultdict[str, list[Race]] = defaultdict(list)
    end_s = 0.0
    for race in _on_one_clock(iterate_races(races_file)):
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
            driving[moment_s] = _driving(greedy[max(0, n_before - WINDOW_RACES) : n_before])
    return LearningSummary(
        next(iter(finishes), None),
        first_race_with(greedy, is_regular_finishing),
        driving,
        min((race["race_time_ms"] / 1000 for race in finishes if "track" not in race), default=None),
    )


def first_race_with(greedy: Sequence[Race], holds: Callable[[Sequence[Race]], bool]) -> Race | None:
    """Return the first race at which a condition holds for the last `WINDOW_RACES`."""
    for end in range(WINDOW_RACES, len(greedy) + 1):
        if holds(greedy[end - WINDOW_RACES : end]):
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


def read_races(races_file: Path) -> list[Race]:
    """Return the lines of a `races.jsonl`, see `iterate_races`."""
    return list(iterate_races(races_file))


def iterate_races(races_file: Path) -> Iterator[Race]:
    """Yield the lines of a `races.jsonl`, which may be larger than memory. An incomplete last line is left out.

    Raises:
        UserError: if the file is missing or damaged.
    """
    if races_file.exists() and not races_file.is_file():  # a pipe would keep `open` waiting
        raise UserError(f"cannot read {races_file}: it is no file; give the folder of a run, save/...")
    try:
        with races_file.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES), b""), start=1):
                if not line.endswith(b"\n"):
                    return
                race = json.loads(line)
                if not isinstance(race, dict) or not race.keys() >= NEEDED_KEYS:
                    raise UserError(f"{races_file} is damaged: line {number} is no race, or one of another version")
                yield race
    except OSError as error:
        raise UserError(f"cannot read {races_file}: {error.strerror}; give the folder of a run, save/...") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(f"{races_file} is damaged: {error}") from error


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
