"""Rewards for a race's actions and shaping potentials for the states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.observation_kernel import N_WHEELS
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.schedules import linear
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings

Array = npt.NDArray[Any]
States = npt.NDArray[np.float32]
"""(n, F) state floats, not normalized."""

LEFT, FORWARD = 0, 2
"""Vector axes in the car's frame: x points left, y up, z forward."""
CURRENT_CENTER = slice(0, 3)
NEXT_CENTER = slice(3, 6)
"""First zone centres in the observation, x, y, z each."""

SHAPED_DISTANCE_M = (2.0, 25.0)
ENGINEERED_DISTANCE_M = (5.0, 25.0)
"""Bounds for the distance to the zone's centre in potential and reward."""
NEOSLIDE_SIDEWAYS_SPEED_M_S = 2.0
"""Minimum sideways speed in a slide."""

SPEEDSLIDE_FORWARD_SPEEDS_M_S = np.array([0, 100, 200, 300, 400, 500]) / 3.6
SPEEDSLIDE_SIDEWAYS_SPEEDS_M_S = np.array([8.0, 8.0, 7.5, 6.7, 6.0, 5.5])
"""Sideways speed at which a slide accelerates the car most, by forward speed: S / 10. A wheel's grip ends at half that.
S is the side friction limit, 80 m/s^2, falling to 55 at 500 km/h."""


class Rewarded(NamedTuple):
    """Result from the part `reward` for a race with T actions."""

    rewards: npt.NDArray[np.float32]  #: (T,)
    potentials: npt.NDArray[np.float32]  #: (T + 1,) each state's shaping potential


@runtime_checkable
class Reward(Protocol):
    """The part `reward`, made by a class or function from (settings, spaces, seeds)."""

    def __call__(self, rollout_results: Mapping[str, Any], settings: Settings, frames_total: int) -> Rewarded:
        """Reward a race (`Race.rollout_results`); `frames_total` counts the run's actions, for schedules."""
        ...


class Arrival(NamedTuple):
    """The action that reached the finish, and the race."""

    advanced_m: float
    duration_ms: float
    race_m: float
    race_time_ms: float


def as_stored(column: Any) -> npt.NDArray[np.float32]:
    """Convert numbers to float32, infinite beyond the range. Raise `ValueError` if they are not real numbers."""
    try:
        array = np.asarray(column)
        if array.dtype.kind not in "biufO":
            raise ValueError(f"they are of the type {array.dtype}")
        with np.errstate(over="ignore"):
            return array.astype(np.float32, copy=False)
    except (TypeError, OverflowError) as error:
        raise ValueError(one_line(error, 80)) from error


def is_finite_as_stored(column: Any) -> bool:
    """Return whether all numbers in a column are finite in float32."""
    try:
        return np.asarray(column).dtype.kind in "biu" or bool(np.isfinite(as_stored(column)).all())
    except ValueError:
        return False


def first_not_finite(columns: Mapping[str, Any]) -> str | None:
    """Return the first non-finite column's name, see `is_finite_as_stored`, or None."""
    return next((name for name, column in columns.items() if not is_finite_as_stored(column)), None)


def reward_as_stored(rewarded: object, n_actions: int) -> Rewarded:
    """Return a reward's validated result. Raise `UserError` unless it has a number per action and state."""
    form = (
        f"a Rewarded (trackmania_rl/race/rewards.py) of ({n_actions},) rewards and ({n_actions + 1},) potentials "
        f"for a race of {n_actions} actions"
    )
    if not isinstance(rewarded, tuple) or len(rewarded) != len(Rewarded._fields):
        raise UserError(f"the reward gives a {type(rewarded).__name__}; it has to give {form}")
    columns = {}
    for name, column, n_rows in zip(Rewarded._fields, rewarded, (n_actions, n_actions + 1), strict=True):
        try:
            columns[name] = as_stored(column)
        except ValueError as error:
            raise UserError(f"the reward gives {name} that are no numbers ({error}); it has to give {form}") from error
        if columns[name].shape != (n_rows,):
            raise UserError(f"the reward gives {name} of the shape {columns[name].shape}; it has to give {form}")
    return Rewarded(**columns)


