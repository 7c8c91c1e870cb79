"""Compiled functions that write a game state into a race's columns: floats, zone, progress, cut-off."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for
from trackmania_rl.protocol import state_blob
from trackmania_rl.protocol.state_blob import MATERIAL_COUNT, MATERIAL_ID_MASK, STATE_HEAD_DTYPE, WHEEL_DTYPE
from trackmania_rl.race import road
from trackmania_rl.race.road import (
    N_BEAMS,
    KnownRoad,
    VirtualCheckpoints,
    measure_ranges,
    meters_along_line,
    move_zone,
    observe_road,
)
from trackmania_rl.settings import GameSettings

_compiled = compiler_for(
    "observation_kernel", [Path(__file__), *(Path(str(module.__file__)) for module in (state_blob, road))]
)
_inner = _compiled(is_inner=True)

ABSENT: Final = -1
"""Offset for an omitted block."""

N_WHEELS: Final = 4

GROUND_GROUPS: Final[dict[str, tuple[int, ...]]] = {
    "asphalt-like": (0, 1, 16, 18, 19),
    "grass-like": (2, 20),
    "dirt-like": (5, 6, 8, 17),
    "turbo": (7, 26),
}
"""Material ids by ground group; other materials are in no group."""

CAR_COLUMNS: Final = (
    *(f"wheel_{wheel}_is_sliding" for wheel in range(N_WHEELS)),
    *(f"wheel_{wheel}_has_ground_contact" for wheel in range(N_WHEELS)),
    *(f"wheel_{wheel}_damper_absorb_m" for wheel in range(N_WHEELS)),
    *(f"wheel_{wheel}_material_id" for wheel in range(N_WHEELS)),
    "gearbox_state",
    "gear",
    "engine_rpm",
    "actions_since_gear_change",
    "is_freewheeling",
    "touches_wall",
)
"""Columns in `rollout_results["car_gear_and_wheels"]`."""

# First columns for the car's parts; numba compiles them into the kernel.
_SLIDING_COLUMN = CAR_COLUMNS.index("wheel_0_is_sliding")
_GROUND_CONTACT_COLUMN = CAR_COLUMNS.index("wheel_0_has_ground_contact")
_DAMPER_COLUMN = CAR_COLUMNS.index("wheel_0_damper_absorb_m")
_MATERIAL_COLUMN = CAR_COLUMNS.index("wheel_0_material_id")
_GEARBOX_STATE_COLUMN = CAR_COLUMNS.index("gearbox_state")
_GEAR_COLUMN = CAR_COLUMNS.index("gear")
_RPM_COLUMN = CAR_COLUMNS.index("engine_rpm")
_GEAR_CHANGE_COLUMN = CAR_COLUMNS.index("actions_since_gear_change")
_FREEWHEELING_COLUMN = CAR_COLUMNS.index("is_freewheeling")
_TOUCHES_WALL_COLUMN = CAR_COLUMNS.index("touches_wall")

BEFORE_FIRST_STATE: Final = -1.0
"""`ObserverState.actions_since_gear_change` before a race's first state."""

CutoffReason = Literal["no_progress", "too_long", "horizon"]

NOT_FINITE: Final = -1
GOING_ON: Final = 0
NO_PROGRESS: Final = 1
TOO_LONG: Final = 2
HORIZON: Final = 3
FINISHED: Final = 4
REASON_OF_VERDICT: Final[dict[int, CutoffReason]] = {
    NO_PROGRESS: "no_progress",
    TOO_LONG: "too_long",
    HORIZON: "horizon",
}


class StateColumns(NamedTuple):
    """A race with T actions: T + 1 states, and T decisions. Arrays for K races have a leading axis K."""

    frames: npt.NDArray[np.uint8]  # (T + 1, 1, H, W); H = W = 0 without an image
    floats: npt.NDArray[np.float32]  # (T + 1, F), see `ObservationLayout`
    car: npt.NDArray[np.float32]  # (T + 1, 22), see `CAR_COLUMNS`
    zone_idx: npt.NDArray[np.int64]  # (T + 1,)
    meters: npt.NDArray[np.float64]  # (T + 1,) along the line
    race_time_ms: npt.NDArray[np.int64]  # (T + 1,) a multiple of the action duration except at the finish
    position_m: npt.NDArray[np.float32]  # (T + 1, 3) world axes
    speed_m_s: npt.NDArray[np.float64]  # (T + 1,)
    actions: npt.NDArray[np.int64]  # (T,) index into `settings.inputs`; or (T, 3) float32, see `race.actions`
    is_greedy: npt.NDArray[np.bool_]  # (T,) whether the action has the highest value
    q_values: npt.NDArray[np.float32]  # (T, A) action values; (T, 1) for an analog one
    action_log_prob: npt.NDArray[np.float32]  # (T,) see `PolicyDecision`


