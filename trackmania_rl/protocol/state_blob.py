"""The game's state blob, read and written by offset with numpy.

A blob is a fixed head (STATE_HEAD_DTYPE), one int32 per checkpoint in a lap, the checkpoint time count, and a pair
(time, stunt score) per checkpoint in all laps. Offsets are from ``tminterface.structs`` 1.0.2, the tests' oracle,
which is a thousand times slower.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.protocol.messages import INT32, MAX_PAYLOAD_BYTES

BLOB_FIXED_BYTES: Final = 8356
"""Blob size without checkpoints."""

CHECKPOINT_STATE_BYTES: Final = 4
CHECKPOINT_TIME_BYTES: Final = 8
NOT_PASSED: Final = -1
"""Time for a checkpoint not passed yet."""

RUN_CONTEXT: Final = 1
ALL_PARTS_PRESENT: Final = 0xFF
"""Flags in a complete blob. Without bit 7 the race time reads as 0."""

EVENT_TIME_ORIGIN_MS: Final = 100_010
"""An input event's time minus the script time."""

PRIVATE_WORDS: Final = 154
"""The game's private part, size in 32-bit words."""

MATERIAL_ID_MASK: Final = 0xFFFF
MATERIAL_COUNT: Final = 31


class InputSlot(IntEnum):
    """Index in the head's `input_events`: pairs (script time + EVENT_TIME_ORIGIN_MS, data).

    The data's low 24 bits are the value: 0 or 1 for keys, a negated signed number for STEER and GAS.
    """

    RACE_RUNNING = 0
    RACE_FINISH = 1
    ACCELERATE = 2
    BRAKE = 3
    LEFT = 4
    RIGHT = 5
    STEER = 6
    GAS = 7


_ANALOG_BITS: Final = 24
_ANALOG_MASK: Final = (1 << _ANALOG_BITS) - 1


def encode_analog(value: int) -> int:
    """Convert -65536 (left) .. 65536 (right) to an input event's data."""
    return -value & _ANALOG_MASK


def decode_analog(data: int) -> int:
    """Convert an input event's data to -65536 (left) .. 65536 (right)."""
    data &= _ANALOG_MASK
    return (1 << _ANALOG_BITS) - data if data >> (_ANALOG_BITS - 1) else -data


def _dtype(size_bytes: int, fields: dict[str, tuple[int, Any]]) -> np.dtype[np.void]:
    """Return a structured dtype from name -> (offset, format). Bytes between stay unnamed."""
    return np.dtype(
        {
            "names": list(fields),
            "offsets": [offset for offset, _ in fields.values()],
            "formats": [format_ for _, format_ in fields.values()],
            "itemsize": size_bytes,
        }
    )


WHEEL_DTYPE: Final = _dtype(
    764,
    {
        "is_steerable": (4, "<i4"),
        "offset_from_vehicle_m": (168, ("<f4", (3,))),
        "damper_absorb_m": (180, "<f4"),
        "has_ground_contact": (292, "<i4"),
        "contact_material_id": (296, "<i4"),
        "is_sliding": (300, "<i4"),
        "ground_contact_count": (320, "<i4"),
    },
)
"""One wheel. Order: front-left, front-right, rear-right, rear-left. Flags are 32-bit integers."""

STATE_HEAD_DTYPE: Final = _dtype(
    8352,
    {
        "version": (0, "<u4"),
        "context_mode": (4, "<u4"),
        "flags": (8, "<u4"),
        "timers_ms": (12, ("<i4", (53,))),
        "quaternion": (672, ("<f4", (4,))),  # w, x, y, z
        "rotation": (688, ("<f4", (3, 3))),  # car to world
        "position_m": (724, ("<f4", (3,))),
        "velocity_m_s": (736, ("<f4", (3,))),
        "angular_velocity_rad_s": (760, ("<f4", (3,))),
        "private": (1032, ("<u4", (PRIVATE_WORDS,))),  # the dynamics part's unnamed rest
        "input_gas": (1728, "<f4"),
        "input_brake": (1732, "<f4"),
        "input_steer": (1736, "<f4"),
        "max_linear_speed_m_s": (2384, "<f4"),
        "gearbox_state": (2388, "<i4"),
        "engine_max_rpm": (3084, "<f4"),
        "engine_clamped_rpm": (3108, "<f4"),
        "engine_actual_rpm": (3112, "<f4"),
        "engine_slide_factor": (3116, "<f4"),
        "engine_rear_gear": (3124, "<i4"),
        "engine_gear": (3128, "<i4"),
        "has_any_lateral_contact": (3148, "<i4"),
        "last_has_any_lateral_contact_time_ms": (3152, "<i4"),
        "turning_rate": (3160, "<f4"),
        "turbo_boost_factor": (3172, "<f4"),
        "is_freewheeling": (3196, "<i4"),
        "is_sliding": (3224, "<i4"),
        "current_local_speed_m_s": (3452, ("<f4", (3,))),
        "wheels": (3816, (WHEEL_DTYPE, (4,))),
        "race_time_ms": (7892, "<i4"),
        "completed_count": (7916, "<u4"),
        "completed_target": (7920, "<u4"),
        "checkpoints_of_lap": (8020, "<u4"),
        "checkpoints_of_race": (8024, "<u4"),
        "lap": (8028, "<u4"),
        "race_finished": (8032, "<i4"),
        "display_speed_km_h": (8036, "<i4"),
        "finish_not_passed": (8040, "<i4"),
        "countdown_ms": (8120, "<i4"),
        "input_events": (8276, ("<u4", (8, 2))),  # [InputSlot] -> (time, data)
        "checkpoint_state_count": (8348, "<i4"),
    },
)
"""A blob's fixed head. Unnamed bytes are zero in the simulated game."""

