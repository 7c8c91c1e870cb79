"""Times of drivers that were trained on one of the tracks alone, by the driving benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.driving.runs import complete_notes
from benchmarks.driving.score import greedy_races
from benchmarks.generalist.unseen_races import UnseenRace
from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.learning_summary import WINDOW_RACES, Race, read_races


def specialists_times_ms(folder: Path) -> dict[str, float]:
    """Read the trainings of the driving benchmark in a folder, as its score does.

    Args:
        folder: the benchmark's.

    Returns:
        By name of the track, the median of the last ten greedy races; of specialists that finish all of these.

    Raises:
        UserError: if there is no complete training.
    """
    notes = complete_notes(folder)
    if not notes:
        raise UserError(f"{folder} holds no complete training of benchmarks/driving/run.py")
    times_ms = {}
    for note in notes:
        races = read_races(folder / "save" / note["name"] / "races.jsonl")
        time_ms = median_time_ms(greedy_races(races, note["track"])[-WINDOW_RACES:])
        if time_ms is not None:
            times_ms[note["track"]] = time_ms
    return times_ms


def median_time_ms(races: Sequence[Race]) -> float | None:
    """The median finish time; None unless there are ten races and all of them finish."""
    if len(races) < WINDOW_RACES or not all(race["race_finished"] for race in races):
        return None
    return statistics.median(race["race_time_ms"] for race in races)


def ratios(races: Sequence[UnseenRace], times_ms: Mapping[str, float]) -> list[float]:
    """How much longer finished races took than their track's specialist, where there is one."""
    names = {race: race.recipe.name for race in races if race.is_finished}
    return [race.time_ms / times_ms[name] for race, name in names.items() if name in times_ms]
