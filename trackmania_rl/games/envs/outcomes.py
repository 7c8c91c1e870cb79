"""What environments say of a race's course and end, one game's or many games', and what they are told to do."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.rewards import progress_reward
from trackmania_rl.race.types import RaceEnd
from trackmania_rl.settings import RewardSettings

GAME_LOST: Final = "game_lost"
"""The `cutoff_reason` of a race whose game died, hung or spoke nonsense."""


def indices_of_actions(actions: npt.ArrayLike, shape: tuple[int, ...], n_actions: int) -> npt.NDArray[np.int64]:
    """Check actions as one of the environments takes them.

    Args:
        actions: whole numbers of any kind: a number, a list, an array.
        shape: what they must have: () for one game, (K,) for K games.
        n_actions: how many actions there are.

    Returns:
        `shape` int64, from 0 to `n_actions` - 1.

    Raises:
        UserError: if they are something else.
    """
    given = np.asarray(actions)
    if given.shape != shape or given.dtype.kind not in "iu" or (given < 0).any() or (given >= n_actions).any():
        wanted = "one whole number" if shape == () else f"an array of whole numbers with the shape {shape}"
        raise UserError(f"step({actions!r}): an action is {wanted}, 0 to {n_actions - 1}")
    return given.astype(np.int64)


def decided_elsewhere(actions: npt.NDArray[np.int64], n_actions: int) -> BatchDecision:
    """Return actions (n,) of somebody who has no values to tell, out of `n_actions`."""
    n = len(actions)
    return BatchDecision(actions, np.ones(n, dtype=np.bool_), np.zeros((n, n_actions), dtype=np.float32))


def reward_of_finish(end: RaceEnd, meters: float, race_time_ms: int, settings: RewardSettings) -> float:
    """Return the reward of the action that led to the finish: progress and time until then.

    Args:
        end: the finish.
        meters: along the line, where the action was taken.
        race_time_ms: when it was taken.
        settings: coefficients.
    """
    return float(progress_reward(end.furthest_m - meters, end.race_time_ms - race_time_ms, settings))


def info_of_end(end: RaceEnd, began_m: float) -> dict[str, Any]:
    """Return an ended race in `info`, which began at `began_m` along the line."""
    return {
        "meters": end.furthest_m - began_m,
        "race_time_ms": end.race_time_ms,
        "race_finished": end.is_finished,
        "cutoff_reason": end.cutoff_reason,
    }
