"""What environments say of a race's course and end, one game's or many games', and what they are told to do."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.rewards import Arrival
from trackmania_rl.race.types import RaceEnd

GAME_LOST: Final = "game_lost"
"""The `cutoff_reason` of a race whose game died, hung or spoke nonsense."""


def decided_elsewhere(actions: npt.NDArray[Any], n_values: int) -> BatchDecision:
    """Return n actions of somebody who does not tell the `n_values` values that come with each."""
    n = len(actions)
    return BatchDecision(actions, np.ones(n, dtype=np.bool_), np.zeros((n, n_values), dtype=np.float32))


def arrival(end: RaceEnd, began_m: float, meters: float, race_time_ms: int) -> Arrival:
    """Tell the action that led to the finish.

    Args:
        end: the finish.
        began_m: metres along the line where the race began.
        meters: metres along the line where the action was taken.
        race_time_ms: when it was taken.
    """
    return Arrival(end.furthest_m - meters, end.race_time_ms - race_time_ms, end.furthest_m - began_m, end.race_time_ms)


def info_of_end(end: RaceEnd, began_m: float) -> dict[str, Any]:
    """Return an ended race in `info`, which began at `began_m` along the line."""
    return {
        "meters": end.furthest_m - began_m,
        "race_time_ms": end.race_time_ms,
        "race_finished": end.is_finished,
        "cutoff_reason": end.cutoff_reason,
    }
