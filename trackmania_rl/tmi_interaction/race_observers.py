"""Who watches a race: what is kept of it for learning, and what is told of it in figures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from trackmania_rl.policy import PolicyDecision
from trackmania_rl.protocol.input_script import events_from_actions, write_input_script
from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.settings import GameSettings
from trackmania_rl.tmi_interaction.race_machine import GameTimings, Observation, RaceEnd
from trackmania_rl.track.virtual_checkpoints import VirtualCheckpoints

FIRST_FRAMES: Final = 256
"""Frames that there is room for at first, where no room was given."""


class RaceObserver(Protocol):
    """Sees every decision of a race, then its end."""

    def on_decision(self, observation: Observation, decision: PolicyDecision) -> None:
        """A decision was made; the game does not know of it yet."""
        ...

    def on_end(self, end: RaceEnd) -> None:
        """The race is over."""
        ...


class RolloutRecorder:
    """Keeps the whole race as columns: the `rollout_results`.

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
            frames = np.empty((FIRST_FRAMES, 1, settings.image_height_px, settings.image_width_px), dtype=np.uint8)
        self._frames = frames
        self._observations: list[Observation] = []
        self._decisions: list[PolicyDecision] = []
        self._end: RaceEnd | None = None

    def on_decision(self, observation: Observation, decision: PolicyDecision) -> None:
        """Keep one decision."""
        count = len(self._decisions)
        if count == len(self._frames):
            self._frames = np.concatenate((self._frames, np.empty_like(self._frames)))
        self._frames[count] = observation.frame
        self._observations.append(observation._replace(frame=self._frames[:0]))  # the picture is kept once
        self._decisions.append(decision)

    def on_end(self, end: RaceEnd) -> None:
        """Drop a decision that was made at the very moment of the finish: it led nowhere."""
        if end.is_finished and self._observations[-1].race_time_ms >= end.race_time_ms:
            del self._observations[-1], self._decisions[-1]
        self._end = end

    def rollout_results(self) -> dict[str, Any]:
        """The race, with T decisions.

        Returns:
            `frames` (T, 1, H, W) uint8, `state_float` (T, F) float32, `actions` (T,) int64, `action_was_greedy` (T,)
            bool, `input_w` (T,) bool (accelerating), `q_values` (T, A) float32, `car_gear_and_wheels` (T, 21) float32,
            `position_m` (T, 3) float32;
            `current_zone_idx` (T,) int64 and `meters_advanced_along_centerline` (T,) float64, both with one more entry
            for the finish if it was reached; `furthest_zone_idx`; and `race_time` in ms if it was finished.
        """
        end = self._end
        assert end is not None, "the race is not over"
        seen, decisions = self._observations, self._decisions
        actions = np.array([decision.action for decision in decisions], dtype=np.int64)
        zone_idx = [observation.zone_idx for observation in seen]
        meters = [observation.meters for observation in seen]
        if end.is_finished:
            zone_idx.append(self._zones.finish_zone_idx)
            meters.append(self._zones.finish_m)
        accelerates = np.array([keys.accelerate for keys in self._settings.inputs])
        results = {
            "frames": self._frames[: len(decisions)],
            "state_float": np.stack([observation.floats for observation in seen]),
            "actions": actions,
            "action_was_greedy": np.array([decision.is_greedy for decision in decisions], dtype=np.bool_),
            "input_w": accelerates[actions],
            "q_values": np.stack([decision.q_values for decision in decisions]).astype(np.float32, copy=False),
            "car_gear_and_wheels": np.stack([observation.car for observation in seen]),
            "position_m": np.stack([observation.position_m for observation in seen]),
            "current_zone_idx": np.array(zone_idx, dtype=np.int64),
            "meters_advanced_along_centerline": np.array(meters, dtype=np.float64),
            "furthest_zone_idx": end.furthest_zone_idx,
        }
        if end.is_finished:
            results["race_time"] = end.race_time_ms
        return results

    def input_script(self) -> str:
        """The race as a script that TMInterface's `load` command plays."""
        # An action lasted longer than its nominal duration where the game reported a step late.
        period_ms = self._settings.ms_per_action
        times_ms = [observation.race_time_ms for observation in self._observations]
        n_periods = [(after - before) // period_ms for before, after in pairwise(times_ms)] + [1]
        held: list[KeyState] = []
        for decision, n in zip(self._decisions, n_periods, strict=True):
            keys = self._settings.inputs[decision.action]
            held += [KeyState(keys.left, keys.right, keys.accelerate, keys.brake)] * n
        return write_input_script(events_from_actions(held, period_ms))


class RaceStatistics:
    """Adds up the figures of a race: the `end_race_stats`.

    Args:
        zones: the map's zones.
    """

    def __init__(self, zones: VirtualCheckpoints) -> None:
        self._zones = zones
        self._n_decisions = 0
        self._n_greedy = 0
        self._speed_sum_m_s = 0.0
        self._first_value: float | None = None
        self._end: RaceEnd | None = None

    def on_decision(self, observation: Observation, decision: PolicyDecision) -> None:
        """Add one decision."""
        if self._first_value is None:
            self._first_value = float(decision.q_values.max())
        self._n_decisions += 1
        self._n_greedy += decision.is_greedy
        self._speed_sum_m_s += observation.speed_m_s

    def on_end(self, end: RaceEnd) -> None:
        """Keep how it ended."""
        self._end = end

    def end_race_stats(self, timings: GameTimings, policy_s: float, input_script: str) -> dict[str, Any]:
        """The figures.

        Args:
            timings: where the machine's time went.
            policy_s: wall-clock time spent deciding.
            input_script: the race's inputs.

        Returns:
            `race_finished`, `race_time_ms`, `cutoff_reason`, `checkpoint_times_ms`, `meters` (from the start of the
            line to the furthest point), `mean_speed_m_s`, `fraction_greedy`, `first_value` (highest Q
            value of the first state), `timings_ms` (per action, by part) and `inputs` (the script).
        """
        end = self._end
        assert end is not None, "the race is not over"
        ms_per_action = 1000.0 / self._n_decisions
        return {
            "race_finished": end.is_finished,
            "race_time_ms": end.race_time_ms,
            "cutoff_reason": end.cutoff_reason,
            "checkpoint_times_ms": list(end.checkpoint_times_ms),
            "meters": max(end.furthest_m - self._zones.start_m, 0.0),
            "mean_speed_m_s": self._speed_sum_m_s / self._n_decisions,
            "fraction_greedy": self._n_greedy / self._n_decisions,
            "first_value": self._first_value,
            "timings_ms": {
                "answer_game": timings.answer_game_s * ms_per_action,
                "wait_game": timings.wait_game_s * ms_per_action,
                "features": timings.features_s * ms_per_action,
                "policy": policy_s * ms_per_action,
            },
            "inputs": input_script,
        }
