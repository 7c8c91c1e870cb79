"""The recorder that keeps a race for the learner."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.race.results import RaceColumns, end_race_stats, rollout_results
from trackmania_rl.race.types import GameTimings, Observation, RaceEnd
from trackmania_rl.race.zones import VirtualCheckpoints
from trackmania_rl.settings import GameSettings

FIRST_FRAMES: Final = 256
"""Frames that there is room for at first, where no room was given."""


class RolloutRecorder:
    """Keeps the whole race.

    A decision made at the very moment of the finish is left out: it led nowhere.

    Args:
        settings: the actions.
        zones: the map's zones.
        frames: (n, 1, H, W) uint8 room for the frames, for example shared memory; a race that is longer, or has none,
            is kept in memory of its own.
    """

    def __init__(
        self, settings: GameSettings, zones: VirtualCheckpoints, frames: npt.NDArray[np.uint8] | None = None
    ) -> None:
        self._settings = settings
        self._zones = zones
        if frames is None:
            frames = np.empty((FIRST_FRAMES, 1, *settings.image_shape[1:]), dtype=np.uint8)
        self._frames = frames
        self._observations: list[Observation] = []
        self._decisions: list[PolicyDecision] = []
        self._race: tuple[RaceColumns, RaceEnd] | None = None

    def on_decision(self, observation: Observation, decision: PolicyDecision) -> None:
        """Keep one decision."""
        self._see(observation)
        self._decisions.append(decision)

    def on_end(self, end: RaceEnd) -> None:
        """Make columns of the race."""
        seen, decisions = self._observations, self._decisions
        if end.is_finished and seen[-1].race_time_ms >= end.race_time_ms:
            seen.pop()
            decisions.pop()
        self._see(end.last)
        self._race = self._columns(range(len(seen))), end

    def under_way(self, states: range) -> dict[str, Any]:
        """Return a part of the race, which goes on; see `Games.under_way`."""
        return rollout_results(self._columns(states), None, self._zones, self._settings)

    def _columns(self, states: range) -> RaceColumns:
        seen = self._observations[states.start : states.stop]
        decisions = self._decisions[states.start : states.stop]  # of a single state: its own, for the arrays' shapes
        n_actions = len(states) - 1
        q_values = np.stack([decision.q_values for decision in decisions]).astype(np.float32, copy=False)
        actions = np.array([decision.action for decision in decisions], dtype=actions_of_game(self._settings).dtype)
        is_greedy = np.array([decision.is_greedy for decision in decisions], dtype=np.bool_)
        return RaceColumns(
            frames=self._frames[states.start : states.stop],
            floats=np.stack([observation.floats for observation in seen]),
            car=np.stack([observation.car for observation in seen]),
            zone_idx=np.array([observation.zone_idx for observation in seen], dtype=np.int64),
            meters=np.array([observation.meters for observation in seen], dtype=np.float64),
            race_time_ms=np.array([observation.race_time_ms for observation in seen], dtype=np.int64),
            position_m=np.stack([observation.position_m for observation in seen]),
            speed_m_s=np.array([observation.speed_m_s for observation in seen], dtype=np.float64),
            actions=actions[:n_actions],
            is_greedy=is_greedy[:n_actions],
            q_values=q_values[:n_actions],
        )

    def _see(self, observation: Observation) -> None:
        count = len(self._observations)
        if count == len(self._frames):
            self._frames = np.concatenate((self._frames, np.empty_like(self._frames)))
        self._frames[count] = observation.frame
        self._observations.append(observation._replace(frame=self._frames[:0]))  # the picture is kept once

    def rollout_results(self) -> dict[str, Any]:
        """Return the race for the learner, see `results.rollout_results`."""
        assert self._race is not None, "the race is not over"
        return rollout_results(*self._race, self._zones, self._settings)

    def end_race_stats(self, timings: GameTimings, policy_s: float) -> dict[str, Any]:
        """Return the race in figures, see `results.end_race_stats`."""
        assert self._race is not None, "the race is not over"
        return end_race_stats(*self._race, self._zones, self._settings, timings, policy_s)
