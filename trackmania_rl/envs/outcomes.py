"""What environments say of a race's course and end, one game's or many games'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trackmania_rl.errors import UserError
from trackmania_rl.rewards import progress_reward
from trackmania_rl.settings import MapEntry, RewardSettings
from trackmania_rl.tmi_interaction.race_machine import RaceEnd

GAME_LOST = "game_lost"
"""The `cutoff_reason` of a race whose game died, hung or spoke nonsense."""


def choose_map(maps: Sequence[MapEntry], rng: np.random.Generator, options: Mapping[str, Any] | None) -> MapEntry:
    """The map of the next race: the one that `options["map"]` names, else one drawn evenly.

    Raises:
        UserError: if there is no map of this name.
    """
    name = (options or {}).get("map")
    if name is None:
        return maps[int(rng.integers(len(maps)))]
    for entry in maps:
        if entry.map_name == name:
            return entry
    names = ", ".join(entry.map_name for entry in maps)
    raise UserError(f'reset(options={{"map": {name!r}}}): the maps of this environment are {names}')


def reward_of_end(end: RaceEnd, meters: float, race_time_ms: int, settings: RewardSettings) -> float:
    """Reward of the action that ended a race.

    Args:
        end: how it ended.
        meters: along the line, where the action was taken.
        race_time_ms: when it was taken.
        settings: coefficients.

    Returns:
        Progress and time until the finish; 0 where the race was cut off: that action leads nowhere known.
    """
    if not end.is_finished:
        return 0.0
    return float(progress_reward(end.furthest_m - meters, end.race_time_ms - race_time_ms, settings))


def info_of_end(end: RaceEnd, began_m: float) -> dict[str, Any]:
    """An ended race in `info`, which began at `began_m` along the line."""
    return {
        "meters": end.furthest_m - began_m,
        "race_time_ms": end.race_time_ms,
        "race_finished": end.is_finished,
        "cutoff_reason": end.cutoff_reason,
    }
