"""The float part of the observation: which floats there are, and how they are made from a state of the game.

`ObservationLayout` owns every float by name: its place, unit, meaning, mean and standard deviation. Networks, rewards
and the table in docs/observation.rst all derive from it. `FeatureBuilder` fills the vector. The full-size layout has
184 floats (reference/observation.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from trackmania_rl.protocol.state_blob import (
    HEAD_BYTES,
    MATERIAL_COUNT,
    MATERIAL_ID_MASK,
    STATE_HEAD_DTYPE,
    WHEEL_DTYPE,
    StateBlobError,
    StateView,
)
from trackmania_rl.settings import KeyState, ObservationSettings, SettingsError
from trackmania_rl.track.virtual_checkpoints import VirtualCheckpoints, ZoneTracker

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
)
"""Columns of `rollout_results["car_gear_and_wheels"]`."""

BEFORE_FIRST_STATE: Final = -1.0
"""What `count_gear_change` is told at a race's first state."""


@dataclass(frozen=True)
class ObservationBlock:
    """Neighbouring floats of one kind.

    Attributes:
        name: also the key in `state_normalization`.
        start: index of the block's first float.
        stop: one more than the index of its last.
        unit: unit and range.
        description: what it is, in one sentence.
        mean: subtracted by the network, one number for each float.
        std: then divided by, one number for each float.
    """

    name: str
    start: int
    stop: int
    unit: str
    description: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def slice(self) -> slice:
        """Where the block lies in the vector."""
        return slice(self.start, self.stop)


class ObservationLayout:
    """All floats of the observation in their order.

    Attributes:
        blocks: in the vector's order, without gaps.
        float_input_dim: F, the vector's length.
        mean: (F,) float32, read-only.
        std: (F,) float32, read-only, positive.
        n_previous_actions: how many actions the vector remembers.
        n_zone_centers: how many zone centres it holds.
        zone_stride: how many zones lie from one of them to the next.
        margin_to_announce_finish_m: largest distance to the finish that it shows.
    """

    def __init__(self, blocks: Sequence[ObservationBlock], settings: ObservationSettings) -> None:
        self.blocks = tuple(blocks)
        self.float_input_dim = self.blocks[-1].stop
        self.mean = _read_only(np.array([x for block in blocks for x in block.mean], dtype=np.float32))
        self.std = _read_only(np.array([x for block in blocks for x in block.std], dtype=np.float32))
        self.n_previous_actions = settings.n_prev_actions_in_inputs
        self.n_zone_centers = settings.n_zone_centers_in_inputs
        self.zone_stride = settings.one_every_n_zone_centers_in_inputs
        self.margin_to_announce_finish_m = settings.margin_to_announce_finish_m
        self._by_name = {block.name: block for block in blocks}

    @classmethod
    def from_settings(cls, settings: ObservationSettings) -> ObservationLayout:
        """Lay out the blocks for these settings.

        Raises:
            SettingsError: if `state_normalization` lacks a block, has an unknown one, or has another number of entries
                than a block has floats; or if the line is extended too little for the zones ahead at the finish.
        """
        rows = _block_rows(settings)
        statistics = settings.state_normalization
        names = {name for name, *_ in rows}
        if names != statistics.keys():
            missing, unknown = sorted(names - statistics.keys()), sorted(statistics.keys() - names)
            raise SettingsError(f"state_normalization: missing blocks {missing}, unknown blocks {unknown}")
        blocks = []
        start = 0
        for name, length, unit, description in rows:
            mean, std = statistics[name]
            if (len(mean), len(std)) != (length, length):
                raise SettingsError(
                    f'state_normalization["{name}"] has {len(mean)} means and {len(std)} standard deviations; '
                    f"the block has {length} floats with these settings of the observation"
                )
            blocks.append(ObservationBlock(name, start, start + length, unit, description, mean, std))
            start += length
        needed = (settings.n_zone_centers_in_inputs - 1) * settings.one_every_n_zone_centers_in_inputs
        there_are = settings.n_zone_centers_extrapolate_after_end_of_map
        if there_are < needed:
            raise SettingsError(
                f"n_zone_centers_extrapolate_after_end_of_map = {there_are}: at the finish the observation looks "
                f"{needed} zones ahead (n_zone_centers_in_inputs, one_every_n_zone_centers_in_inputs); at least as "
                "many are needed"
            )
        return cls(blocks, settings)

    def __getitem__(self, name: str) -> slice:
        """The place of a block in the vector: `floats[..., layout["velocity_m_s"]]`."""
        return self._by_name[name].slice

    def index(self, name: str) -> int:
        """The place of a block of one float.

        Raises:
            ValueError: if the block has more than one.
        """
        block = self._by_name[name]
        if block.stop - block.start != 1:
            raise ValueError(f"block {name} has {block.stop - block.start} floats; use its slice")
        return block.start

    def rst_table(self) -> str:
        """The blocks as a reStructuredText table, for docs/observation.rst."""
        lines = [".. list-table::", "   :header-rows: 1", "", "   * - index", "     - name", "     - what"]
        lines += ["     - unit, range", "     - mean", "     - standard deviation"]
        for block in self.blocks:
            index = str(block.start) if block.stop == block.start + 1 else f"{block.start}-{block.stop - 1}"
            cells = (
                f"``{block.name}``",
                block.description,
                block.unit,
                _range_text(block.mean),
                _range_text(block.std),
            )
            lines += [f"   * - {index}", *(f"     - {cell}" for cell in cells)]
        return "\n".join(lines) + "\n"