HEAD_BYTES: Final = STATE_HEAD_DTYPE.itemsize


class StateBlobError(ValueError):
    """A blob with a wrong size, count or number."""


class CheckpointLayout:
    """Layout for a blob's checkpoint arrays.

    Attributes:
        state_count: checkpoints in one lap, the finish included.
        time_count: checkpoints in all laps, the finish included.
        times_offset: byte offset where the first (time, stunt score) pair begins.
    """

    __slots__ = ("state_count", "time_count", "times_offset")

    def __init__(self, state_count: int, time_count: int) -> None:
        self.state_count = state_count
        self.time_count = time_count
        self.times_offset = BLOB_FIXED_BYTES + CHECKPOINT_STATE_BYTES * state_count

    @property
    def blob_bytes(self) -> int:
        """Blob size."""
        return self.times_offset + CHECKPOINT_TIME_BYTES * self.time_count

    @classmethod
    def of_blob(cls, blob: bytes | bytearray | memoryview) -> CheckpointLayout:
        """Read a blob's layout. Raise `StateBlobError` if the counts do not match the size."""
        size = len(blob)
        if not BLOB_FIXED_BYTES <= size <= MAX_PAYLOAD_BYTES:
            raise StateBlobError(f"state blob of {size} bytes; {BLOB_FIXED_BYTES} to {MAX_PAYLOAD_BYTES} are possible")
        state_count = INT32.unpack_from(blob, HEAD_BYTES - INT32.size)[0]
        time_count_offset = HEAD_BYTES + CHECKPOINT_STATE_BYTES * state_count
        if not HEAD_BYTES <= time_count_offset <= size - INT32.size:
            raise StateBlobError(f"state blob of {size} bytes claims {state_count} checkpoint states")
        layout = cls(state_count, INT32.unpack_from(blob, time_count_offset)[0])
        if layout.blob_bytes != size:
            raise StateBlobError(
                f"state blob of {size} bytes claims {state_count} checkpoint states and {layout.time_count} times, "
                f"which make {layout.blob_bytes} bytes"
            )
        return layout


class StateView:
    """Named access to a state blob. Arrays share the blob's memory.

    Raises:
        StateBlobError: if the blob's counts do not match the size.
    """

    __slots__ = ("_head", "_layout", "blob")

    def __init__(self, blob: bytes | bytearray | memoryview) -> None:
        self._layout = CheckpointLayout.of_blob(blob)
        self._head = np.frombuffer(blob, STATE_HEAD_DTYPE, count=1)[0]
        self.blob = blob

    @property
    def head(self) -> np.void:
        """The fixed head, one record of STATE_HEAD_DTYPE."""
        return self._head

    @property
    def race_time_ms(self) -> int:
        """Race time; negative in the countdown."""
        return int(self._head["race_time_ms"])

    @property
    def position_m(self) -> npt.NDArray[np.float32]:
        """(3,) car origin's world position."""
        return self._head["position_m"]

    @property
    def velocity_m_s(self) -> npt.NDArray[np.float32]:
        """(3,) linear velocity, world axes."""
        return self._head["velocity_m_s"]

    @property
    def gear(self) -> int:
        """1 to 5, 0 for reverse."""
        return int(self._head["engine_gear"])

    @property
    def checkpoint_times_ms(self) -> npt.NDArray[np.int32]:
        """(n,) checkpoint times in all laps, the finish last; NOT_PASSED where not passed."""
        pairs = np.frombuffer(
            self.blob, "<i4", count=2 * self._layout.time_count, offset=self._layout.times_offset
        ).reshape(-1, 2)
        return pairs[:, 0]

    @property
    def times_passed_ms(self) -> tuple[int, ...]:
        """Passed checkpoints' times."""
        return tuple(time_ms for time_ms in self.checkpoint_times_ms.tolist() if time_ms >= 0)


def with_last_checkpoint_time_cleared(blob: bytes | bytearray) -> bytes:
    """Copy a finish's blob as an unfinished race. Rewinding to it keeps the game in the race.

    Raises:
        StateBlobError: if the blob is damaged or has no checkpoint time.
    """
    layout = CheckpointLayout.of_blob(blob)
    if layout.time_count == 0:
        raise StateBlobError("state blob without checkpoint times: there is no finish to undo")
    copy = bytearray(blob)
    INT32.pack_into(copy, layout.blob_bytes - CHECKPOINT_TIME_BYTES, NOT_PASSED)
    return bytes(copy)


def new_state_blob(state_count: int, time_count: int) -> bytearray:
    """Return a complete all-zero blob without a passed checkpoint; arguments as for `CheckpointLayout`."""
    layout = CheckpointLayout(state_count, time_count)
    blob = bytearray(layout.blob_bytes)
    head = np.frombuffer(blob, STATE_HEAD_DTYPE, count=1)[0]
    head["context_mode"] = RUN_CONTEXT
    head["flags"] = ALL_PARTS_PRESENT
    head["checkpoint_state_count"] = state_count
    INT32.pack_into(blob, layout.times_offset - INT32.size, time_count)
    for index in range(time_count):
        INT32.pack_into(blob, layout.times_offset + CHECKPOINT_TIME_BYTES * index, NOT_PASSED)
    return blob
