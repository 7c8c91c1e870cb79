"""How fast a run learned to drive, read from its `races.jsonl`."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError

MOST_LINE_BYTES: Final = 1 << 20
"""Of `races.jsonl`."""
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
    greedy: dict[str, _GreedyRaces] = {}
    end_s = 0.0
    for race in _on_one_clock(iterate_races(races_file)):
        end_s = race["wall_s"]
        if not race["is_explo"]:
            greedy.setdefault(race["map"], _GreedyRaces(moments_s)).add(race)
    return {name: races.summary(end_s) for name, races in greedy.items()}


class _GreedyRaces:
    """One map's greedy races in their order, of which only what a summary needs is kept.

    Args:
        moments_s: seconds since the command at which to judge the driving.
    """

    def __init__(self, moments_s: Sequence[int]) -> None:
        self._first_finish: Race | None = None
        self._regular_finish: Race | None = None
        self._best_time_ms: int | None = None
        self._recent: deque[Race] = deque(maxlen=WINDOW_RACES)
        self._recent_at: dict[int, deque[Race]] = {moment_s: deque(maxlen=WINDOW_RACES) for moment_s in moments_s}

    def add(self, race: Race) -> None:
        """Take the next race into account."""
        self._recent.append(race)
        for moment_s, recent in self._recent_at.items():
            if race["wall_s"] <= moment_s:
                recent.append(race)
        if race["race_finished"]:
            self._first_finish = self._first_finish or race
            time_ms = race["race_time_ms"]
            if "track" not in race and (self._best_time_ms is None or time_ms < self._best_time_ms):
                self._best_time_ms = time_ms
        if self._regular_finish is None and len(self._recent) == WINDOW_RACES and is_regular_finishing(self._recent):
            self._regular_finish = race

    def summary(self, end_s: float) -> LearningSummary:
        """What they say of a run whose last race ended at `end_s`."""
        first, regular = self._first_finish, self._regular_finish
        return LearningSummary(
            first_finish_s=first["wall_s"] if first else None,
            first_finish_frames=first["frames_total"] if first else None,
            regular_finish_s=regular["wall_s"] if regular else None,
            regular_finish_frames=regular["frames_total"] if regular else None,
            # A run that ends by the clock has its last race a little before the moment asked for.
            driving={
                moment_s: _driving(recent) for moment_s, recent in self._recent_at.items() if moment_s <= end_s + 10
            },
            best_time_s=None if self._best_time_ms is None else self._best_time_ms / 1000,
        )


def first_race_with(greedy: Sequence[Race], holds: Callable[[Sequence[Race]], bool]) -> Race | None:
    """The first race at which something holds of the last `WINDOW_RACES` races, itself included; None without one."""
    for end in range(WINDOW_RACES, len(greedy) + 1):
        if holds(greedy[end - WINDOW_RACES : end]):
            return greedy[end - 1]
    return None


def is_regular_finishing(window: Collection[Race]) -> bool:
    """Whether all races but at most one reached the finish."""
    return sum(race["race_finished"] for race in window) >= len(window) - 1


def median_time_s(window: Collection[Race]) -> float | None:
    """Median time of the races, an unfinished one counting as slower than any; None if it is one of those."""
    times_s = [race["race_time_ms"] / 1000 if race["race_finished"] else float("inf") for race in window]
    median_s = statistics.median(times_s) if times_s else float("inf")
    return None if median_s == float("inf") else median_s


def read_races(races_file: Path) -> list[Race]:
    """The lines of a run's `races.jsonl`, in their order.

    Raises:
        UserError: if the file is missing or damaged.
    """
    return list(iterate_races(races_file))


def iterate_races(races_file: Path) -> Iterator[Race]:
    """The lines of a run's `races.jsonl` one after the other: that of a long run does not fit into memory.

    The last line may be cut short, by a power cut or as it is being written; it is left out then.

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
                    raise UserError(f"{races_file} is damaged: line {number} is no race")
                yield race
    except OSError as error:
        raise UserError(f"cannot read {races_file}: {error.strerror}; give the folder of a run, save/...") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(f"{races_file} is damaged: {error}") from error


def _on_one_clock(races: Iterable[Race]) -> Iterator[Race]:
    """The races with `wall_s` going on where the session before left it, not from 0 in each session."""
    before_s = last_s = 0.0
    last_session: int | None = None
    for race in races:
        # Lines of earlier versions have no session; there only a clock that goes back tells where one begins.
        if race.get("session") != last_session or race["wall_s"] < last_s:
            before_s += last_s
        last_s, last_session = race["wall_s"], race.get("session")
        yield {**race, "wall_s": before_s + last_s}


def _driving(recent: Collection[Race]) -> Driving:
    """How the last races were driven; at most `WINDOW_RACES`."""
    return Driving(
        n_races=len(recent),
        n_finished=sum(race["race_finished"] for race in recent),
        median_time_s=None if any("track" in race for race in recent) else median_time_s(recent),
    )
