"""How well a run drives, as a number of figures that compare in their order."""

from __future__ import annotations

import statistics
from typing import Final

from trackmania_rl.telemetry.statistics import RECENT_RACES, RaceHistory, TrainingStatistics

ENOUGH_RACES: Final = RECENT_RACES // 2
"""Of each map, before a score means anything: one race may be luck."""


def score_of(figures: TrainingStatistics) -> tuple[float, ...] | None:
    """Sum up the recent evaluated races of a run, so that its best checkpoint can be told.

    Returns:
        The share that finished, the mean of the maps' median times (negative, s; 0 where half of the races did not
        finish or a median means nothing), and the mean of the last distances; larger is better, the first that differs
        decides. None before each map has enough of them.
    """
    histories = [of_map.evaluated for of_map in figures.maps.values() if of_map.evaluated.n_races > 0]
    if not histories or any(history.n_recent < ENOUGH_RACES for history in histories):
        return None
    return (
        statistics.fmean(history.recent_finish_rate or 0.0 for history in histories),
        -statistics.fmean(map(_median_s, histories)),
        statistics.fmean(history.last_m for history in histories),
    )


def _median_s(history: RaceHistory) -> float:
    return 0.0 if history.median_time_ms is None else history.median_time_ms / 1000