class StepReward(Reward):
    """Base class for rewards per action, in trainings and environments.

    Attributes:
        settings: in force.
    """

    def __init__(self, settings: Settings, spaces: Spaces, seeds: SeedTree) -> None:
        self.settings = settings

    @override
    def __call__(self, rollout_results: Mapping[str, Any], settings: Settings, frames_total: int) -> Rewarded:
        """Reward a race, or keep the `rewards` (T,) from a user's environment among the columns.

        Raises:
            ValueError: if the race time is before the last decision.
        """
        if "rewards" in rollout_results:
            rewards = as_stored(rollout_results["rewards"])
            return Rewarded(rewards, np.zeros(len(rewards) + 1, dtype=np.float32))
        self.settings = settings
        states = np.asarray(rollout_results["state_float"], dtype=np.float32)
        meters = np.asarray(rollout_results["meters_advanced_along_centerline"], dtype=np.float64)
        advanced_m = meters[1:] - meters[:-1]
        ms_per_action = settings.game.ms_per_action
        rewards = self.of_actions(states[:-1], states[1:], advanced_m, frames_total)
        if (race_time_ms := rollout_results.get("race_time")) is not None:
            last_duration_ms = race_time_ms - (len(rewards) - 1) * ms_per_action
            if last_duration_ms < 0:
                raise ValueError(
                    f"race_time = {race_time_ms} ms, but the race has {len(rewards)} actions of {ms_per_action} ms: "
                    "the last one began after the finish"
                )
            race_m = meters[-1] - meters[0]
            rewards[-1] = self.of_arrival(Arrival(advanced_m[-1], last_duration_ms, race_m, race_time_ms))
        return Rewarded(rewards.astype(np.float32), self.potentials(states))

    @abstractmethod
    def of_actions(self, before: States, reached: States, advanced_m: Array, n_actions_made: int) -> Array:
        """Reward n actions (n,) in any races that did not reach the finish, in float64.

        `before` and `reached` (n, F) are the states around them, `advanced_m` (n,) is along the line, and
        `n_actions_made` is for schedules.
        """

    @abstractmethod
    def of_arrival(self, arrival: Arrival) -> float:
        """Reward the action that reached the finish."""

    def potentials(self, states: States) -> npt.NDArray[np.float32]:
        """Return the shaping potentials (n,) for states (n, F)."""
        return np.zeros(len(states), dtype=np.float32)