class ObserverState(NamedTuple):
    """State that K races carry from row to row, beside the N rows."""

    zone_idx: npt.NDArray[np.int64]  # (K,)
    furthest_zone_idx: npt.NDArray[np.int64]  # (K,)
    furthest_m: npt.NDArray[np.float64]  # (K, N) along the line, furthest point until each state
    window_row: npt.NDArray[np.int64]  # (K,) second result from `judge`
    actions_since_gear_change: npt.NDArray[np.float64]  # (K,)
    previous_actions: npt.NDArray[np.float32]  # (K, n, W), oldest first
    rules: npt.NDArray[np.float64]  # (K, 4), see `cutoff_rules`


class FeatureOffsets(NamedTuple):
    """Each block's first float index, or `ABSENT`; fields are in the vector's order."""

    mini_race_time_actions: int
    previous_actions: int
    wheel_is_sliding: int
    wheel_has_ground_contact: int
    wheel_damper_absorb_m: int
    gearbox_state: int
    gear: int
    engine_rpm: int
    actions_since_gear_change: int
    wheel_ground_group: int
    angular_velocity_rad_s: int
    velocity_m_s: int
    world_up: int
    zone_centers_m: int
    distance_to_finish_m: int
    is_freewheeling: int
    speed_m_s: int
    range_finder_m: int
    road_ahead: int


class KernelLayout(NamedTuple):
    """Parts from an `ObservationLayout` for compiled functions."""

    at: FeatureOffsets
    n_zone_centers: int
    zone_stride: int  # zones between neighbouring centres
    margin_to_announce_finish_m: float
    measures_on_track: bool  # range finder on the track, not in pictures
    range_finder_reach_m: float
    n_road_floats: int
    n_floats: int


def cutoff_rules(settings: GameSettings) -> npt.NDArray[np.float64]:
    """Return the limits for `judge`, (4,): longest race (ms), no progress within (ms), progress (m), most actions."""
    return np.array(
        [
            settings.cutoff_race_longer_than_ms,
            settings.cutoff_no_progress_within_ms,
            settings.cutoff_progress_m,
            settings.cutoff_horizon_actions or math.inf,
        ]
    )


@_compiled
def judge(
    race_times_ms: npt.NDArray[np.int64],
    furthest_m: npt.NDArray[np.float64],
    row: int,
    window_row: int,
    rules: npt.NDArray[np.float64],
) -> tuple[int, int]:
    """Return whether a race is cut off at the newest state.

    Args:
        race_times_ms: (N,) ascending.
        furthest_m: (N,) along the line, at the furthest point until each state.
        row: row with the newest state.
        window_row: second result at the state before; 0 at the first.
        rules: (4,), see `cutoff_rules`.

    Returns:
        The verdict, and the row with the latest state at least as old as the window (0 without one).
    """
    longer_than_ms = rules[0]
    no_progress_within_ms = rules[1]
    progress_m = rules[2]
    horizon_actions = rules[3]
    window_begin_ms = race_times_ms[row] - no_progress_within_ms
    while window_row < row and race_times_ms[window_row + 1] <= window_begin_ms:
        window_row += 1
    if race_times_ms[window_row] <= window_begin_ms and furthest_m[row] - furthest_m[window_row] < progress_m:
        return NO_PROGRESS, window_row
    if race_times_ms[row] > longer_than_ms:
        return TOO_LONG, window_row
    return (HORIZON if row >= horizon_actions else GOING_ON), window_row


def _word(dtype: np.dtype[np.void], name: str) -> int:
    assert dtype.fields is not None
    return dtype.fields[name][1] // 4


# Constants that numba compiles into the kernel.
_ROTATION = _word(STATE_HEAD_DTYPE, "rotation")
_POSITION = _word(STATE_HEAD_DTYPE, "position_m")
_VELOCITY = _word(STATE_HEAD_DTYPE, "velocity_m_s")
_ANGULAR_VELOCITY = _word(STATE_HEAD_DTYPE, "angular_velocity_rad_s")
_GEARBOX_STATE = _word(STATE_HEAD_DTYPE, "gearbox_state")
_GEAR = _word(STATE_HEAD_DTYPE, "engine_gear")
_RPM = _word(STATE_HEAD_DTYPE, "engine_actual_rpm")
_FREEWHEELING = _word(STATE_HEAD_DTYPE, "is_freewheeling")
_LATERAL_CONTACT = _word(STATE_HEAD_DTYPE, "has_any_lateral_contact")
_WHEELS = _word(STATE_HEAD_DTYPE, "wheels")
_WORDS_PER_WHEEL = WHEEL_DTYPE.itemsize // 4
_SLIDING = _word(WHEEL_DTYPE, "is_sliding")
_GROUND_CONTACT = _word(WHEEL_DTYPE, "has_ground_contact")
_DAMPER = _word(WHEEL_DTYPE, "damper_absorb_m")
_MATERIAL = _word(WHEEL_DTYPE, "contact_material_id")
_N_GROUND_GROUPS = len(GROUND_GROUPS)
_GROUND_GROUP_OF_MATERIAL = np.full(MATERIAL_COUNT, -1, dtype=np.int64)
for _group, _materials in enumerate(GROUND_GROUPS.values()):
    _GROUND_GROUP_OF_MATERIAL[list(_materials)] = _group


