"""States and ends of races, the columns that are kept of a race, and what is made of them when it is over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.protocol.input_script import write_input_script
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.cutoffs import CutoffReason
from trackmania_rl.race.zones import VirtualCheckpoints
from trackmania_rl.settings import GameSettings

DECISION_COLUMNS: Final = ("actions", "is_greedy", "q_values")
"""Of `RaceColumns`, those without a row for the race's last state."""


class Observation(NamedTuple):
    """One state of a race: in which a decision is due, or the last one.

    Attributes:
        frame: (1, H, W) uint8, and the others as in `RaceColumns`.
        floats: (F,) float32.
        car: (22,) float32.
        zone_idx: the current zone.
        meters: metres along the line.
        race_time_ms: since the race's beginning.
        position_m: (3,) float32.
        speed_m_s: the car's speed.
    """

    frame: npt.NDArray[np.uint8]
    floats: npt.NDArray[np.float32]
    car: npt.NDArray[np.float32]
    zone_idx: int
    meters: float
    race_time_ms: int
    position_m: npt.NDArray[np.float32]
    speed_m_s: float


@dataclass(frozen=True)
class RaceEnd:
    """How a race ended.

    Attributes:
        cutoff_reason: why it was cut off; None if it was finished.
        race_time_ms: from the race's beginning to the finish, or the time driven.
        furthest_zone_idx: the highest zone reached; the finish's own index if it was finished.
        furthest_m: metres along the line at the furthest point reached.
        checkpoint_times_ms: times of the checkpoints passed since the race's beginning, the finish included.
        last: the state that the last action led to: that of the cut-off, or the one at the finish. Its picture is
            its own at a cut-off; at the finish, of which a game behind a socket gives none, the one before.
    """

    cutoff_reason: CutoffReason | None
    race_time_ms: int
    furthest_zone_idx: int
    furthest_m: float
    checkpoint_times_ms: tuple[int, ...]
    last: Observation = field(compare=False, repr=False)

    @property
    def is_finished(self) -> bool:
        """Whether the finish was reached."""
        return self.cutoff_reason is None


def times_passed(times_ms: Iterable[int]) -> tuple[int, ...]:
    """Checkpoint times without NOT_PASSED."""
    return tuple(time_ms for time_ms in times_ms if time_ms >= 0)


@dataclass
class GameTimings:
    """Wall-clock time of one race in seconds, by what it was spent on."""

    wait_game_s: float = 0.0
    answer_game_s: float = 0.0
    features_s: float = 0.0


class RaceColumns(NamedTuple):
    """A race of T actions: its T + 1 states, the last one at its end, and the decision in each but the last.

    Those that several games share have the games in front.

    Attributes:
        frames: (T + 1, 1, H, W) uint8; (T + 1, 1, 0, 0) without an image. See `RaceEnd.last` of the last one.
        floats: (T + 1, F) float32, see `ObservationLayout`.
        car: (T + 1, 22) float32, see `CAR_COLUMNS`.
        zone_idx: (T + 1,) int64, the current zone.
        meters: (T + 1,) float64, metres along the line.
        race_time_ms: (T + 1,) int64, since the race's beginning, a multiple of the action's duration but at the finish.
        position_m: (T + 1, 3) float32, the car in world axes.
        speed_m_s: (T + 1,) float64, the car's speed.
        actions: (T,) int64, index into `settings.inputs`; or (T, 3) float32, see `race.actions`.
        is_greedy: (T,) bool, whether the action is the one of the highest value.
        q_values: (T, A) float32, the values that the action was chosen by; (T, 1) of an analog one.
    """

    frames: npt.NDArray[np.uint8]
    floats: npt.NDArray[np.float32]
    car: npt.NDArray[np.float32]
    zone_idx: npt.NDArray[np.int64]
    meters: npt.NDArray[np.float64]
    race_time_ms: npt.NDArray[np.int64]
    position_m: npt.NDArray[np.float32]
    speed_m_s: npt.NDArray[np.float64]
    actions: npt.NDArray[np.int64]
    is_greedy: npt.NDArray[np.bool_]
    q_values: npt.NDArray[np.float32]

    def of_race(self, game: int, states: range) -> RaceColumns:
        """Take these states of a race, and the decisions between them, out of those that games share; views."""
        return RaceColumns(
            **{
                name: column[game, states.start : states.stop - 1 if name in DECISION_COLUMNS else states.stop]
                for name, column in self._asdict().items()
            }
        )


