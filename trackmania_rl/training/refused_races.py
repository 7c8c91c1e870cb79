"""Races with numbers that are not finite never enter the replay memory: one of them would spoil all weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.errors import UserError
from trackmania_rl.race.rewards import RewardedRace, is_finite_as_stored
from trackmania_rl.telemetry.statistics import TrainingStatistics

log = logging.getLogger(__name__)

LEARNED_FROM: Final = ("state_float", "actions", "rewards", "meters_advanced_along_centerline")
"""Columns of a race that reach the replay memory, or that rewards are computed from."""
MOST_REFUSED_IN_A_ROW: Final = 20
"""So many refused races without a stored one between them end the run."""


def what_is_not_finite(race: ReceivedRollout) -> str | None:
    """Name what a race, or a fragment of one, holds that is infinite or no number; None if all of it is finite.

    An agent that values no actions gives NaN in the place of all their values, which is none of them.
    """
    columns = race.rollout_results
    for name in LEARNED_FROM:
        if name in columns and not is_finite_as_stored(columns[name]):
            return name
    q_values = columns.get("q_values")
    if q_values is not None and not is_finite_as_stored(q_values) and not np.isnan(q_values).all():
        return "q_values"
    return _broken_number(race.end_race_stats)


def what_reward_is_not_finite(rewarded: RewardedRace) -> str | None:
    """Name what a reward gave a race that is infinite or no number; None if all of it is finite."""
    columns = {"rewards": rewarded.rewards, "potentials": rewarded.potentials}
    return next((name for name, values in columns.items() if not is_finite_as_stored(values)), None)


def refuse(what: str, collector: int, map_name: str, statistics: TrainingStatistics) -> None:
    """Count a race that is refused for a column or number, and warn of the 1st, 10th, 100th ....

    Raises:
        UserError: if `MOST_REFUSED_IN_A_ROW` races in a row were refused.
    """
    statistics.races_refused += 1
    statistics.races_refused_in_a_row += 1
    if math.log10(statistics.races_refused).is_integer():
        log.warning(
            "a race of collector %d on %s is refused, since its %s holds numbers that are not finite; races refused so "
            "far: %s",
            collector,
            map_name,
            what,
            f"{statistics.races_refused:,}",
        )
    if statistics.races_refused_in_a_row >= MOST_REFUSED_IN_A_ROW:
        raise UserError(
            f"{MOST_REFUSED_IN_A_ROW} races in a row are refused, the last one on {map_name} since its {what} holds "
            "numbers that are not finite: mend what makes them (the environment, the reward or own floats)"
        )


def _broken_number(stats: Mapping[str, Any]) -> str | None:
    named = ("meters", "race_time_ms")
    return next((name for name in named if not math.isfinite(stats.get(name, 0.0))), None)
