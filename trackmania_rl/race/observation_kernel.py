"""The loop that writes the observation's floats from a state of the game, compiled, for one game and for many alike.

`features` says what the floats are.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trackmania_rl.compiled import compiler_for
from trackmania_rl.protocol import state_blob
from trackmania_rl.protocol.state_blob import MATERIAL_COUNT, MATERIAL_ID_MASK, STATE_HEAD_DTYPE, WHEEL_DTYPE

_compiled = compiler_for("feature_kernel", [Path(__file__), Path(state_blob.__file__)])

ABSENT: Final = -1
"""Offset of a block that the configuration leaves out."""

N_WHEELS: Final = 4
KEYS_OF_AN_ACTION: Final = ("accelerate", "brake", "left", "right")
"""The order of one previous action's four floats."""

GROUND_GROUPS: Final[dict[str, tuple[int, ...]]] = {
    "asphalt-like": (0, 1, 16, 18, 19),
    "grass-like": (2, 20),
    "dirt-like": (5, 6, 8, 17),
    "turbo": (7, 26),
}
"""Material ids of the grounds that the agent tells apart; any other material is in none of the groups."""

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
"""Columns of `rollout_results["car_gear_and_wheels"]`."""

# Where the car's columns begin; numba compiles them into the kernel.
_SLIDING_COLUMN = CAR_COLUMNS.index("wheel_0_is_sliding")
_GROUND_CONTACT_COLUMN = CAR_COLUMNS.index("wheel_0_has_ground_contact")
_DAMPER_COLUMN = CAR_COLUMNS.index("wheel_0_damper_absorb_m")
_MATERIAL_COLUMN = CAR_COLUMNS.index("wheel_0_material_id")
_GEARBOX_STATE_COLUMN = CAR_COLUMNS.index("gearbox_state")
_GEAR_COLUMN = CAR_COLUMNS.index("gear")
_RPM_COLUMN = CAR_COLUMNS.index("engine_rpm")
_GEAR_CHANGE_COLUMN = CAR_COLUMNS.index("actions_since_gear_change")
_FREEWHEELING_COLUMN = CAR_COLUMNS.index("is_freewheeling")
TOUCHES_WALL_COLUMN = CAR_COLUMNS.index("touches_wall")

BEFORE_FIRST_STATE: Final = -1.0
"""What `count_gear_change` is told at a race's first state."""


class FeatureOffsets(NamedTuple):
    """Index of each block's first float, or `ABSENT`; fields are the blocks' names in the vector's order."""

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
    """What the compiled functions need to know of a layout; numba takes it as it is.

    Attributes:
        at: index of each block's first float.
        n_zone_centers: how many zone centres the vector holds.
        zone_stride: how many zones lie from one of them to the next.
        margin_to_announce_finish_m: largest distance to the finish that it shows.
        measures_on_track: whether the range finder measures on the track; else pictures tell, if it is there at all.
        range_finder_reach_m: how far it sees.
        n_road_floats: length of the block that tells the road ahead.
        n_floats: length of the vector.
    """

    at: FeatureOffsets
    n_zone_centers: int
    zone_stride: int
    margin_to_announce_finish_m: float
    measures_on_track: bool
    range_finder_reach_m: float
    n_road_floats: int
    n_floats: int


def _word(dtype: np.dtype[np.void], name: str) -> int:
    """Index of a field of the state blob, counted in 32-bit words, the size of all fields used here."""
    assert dtype.fields is not None
    return dtype.fields[name][1] // 4


# Constants of the format, which numba compiles into the kernel.
_ROTATION = _word(STATE_HEAD_DTYPE, "rotation")
POSITION_WORD = _word(STATE_HEAD_DTYPE, "position_m")
VELOCITY_WORD = _word(STATE_HEAD_DTYPE, "velocity_m_s")
_ANGULAR_VELOCITY = _word(STATE_HEAD_DTYPE, "angular_velocity_rad_s")
GEARBOX_STATE_WORD = _word(STATE_HEAD_DTYPE, "gearbox_state")
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