class Features(NamedTuple):
    """What one state of the game looks like to agent, rewards and statistics.

    Attributes:
        floats: (F,) float32, a fresh array.
        car: (len(CAR_COLUMNS),) float32, a fresh array.
        zone_idx: the current zone.
        meters: metres along the line, see `ZoneTracker.update`.
    """

    floats: npt.NDArray[np.float32]
    car: npt.NDArray[np.float32]
    zone_idx: int
    meters: float


class FeatureMemory(NamedTuple):
    """What the observation remembers of a race at one of its states, beside that state itself.

    Attributes:
        zone_idx: the current zone.
        actions_since_gear_change: as the block says.
        previous_actions: (n, 4) float32, as the vector says them, oldest first.
    """

    zone_idx: int
    actions_since_gear_change: float
    previous_actions: npt.NDArray[np.float32]

    @property
    def gear_change_count_before(self) -> float:
        """What `count_gear_change` said of the state before, where this race begins with this state."""
        return self.actions_since_gear_change + BEFORE_FIRST_STATE  # one less; for 0 it is as at a first state


class FeatureBuilder:
    """Makes the floats of one race's states, remembering what a single state does not tell.

    The memory is the last actions, how long the gear has been changing, and the current zone. One builder serves one
    game; it costs some ten microseconds a state.

    Args:
        layout: the floats to make.
        inputs: the keys of every action.
        forward_action: stands for every action before the first one.
    """

    def __init__(self, layout: ObservationLayout, inputs: Sequence[KeyState], forward_action: int) -> None:
        self._layout = layout
        self._look = FeatureLook.from_layout(layout)
        self._keys_of_action = keys_of_actions(inputs)
        self._forward_action = forward_action
        self._previous_actions = np.empty((layout.n_previous_actions, len(KEYS_OF_AN_ACTION)), dtype=np.float32)
        self.tracker: ZoneTracker | None = None

    def reset(self, zones: VirtualCheckpoints, memory: FeatureMemory | None = None) -> None:
        """Begin a race on a map with these zones.

        Args:
            zones: of the map.
            memory: of the state in which the race begins, where it is not the start; that state is built next.
        """
        self.tracker = ZoneTracker(zones, zones.first_zone_idx if memory is None else memory.zone_idx)
        if memory is None:
            self._previous_actions[:] = self._keys_of_action[self._forward_action]
        else:
            self._previous_actions[:] = memory.previous_actions
        self._actions_since_gear_change = BEFORE_FIRST_STATE if memory is None else memory.gear_change_count_before

    def memory(self) -> FeatureMemory:
        """What is remembered at the state built last.

        Raises:
            RuntimeError: before the first `reset`.
        """
        if self.tracker is None:
            raise RuntimeError("FeatureBuilder.memory needs a reset first")
        return FeatureMemory(self.tracker.zone_idx, self._actions_since_gear_change, self._previous_actions.copy())

    def record_action(self, action: int) -> None:
        """Remember the action that leads from the last state to the next."""
        self._previous_actions[:-1] = self._previous_actions[1:]
        self._previous_actions[-1] = self._keys_of_action[action]

    def build(self, state: StateView) -> Features:
        """Make the floats of the race's next state.

        Raises:
            StateBlobError: if the state holds numbers that are not finite.
            RuntimeError: before the first `reset`.
        """
        if self.tracker is None:
            raise RuntimeError("FeatureBuilder.build needs a reset first: no map's zones are known")
        meters = self.tracker.update(state.position_m)
        words = np.frombuffer(state.blob, dtype="<i4", count=HEAD_BYTES // 4)
        floats = np.empty(self._layout.float_input_dim, dtype=np.float32)
        car = np.empty(len(CAR_COLUMNS), dtype=np.float32)
        self._actions_since_gear_change = count_gear_change(state.gearbox_state, self._actions_since_gear_change)
        zones = self.tracker.checkpoints
        are_finite = fill_features(
            floats,
            car,
            words.view("<f4"),
            words,
            self._previous_actions.reshape(-1),
            self._actions_since_gear_change,
            self.tracker.zone_idx,
            zones.finish_m - meters,
            zones.centers_m,
            self._look,
        )
        if not are_finite:
            broken = [b.name for b in self._layout.blocks if not np.isfinite(floats[b.slice]).all()]
            raise StateBlobError(f"the game sent a state with numbers that are not finite, in {', '.join(broken)}")
        return Features(floats, car, self.tracker.zone_idx, meters)


def keys_of_actions(inputs: Sequence[KeyState]) -> npt.NDArray[np.float32]:
    """(A, 4) float32, what the vector says of each action: 0 or 1 for each of `KEYS_OF_AN_ACTION`."""
    return np.array([[getattr(keys, key) for key in KEYS_OF_AN_ACTION] for keys in inputs], dtype=np.float32)


class FeatureOffsets(NamedTuple):
    """Index of each block's first float; fields are the blocks' names in the vector's order."""

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


class FeatureLook(NamedTuple):
    """What the compiled functions need to know of a layout; numba takes it as it is.

    Attributes:
        at: index of each block's first float.
        n_zone_centers: how many zone centres the vector holds.
        zone_stride: how many zones lie from one of them to the next.
        margin_to_announce_finish_m: largest distance to the finish that it shows.
    """

    at: FeatureOffsets
    n_zone_centers: int
    zone_stride: int
    margin_to_announce_finish_m: float

    @classmethod
    def from_layout(cls, layout: ObservationLayout) -> FeatureLook:
        """What a layout says of these."""
        return cls(
            at=FeatureOffsets(**{block.name: block.start for block in layout.blocks}),
            n_zone_centers=layout.n_zone_centers,
            zone_stride=layout.zone_stride,
            margin_to_announce_finish_m=layout.margin_to_announce_finish_m,
        )


def _block_rows(settings: ObservationSettings) -> tuple[tuple[str, int, str, str], ...]:
    """(name, number of floats, unit and range, description) of every block in the vector's order."""
    n_actions, n_zones = settings.n_prev_actions_in_inputs, settings.n_zone_centers_in_inputs
    zone_step_m = settings.one_every_n_zone_centers_in_inputs * settings.distance_between_zone_centers_m
    margin_m = settings.margin_to_announce_finish_m
    wheels = "front left, front right, rear right, rear left"
    car_frame = "in the car's frame (x left, y up, z forward)"
    return (
        ("mini_race_time_actions", 1, "actions", "time elapsed in the mini-race; 0 while playing, set when sampled"),
        (
            "previous_actions",
            n_actions * len(KEYS_OF_AN_ACTION),
            "0/1",
            f"the {n_actions} previous actions, oldest first: {', '.join(KEYS_OF_AN_ACTION)} each; forward before the "
            "first action",
        ),
        ("wheel_is_sliding", N_WHEELS, "0/1", f"wheel is sliding: {wheels}"),
        ("wheel_has_ground_contact", N_WHEELS, "0/1", "wheel touches the ground"),
        ("wheel_damper_absorb_m", N_WHEELS, "m, about 0.005 to 0.15", "how far the wheel's damper is pressed in"),
        ("gearbox_state", 1, "0/1, 2 at the start", "the gear is changing"),
        ("gear", 1, "0 to 5", "gear, 0 is reverse"),
        ("engine_rpm", 1, "1/min, 0 to about 11000", "engine speed"),
        ("actions_since_gear_change", 1, "actions, up to about 28", "actions since the gear change began, 0 when none"),
        (
            "wheel_ground_group",
            N_WHEELS * len(GROUND_GROUPS),
            "0/1",
            f"for each wheel, one-hot, the ground below it: {', '.join(GROUND_GROUPS)}",
        ),
        ("angular_velocity_rad_s", 3, "rad/s", f"angular velocity {car_frame}"),
        ("velocity_m_s", 3, "m/s", f"linear velocity {car_frame}"),
        ("world_up", 3, "1", f"the world's upward direction {car_frame}"),
        (
            "zone_centers_m",
            3 * n_zones,
            "m",
            f"{n_zones} virtual checkpoints, one every {zone_step_m:g} m from the current one on: position {car_frame}",
        ),
        ("distance_to_finish_m", 1, f"m, at most {margin_m:g}", "distance left to the finish along the line"),
        ("is_freewheeling", 1, "0/1", "the engine is cut off until the next checkpoint"),
    )


def _word(dtype: np.dtype[np.void], name: str) -> int:
    """Index of a field of the state blob, counted in 32-bit words, the size of all fields used here."""
    assert dtype.fields is not None
    return dtype.fields[name][1] // 4


def _read_only(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    array.setflags(write=False)
    return array


def _range_text(numbers: tuple[float, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


# Constants of the format, which numba compiles into the kernel.
_ROTATION = _word(STATE_HEAD_DTYPE, "rotation")
POSITION_WORD = _word(STATE_HEAD_DTYPE, "position_m")
VELOCITY_WORD = _word(STATE_HEAD_DTYPE, "velocity_m_s")
_ANGULAR_VELOCITY = _word(STATE_HEAD_DTYPE, "angular_velocity_rad_s")
GEARBOX_STATE_WORD = _word(STATE_HEAD_DTYPE, "gearbox_state")
_GEAR = _word(STATE_HEAD_DTYPE, "engine_gear")
_RPM = _word(STATE_HEAD_DTYPE, "engine_actual_rpm")
_FREEWHEELING = _word(STATE_HEAD_DTYPE, "is_freewheeling")
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


@njit(cache=True)
def count_gear_change(gearbox_state: int, before: float) -> float:
    """Actions since the gear change began: 0 while no gear changes and at the first state; else one more than before.

    Args:
        gearbox_state: 0 while no gear changes.
        before: what this function said of the state before, `BEFORE_FIRST_STATE` at a race's first state.
    """
    return 0.0 if gearbox_state == 0 or before == BEFORE_FIRST_STATE else before + 1.0


@njit(cache=True)
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
    look: FeatureLook,
) -> bool:
    """Write every block of one state.

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
        look: of the layout.

    Returns:
        Whether all floats are finite numbers.
    """
    at = look.at
    floats[at.mini_race_time_actions] = 0.0
    for key in range(len(previous_actions)):  # a slice assignment would take seconds to compile
        floats[at.previous_actions + key] = previous_actions[key]
    for wheel in range(N_WHEELS):
        word = _WHEELS + wheel * _WORDS_PER_WHEEL
        material = head_i32[word + _MATERIAL] & MATERIAL_ID_MASK
        car[wheel] = head_i32[word + _SLIDING] != 0
        car[N_WHEELS + wheel] = head_i32[word + _GROUND_CONTACT] != 0
        car[2 * N_WHEELS + wheel] = head_f32[word + _DAMPER]
        car[3 * N_WHEELS + wheel] = material
        floats[at.wheel_is_sliding + wheel] = car[wheel]
        floats[at.wheel_has_ground_contact + wheel] = car[N_WHEELS + wheel]
        floats[at.wheel_damper_absorb_m + wheel] = car[2 * N_WHEELS + wheel]
        group = _GROUND_GROUP_OF_MATERIAL[material] if material < MATERIAL_COUNT else -1
        for choice in range(_N_GROUND_GROUPS):
            floats[at.wheel_ground_group + wheel * _N_GROUND_GROUPS + choice] = choice == group
    engine = 4 * N_WHEELS
    car[engine] = floats[at.gearbox_state] = head_i32[GEARBOX_STATE_WORD]
    car[engine + 1] = floats[at.gear] = head_i32[_GEAR]
    car[engine + 2] = floats[at.engine_rpm] = head_f32[_RPM]
    car[engine + 3] = floats[at.actions_since_gear_change] = actions_since_gear_change
    car[engine + 4] = floats[at.is_freewheeling] = head_i32[_FREEWHEELING] != 0

    rotation = head_f32[_ROTATION : _ROTATION + 9]  # car to world, row-major: column i is the car's axis i in the world
    position = head_f32[POSITION_WORD : POSITION_WORD + 3]
    for axis in range(3):
        x, y, z = float(rotation[axis]), float(rotation[3 + axis]), float(rotation[6 + axis])
        spin, speed = _ANGULAR_VELOCITY, VELOCITY_WORD
        floats[at.angular_velocity_rad_s + axis] = x * head_f32[spin] + y * head_f32[spin + 1] + z * head_f32[spin + 2]
        floats[at.velocity_m_s + axis] = x * head_f32[speed] + y * head_f32[speed + 1] + z * head_f32[speed + 2]
        floats[at.world_up + axis] = y
        for i in range(look.n_zone_centers):
            center = centers_m[zone_idx + i * look.zone_stride]
            floats[at.zone_centers_m + 3 * i + axis] = (
                x * (center[0] - position[0]) + y * (center[1] - position[1]) + z * (center[2] - position[2])
            )
    floats[at.distance_to_finish_m] = min(distance_to_finish_m, look.margin_to_announce_finish_m)
    are_finite = True
    for i in range(len(floats)):
        are_finite &= math.isfinite(floats[i])
    return are_finite
