"""Reward for any algorithm: metres along the line, and a finish bonus that grows with speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from trackmania_rl.race.rewards import Array, Arrival, Reward, RewardedRace, StepReward, brought_along
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings

PER_M: Final = 0.1
FINISH_S: Final = 10.0


class ProgressReward(Reward, StepReward):
    """Reward of `per_m` per metre; the finish adds the metres of `finish_s` seconds at the mean speed.

    A race of L metres in T seconds earns per_m x L x (1 + finish_s / T). Standing still earns 0, so a cut-off is never
    an advantage. Discounting and the bonus favour faster races.
    """

    def __init__(
        self, settings: Settings, spaces: Spaces, seeds: SeedTree, *, per_m: float = PER_M, finish_s: float = FINISH_S
    ) -> None:
        self._per_m = per_m
        self._finish_s = finish_s

    @override
    def __call__(self, rollout_results: Mapping[str, Any], settings: Settings, frames_total: int) -> RewardedRace:
        if (theirs := brought_along(rollout_results)) is not None:
            return theirs
        meters = np.asarray(rollout_results["meters_advanced_along_centerline"], dtype=np.float64)
        rewards = self._per_m * (meters[1:] - meters[:-1])
        if (race_time_ms := rollout_results.get("race_time")) is not None:
            rewards[-1] += self._bonus(meters[-1] - meters[0], race_time_ms)
        return RewardedRace(rewards.astype(np.float32), np.zeros(len(meters), dtype=np.float32))

    @override
    def of_actions(
        self, before: npt.NDArray[np.float32], reached: npt.NDArray[np.float32], advanced_m: Array, n_actions_made: int
    ) -> Array:
        return self._per_m * advanced_m

    @override
    def of_arrival(self, arrival: Arrival) -> float:
        return float(self._per_m * arrival.advanced_m + self._bonus(arrival.race_m, arrival.race_time_ms))

    def _bonus(self, race_m: float, race_time_ms: float) -> float:
        return self._per_m * self._finish_s * race_m / (race_time_ms / 1000)