@_compiled
def count_gear_change(gearbox_state: int, before: float) -> float:
    """Actions since the gear change began: 0 while no gear changes and at the first state; else one more than before.

    Args:
        gearbox_state: 0 while no gear changes.
        before: what this function said of the state before, `BEFORE_FIRST_STATE` at a race's first state.
    """
    return 0.0 if gearbox_state == 0 or before == BEFORE_FIRST_STATE else before + 1.0


@_compiled
def _put(floats: npt.NDArray[np.float32], block: int, place: int, value: float) -> None:
    """Write one float of a block, if the vector has that block."""
    if block >= 0:
        floats[block + place] = value


@_compiled
def fill_features(
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
    """Write every block of one state but the range finder and the road ahead, whose floats must have been written.

    Args:
        floats: (F,) written.
        car: (len(CAR_COLUMNS),) written.
        head_f32: the state blob's head as 32-bit floats.
        head_i32: the same memory as 32-bit integers.
        previous_actions: flat, oldest action first.
        actions_since_gear_change: as the block says.
        zone_idx: the current zone.
        distance_to_finish_m: along the line.
        centers_m: (Z, 3) zone centres, world axes.
        layout: where the floats are.

    Returns:
        Whether all floats are finite numbers, and the car's place and motion.
    """
    at = layout.at
    floats[at.mini_race_time_actions] = 0.0
    for key in range(len(previous_actions)):  # a slice assignment would take seconds to compile
        _put(floats, at.previous_actions, key, previous_actions[key])
    for wheel in range(N_WHEELS):
        word = _WHEELS + wheel * _WORDS_PER_WHEEL
        material = head_i32[word + _MATERIAL] & MATERIAL_ID_MASK
        is_sliding, has_contact = head_i32[word + _SLIDING] != 0, head_i32[word + _GROUND_CONTACT] != 0
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
    car[_GEARBOX_STATE_COLUMN] = head_i32[GEARBOX_STATE_WORD]
    car[_GEAR_COLUMN] = head_i32[_GEAR]
    car[_RPM_COLUMN] = head_f32[_RPM]
    car[_GEAR_CHANGE_COLUMN] = actions_since_gear_change
    car[_FREEWHEELING_COLUMN] = head_i32[_FREEWHEELING] != 0
    car[TOUCHES_WALL_COLUMN] = head_i32[_LATERAL_CONTACT] != 0
    _put(floats, at.gearbox_state, 0, car[_GEARBOX_STATE_COLUMN])
    _put(floats, at.gear, 0, car[_GEAR_COLUMN])
    _put(floats, at.engine_rpm, 0, car[_RPM_COLUMN])
    _put(floats, at.actions_since_gear_change, 0, car[_GEAR_CHANGE_COLUMN])
    _put(floats, at.is_freewheeling, 0, car[_FREEWHEELING_COLUMN])

    rotation = head_f32[_ROTATION : _ROTATION + 9]  # car to world, row-major: column i is the car's axis i in the world
    position = head_f32[POSITION_WORD : POSITION_WORD + 3]
    spin, velocity = _ANGULAR_VELOCITY, VELOCITY_WORD
    speed_squared = 0.0
    are_finite = True
    for axis in range(3):
        x, y, z = float(rotation[axis]), float(rotation[3 + axis]), float(rotation[6 + axis])
        speed_squared += float(head_f32[velocity + axis]) ** 2
        turning = x * head_f32[spin] + y * head_f32[spin + 1] + z * head_f32[spin + 2]
        moving = x * head_f32[velocity] + y * head_f32[velocity + 1] + z * head_f32[velocity + 2]
        _put(floats, at.angular_velocity_rad_s, axis, turning)
        _put(floats, at.velocity_m_s, axis, moving)
        _put(floats, at.world_up, axis, y)
        are_finite &= math.isfinite(turning + moving + position[axis])  # also where the vector does not show them
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
