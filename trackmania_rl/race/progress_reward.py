"""Reward for any algorithm: metres along the line, and a finish bonus that grows with speed."""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from trackmania_rl.race.rewards import Array, Arrival, States, StepReward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings

PER_M: Final = 0.1
FINISH_S: Final = 10.0


class ProgressReward(StepReward):
    """Reward of `per_m` per metre; the finish adds the metres of `finish_s` seconds at the mean speed.

    A race of L metres in T seconds earns per_m x L x (1 + finish_s / T). Standing still earns 0, so a cut-off is never
    an advantage. Discounting and the bonus favour faster races.
    """

    def __init__(
        self, settings: Settings, spaces: Spaces, seeds: SeedTree, *, per_m: float = PER_M, finish_s: float = FINISH_S
    ) -> None:
        super().__init__(settings, spaces, seeds)
        self._per_m = per_m
        self._finish_s = finish_s

    @override
    def of_actions(self, before: States, reached: States, advanced_m: Array, n_actions_made: int) -> Array:
        return self._per_m * advanced_m

    @override
    def of_arrival(self, arrival: Arrival) -> float:
        bonus = self._per_m * self._finish_s * arrival.race_m / (arrival.race_time_ms / 1000)
        return float(self._per_m * arrival.advanced_m + bonus)