@_inner
def _put(floats: npt.NDArray[np.float32], block: int, place: int, value: float) -> None:
    if block >= 0:
        floats[block + place] = value


@_inner
def _fill_features(
    floats: npt.NDArray[np.float32],
    car: npt.NDArray[np.float32],
    head_f32: npt.NDArray[np.float32],
    head_i32: npt.NDArray[np.int32],
    previous_actions: npt.NDArray[np.float32],
    actions_since_gear_change: float,
    zone_idx: int,
    distance_to_finish_m: float,
    centers_m: npt.NDArray[np.float64],
    layout: KernelLayout,
) -> bool:
    """Write `floats` and `car` except range finder and road ahead; return whether all numbers are finite.

    `previous_actions` (n, W), oldest first.
    """
    at = layout.at
    floats[at.mini_race_time_actions] = 0.0
    for index in range(previous_actions.shape[0]):  # a slice assignment would take seconds to compile
        for key in range(previous_actions.shape[1]):
            _put(floats, at.previous_actions, index * previous_actions.shape[1] + key, previous_actions[index, key])
    for wheel in range(N_WHEELS):
        word = _WHEELS + wheel * _WORDS_PER_WHEEL
        material = head_i32[word + _MATERIAL] & MATERIAL_ID_MASK
        is_sliding = head_i32[word + _SLIDING] != 0
        has_contact = head_i32[word + _GROUND_CONTACT] != 0
        car[_SLIDING_COLUMN + wheel] = is_sliding
        car[_GROUND_CONTACT_COLUMN + wheel] = has_contact
        car[_DAMPER_COLUMN + wheel] = head_f32[word + _DAMPER]
        car[_MATERIAL_COLUMN + wheel] = material
        _put(floats, at.wheel_is_sliding, wheel, is_sliding)
        _put(floats, at.wheel_has_ground_contact, wheel, has_contact)
        _put(floats, at.wheel_damper_absorb_m, wheel, head_f32[word + _DAMPER])
        group = _GROUND_GROUP_OF_MATERIAL[material] if material < MATERIAL_COUNT else -1
        for choice in range(_N_GROUND_GROUPS):
            _put(floats, at.wheel_ground_group, wheel * _N_GROUND_GROUPS + choice, choice == group)
    car[_GEARBOX_STATE_COLUMN] = head_i32[_GEARBOX_STATE]
    car[_GEAR_COLUMN] = head_i32[_GEAR]
    car[_RPM_COLUMN] = head_f32[_RPM]
    car[_GEAR_CHANGE_COLUMN] = actions_since_gear_change
    car[_FREEWHEELING_COLUMN] = head_i32[_FREEWHEELING] != 0
    car[_TOUCHES_WALL_COLUMN] = head_i32[_LATERAL_CONTACT] != 0
    _put(floats, at.gearbox_state, 0, car[_GEARBOX_STATE_COLUMN])
    _put(floats, at.gear, 0, car[_GEAR_COLUMN])
    _put(floats, at.engine_rpm, 0, car[_RPM_COLUMN])
    _put(floats, at.actions_since_gear_change, 0, car[_GEAR_CHANGE_COLUMN])
    _put(floats, at.is_freewheeling, 0, car[_FREEWHEELING_COLUMN])

    rotation = head_f32[_ROTATION : _ROTATION + 9]  # car to world, row-major: column i is the car's axis i in the world
    position = head_f32[_POSITION : _POSITION + 3]
    spin, velocity = _ANGULAR_VELOCITY, _VELOCITY
    speed_squared = 0.0
    are_finite = True
    for axis in range(3):
        x = float(rotation[axis])
        y = float(rotation[3 + axis])
        z = float(rotation[6 + axis])
        speed_squared += float(head_f32[velocity + axis]) ** 2
        turning = x * head_f32[spin] + y * head_f32[spin + 1] + z * head_f32[spin + 2]
        moving = x * head_f32[velocity] + y * head_f32[velocity + 1] + z * head_f32[velocity + 2]
        _put(floats, at.angular_velocity_rad_s, axis, turning)
        _put(floats, at.velocity_m_s, axis, moving)
        _put(floats, at.world_up, axis, y)
        are_finite &= math.isfinite(turning + moving + position[axis])  # even without these blocks
        if at.zone_centers_m >= 0:
            for i in range(layout.n_zone_centers):
                center = centers_m[zone_idx + i * layout.zone_stride]
                floats[at.zone_centers_m + 3 * i + axis] = (
                    x * (center[0] - position[0]) + y * (center[1] - position[1]) + z * (center[2] - position[2])
                )
    _put(floats, at.distance_to_finish_m, 0, min(distance_to_finish_m, layout.margin_to_announce_finish_m))
    _put(floats, at.speed_m_s, 0, math.sqrt(speed_squared))
    for i in range(len(floats)):
        are_finite &= math.isfinite(floats[i])
    return are_finite