class RaceReward(StepReward):
    """Default reward: time, metres along the line, and optional terms, whose schedules are linear.

    A finishing action is charged for the time until the finish and has no optional terms.
    """

    def __init__(self, settings: Settings, spaces: Spaces, seeds: SeedTree) -> None:
        super().__init__(settings, spaces, seeds)
        self._places: ObservationLayout | Mapping[str, slice]
        self._places = ObservationLayout(settings.observation, settings.game.actions)

    @override
    def of_actions(self, before: States, reached: States, advanced_m: Array, n_actions_made: int) -> Array:
        settings = self.settings.reward
        places = self._places
        ms_per_action = self.settings.game.ms_per_action
        rewards: Array = self._time_and_metres(advanced_m, ms_per_action)
        # Terms that are off cost no time.
        if settings.final_speed_reward_per_m_per_s != 0:
            velocities_m_s = (states[:, places["velocity_m_s"]].astype(np.float64) for states in (before, reached))
            speed_before_m_s, speed_m_s = (np.linalg.norm(velocity_m_s, axis=1) for velocity_m_s in velocities_m_s)
            drives_forwards = reached[:, places["velocity_m_s"]][:, FORWARD] > 0  # faster reversing must not pay
            # Over a race driven forwards, the terms add up to last speed - first speed.
            rewards += settings.final_speed_reward_per_m_per_s * drives_forwards * (speed_m_s - speed_before_m_s)
        speedslide = linear(settings.engineered_speedslide_reward_schedule, n_actions_made)
        neoslide = linear(settings.engineered_neoslide_reward_schedule, n_actions_made)
        kamikaze = linear(settings.engineered_kamikaze_reward_schedule, n_actions_made)
        close_to_vcp = linear(settings.engineered_close_to_vcp_reward_schedule, n_actions_made)
        if speedslide != 0 or neoslide != 0:
            velocity_m_s = reached[:, places["velocity_m_s"]].astype(np.float64)
            sideways_m_s = velocity_m_s[:, LEFT]
            quality = speedslide_quality(velocity_m_s[:, FORWARD], sideways_m_s)
            has_grip = self._wheels_down(reached) == N_WHEELS
            rewards += speedslide * has_grip * np.maximum(0, 1 - np.abs(quality - 1))
            rewards += neoslide * (np.abs(sideways_m_s) >= NEOSLIDE_SIDEWAYS_SPEED_M_S)
        if kamikaze != 0:
            accelerate, brake = (reached[:, places[pedal]][:, 0] > 0 for pedal in ("last_gas", "last_brake"))
            rewards += kamikaze * ((accelerate & ~brake) | (self._wheels_down(reached) <= 1))
        if close_to_vcp != 0:
            distance_m = _distance_to_zone_center_m(reached[:, places["zone_centers_m"]], *ENGINEERED_DISTANCE_M)
            rewards += close_to_vcp * distance_m
        return rewards

    @override
    def of_arrival(self, arrival: Arrival) -> float:
        return float(self._time_and_metres(arrival.advanced_m, arrival.duration_ms))

    @override
    def potentials(self, states: States) -> npt.NDArray[np.float32]:
        """Compute the shaping potentials (n,) for states (n, F) (Ng, Harada and Russell 1999).

        `shaped_reward_dist_to_cur_vcp` times the clipped distance to the current zone centre, plus
        `shaped_reward_point_to_vcp_ahead` times (c - 1), where c is the cosine between the car's forward axis and the
        direction from the current zone centre to the observation's next one.
        """
        settings = self.settings.reward
        if settings.shaped_reward_dist_to_cur_vcp == 0 and settings.shaped_reward_point_to_vcp_ahead == 0:
            return np.zeros(len(states), dtype=np.float32)
        centers_m = states[:, self._places["zone_centers_m"]]
        distance_m = _distance_to_zone_center_m(centers_m, *SHAPED_DISTANCE_M)
        potentials = settings.shaped_reward_dist_to_cur_vcp * distance_m
        if settings.shaped_reward_point_to_vcp_ahead != 0:
            way_ahead_m = centers_m[:, NEXT_CENTER] - centers_m[:, CURRENT_CENTER]
            cosine = way_ahead_m[:, FORWARD] / np.linalg.norm(way_ahead_m, axis=1)
            potentials = potentials + settings.shaped_reward_point_to_vcp_ahead * (cosine - 1)
        return potentials.astype(np.float32)

    def _time_and_metres(self, advanced_m: Any, duration_ms: Any) -> Any:
        settings = self.settings.reward
        per_m = settings.reward_per_m_advanced_along_centerline
        per_ms = settings.constant_reward_per_ms
        return advanced_m * per_m + per_ms * duration_ms

    def _wheels_down(self, states: States) -> Array:
        wheels_down: Array = states[:, self._places["wheel_has_ground_contact"]].sum(axis=1)
        return wheels_down


def speedslide_quality(forward_speed_m_s: Array, sideways_speed_m_s: Array) -> Array:
    """Return a slide's quality, any shape: 0 straight ahead, 1 best, above 1 too far sideways."""
    best_m_s = np.interp(forward_speed_m_s, SPEEDSLIDE_FORWARD_SPEEDS_M_S, SPEEDSLIDE_SIDEWAYS_SPEEDS_M_S)
    return np.abs(sideways_speed_m_s) / best_m_s


def _distance_to_zone_center_m(centers_m: Array, least_m: float, most_m: float) -> Array:
    """Compute the clipped distance (T,) to the first zone centre in (T, 3 n), in the car's frame."""
    center_m = centers_m[:, CURRENT_CENTER]
    distance_m: Array = np.sqrt(np.einsum("ti,ti->t", center_m, center_m))  # a third of the time of numpy's norm
    np.maximum(distance_m, least_m, out=distance_m)
    return np.minimum(distance_m, most_m, out=distance_m)


PER_M: Final = 0.1
FINISH_S: Final = 10.0


class ProgressReward(StepReward):
    """Reward `per_m` per metre; the finish adds the metres driven in `finish_s` seconds at the mean speed.

    L metres in T seconds earn per_m x L x (1 + finish_s / T). Standing still earns 0, so a cut-off is never
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