@dataclass(frozen=True, slots=True)
class EndedRace:
    """A race that is over.

    Attributes:
        end: how it ended; None where no race is played, but somebody's own environment.
        rollout_results: see the function of this name.
        end_race_stats: likewise.
    """

    end: RaceEnd | None
    rollout_results: dict[str, Any]
    end_race_stats: dict[str, Any]


def rollout_results(
    columns: RaceColumns, end: RaceEnd | None, zones: VirtualCheckpoints, settings: GameSettings
) -> dict[str, Any]:
    """Make the race that the learner takes, of T actions; or a part of a race that goes on, where `end` is None.

    Returns:
        Of the T + 1 states, the last one at the race's end: `frames` (T + 1, 1, H, W) uint8, `state_float`
        (T + 1, F) float32, `car_gear_and_wheels` (T + 1, 22) float32, `current_zone_idx` (T + 1,) int64 and
        `meters_advanced_along_centerline` (T + 1,) float64, both at the finish those of the finish line. Of the
        decisions, an action's duration apart: `actions` (T,) int64 or (T, 3) float32, `action_was_greedy` (T,) bool,
        `input_w` (T,) bool (accelerating), `q_values` (T, A) or (T, 1) float32, `position_m` (T, 3) float32. Of the
        race: `furthest_zone_idx`; and `race_time` in ms if it was finished. At the finish the last frame is the one
        before, see `RaceEnd.last`.
    """
    zone_idx, meters = columns.zone_idx, columns.meters
    if end is not None and end.is_finished:
        zone_idx = np.append(zone_idx[:-1], zones.finish_zone_idx)
        meters = np.append(meters[:-1], zones.finish_m)
    results = {
        "frames": columns.frames,
        "state_float": columns.floats,
        "actions": columns.actions,
        "action_was_greedy": columns.is_greedy,
        "input_w": actions_of_game(settings).presses_gas(columns.actions),
        "q_values": columns.q_values,
        "car_gear_and_wheels": columns.car,
        "position_m": columns.position_m[:-1],
        "current_zone_idx": zone_idx,
        "meters_advanced_along_centerline": meters,
        "furthest_zone_idx": int(zone_idx.max()) if end is None else end.furthest_zone_idx,
    }
    if end is not None and end.is_finished:
        results["race_time"] = end.race_time_ms
    return results


def end_race_stats(
    columns: RaceColumns,
    end: RaceEnd,
    zones: VirtualCheckpoints,
    settings: GameSettings,
    timings: GameTimings,
    policy_s: float,
) -> dict[str, Any]:
    """Tell the race in figures.

    Args:
        columns: its decisions.
        end: how it ended.
        zones: the map's zones.
        settings: the actions.
        timings: where the machine's time went.
        policy_s: wall-clock time spent deciding.

    Returns:
        `race_finished`, `race_time_ms`, `cutoff_reason`, `checkpoint_times_ms`, `meters` (from the start of the
        line to the furthest point), `mean_speed_m_s`, `fraction_greedy`, `first_value` (highest Q value of the first
        state), `timings_ms` (per action, by part) and `inputs` (the script).
    """
    ms_per_action = 1000.0 / len(columns.actions)
    return {
        "race_finished": end.is_finished,
        "race_time_ms": end.race_time_ms,
        "cutoff_reason": end.cutoff_reason,
        "checkpoint_times_ms": list(end.checkpoint_times_ms),
        "meters": max(end.furthest_m - zones.start_m, 0.0),
        "mean_speed_m_s": float(columns.speed_m_s[:-1].mean()),
        "fraction_greedy": float(columns.is_greedy.mean()),
        "first_value": float(columns.q_values[0].max()),
        "timings_ms": {
            "answer_game": timings.answer_game_s * ms_per_action,
            "wait_game": timings.wait_game_s * ms_per_action,
            "features": timings.features_s * ms_per_action,
            "policy": policy_s * ms_per_action,
        },
        "inputs": write_input_script(actions_of_game(settings).events(columns.race_time_ms[:-1], columns.actions)),
    }