@_compiled
def _progress(
    race: int, row: int, head_f32: npt.NDArray[Any], zones: VirtualCheckpoints, memory: ObserverState
) -> tuple[int, float]:
    position_m = head_f32[_POSITION : _POSITION + 3]
    zone_idx = move_zone(memory.zone_idx[race], position_m, zones)
    meters = meters_along_line(zone_idx, position_m, zones)
    memory.zone_idx[race] = zone_idx
    memory.furthest_zone_idx[race] = max(memory.furthest_zone_idx[race], zone_idx)
    furthest_m = memory.furthest_m[race]
    furthest_m[row] = meters if row == 0 else max(furthest_m[row - 1], meters)
    return zone_idx, meters


@_inner
def _find_ranges(
    race: int,
    row: int,
    head_f32: npt.NDArray[Any],
    zone_idx: int,
    road: KnownRoad,
    layout: KernelLayout,
    columns: StateColumns,
) -> None:
    """Measure the ranges on the track, or copy the last ones until the picture is measured."""
    block = layout.at.range_finder_m
    floats = columns.floats[race, row, block : block + N_BEAMS]
    if layout.measures_on_track:
        measure_ranges(floats, head_f32, zone_idx, road, layout.range_finder_reach_m)
    else:
        for beam in range(N_BEAMS):
            floats[beam] = columns.floats[race, row - 1, block + beam] if row > 0 else 0.0


@_inner
def _length(vector: npt.NDArray[np.float32]) -> float:
    squared = 0.0
    for axis in range(3):
        squared += np.float64(vector[axis]) ** 2
    return math.sqrt(squared)


@_compiled
def observe(
    races: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    heads_f32: npt.NDArray[np.float32],
    heads_i32: npt.NDArray[np.int32],
    zones: VirtualCheckpoints,
    road: KnownRoad,
    layout: KernelLayout,
    memory: ObserverState,
    columns: StateColumns,
    verdicts: npt.NDArray[np.int64],
) -> None:
    """Write the states for races (n,) on one map into `columns` (without race times), `memory` and `verdicts` (K,).

    `rows` (K,) are the newest states' rows, `heads` (K, words) the state blob heads. A verdict is `judge`'s, or
    `NOT_FINITE`.
    """
    for i in range(len(races)):
        race = races[i]
        row = rows[race]
        head_f32 = heads_f32[race]
        head_i32 = heads_i32[race]
        zone_idx, meters = _progress(race, row, head_f32, zones, memory)
        since_gear_change = memory.actions_since_gear_change[race]
        if head_i32[_GEARBOX_STATE] == 0 or since_gear_change == BEFORE_FIRST_STATE:
            since_gear_change = 0.0
        else:
            since_gear_change += 1.0
        memory.actions_since_gear_change[race] = since_gear_change
        if layout.at.range_finder_m != ABSENT:
            _find_ranges(race, row, head_f32, zone_idx, road, layout, columns)
        start = layout.at.road_ahead
        if start != ABSENT:
            ahead = columns.floats[race, row, start : start + layout.n_road_floats]
            observe_road(ahead, zone_idx, layout.zone_stride, road)
        are_finite = _fill_features(
            columns.floats[race, row, : layout.n_floats],
            columns.car[race, row],
            head_f32,
            head_i32,
            memory.previous_actions[race],
            since_gear_change,
            zone_idx,
            zones.border_distance_m[zones.last_zone_idx] - meters,
            zones.centers_m,
            layout,
        )
        columns.zone_idx[race, row] = zone_idx
        columns.meters[race, row] = meters
        for axis in range(3):
            columns.position_m[race, row, axis] = head_f32[_POSITION + axis]
        columns.speed_m_s[race, row] = _length(head_f32[_VELOCITY : _VELOCITY + 3])
        verdict, memory.window_row[race] = judge(
            columns.race_time_ms[race],
            memory.furthest_m[race],
            row,
            memory.window_row[race],
            memory.rules[race],
        )
        verdicts[race] = verdict if are_finite else NOT_FINITE
