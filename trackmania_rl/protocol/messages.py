"""Message ids, bounds and packing for the TMInterface 2 "Python link" protocol (docs/plugin.rst).

Everything is little-endian and unaligned. A message is an int32 id and a payload. Client and simulated game both use
this module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

TICK_MS: Final = 10
"""One physics tick, race time."""

COUNTDOWN_MS: Final = 2600
"""Time before race time 0 with the car held at the spawn."""

DEFAULT_STEP_PERIOD_MS: Final = 10
DEFAULT_TIMEOUT_MS: Final = 2000
MAX_PARTIAL_MESSAGE_MS: Final = 10_000
"""Longest duration for one message, unless the timeout is shorter."""

MAX_PAYLOAD_BYTES: Final = 1 << 20
"""Largest blob, command or script."""

MAX_FRAME_SIDE_PX: Final = 4096
FRAME_BYTES_PER_PIXEL: Final = 4
"""Blue, green, red, alpha."""

LINK_VERSION_COMMAND: Final = "python_link_version"
"""Console command for our plugin's version, see `link_version`. Other plugins ignore it."""
_FIRST_LINK_VERSION_BIT: Final = 8
LINK_VERSION: Final = 3
"""Version that our plugin and the simulated game have."""
ANALOG_LINK_VERSION: Final = 2
"""First version with SET_ANALOG_INPUT."""


class MessageId(IntEnum):
    """Message kind: 1 to 5 are the game's and are answered with the bare id; the others are the client's."""

    RUN_STEP = 1
    CHECKPOINT_COUNT_CHANGED = 2
    LAP_COUNT_CHANGED = 3
    REQUESTED_FRAME = 4
    ON_CONNECT = 5
    SET_SPEED = 6
    REWIND_TO_STATE = 7
    REWIND_TO_CURRENT_STATE = 8
    GET_STATE = 9
    SET_INPUT = 10
    GIVE_UP = 11
    PREVENT_FINISH = 12
    SHUTDOWN = 13
    COMMAND = 14
    SET_TIMEOUT = 15
    RACE_FINISHED = 16
    REQUEST_FRAME = 17
    RESET_CAMERA = 18
    SET_STEP_PERIOD = 19
    UNREQUEST_FRAME = 20
    TOGGLE_INTERFACE = 21
    IS_IN_MENUS = 22
    GET_INPUTS = 23
    SET_ANALOG_INPUT = 24  # this project's plugin and simulated game only


class KeyState(NamedTuple):
    """The four driving keys, ordered as in SET_INPUT."""

    left: bool
    right: bool
    accelerate: bool
    brake: bool


class AnalogInput(NamedTuple):
    """Wheel, pedals and brake key, ordered as in SET_ANALOG_INPUT. No other key is held.

    Attributes:
        steer: -65536 (left) .. 65536 (right).
        gas: -65536 .. 65536: from 30 % on the car accelerates, from -30 % down it brakes.
        brake: whether the brake key is held.
    """

    steer: int
    gas: int
    brake: bool


HeldInputs = KeyState | AnalogInput
"""All held inputs. A race uses one form."""


class HasKeys(Protocol):
    """An object with the four keys, e.g. an action in the settings."""

    left: bool
    right: bool
    accelerate: bool
    brake: bool


def key_states(actions: Iterable[HasKeys]) -> list[KeyState]:
    """Return these actions' keys."""
    return [KeyState(keys.left, keys.right, keys.accelerate, keys.brake) for keys in actions]


NO_KEYS: Final = KeyState(left=False, right=False, accelerate=False, brake=False)

INT32: Final = struct.Struct("<i")
UINT32: Final = struct.Struct("<I")
FLOAT32: Final = struct.Struct("<f")
INT32_PAIR: Final = struct.Struct("<ii")
KEYS: Final = struct.Struct("<4B")
ANALOG: Final = struct.Struct("<iiB")

_ID_INT32: Final = struct.Struct("<ii")
_ID_UINT32: Final = struct.Struct("<iI")
_ID_FLOAT32: Final = struct.Struct("<if")
_ID_INT32_PAIR: Final = struct.Struct("<iii")
_ID_KEYS: Final = struct.Struct("<i4B")
_ID_ANALOG: Final = struct.Struct("<iiiB")


def pack_id(message_id: MessageId) -> bytes:
    """Pack a message without payload."""
    return INT32.pack(message_id)


def pack_run_step(race_time_ms: int) -> bytes:
    """Pack a physics step report; `race_time_ms` is negative in the countdown."""
    return _ID_INT32.pack(MessageId.RUN_STEP, race_time_ms)


def pack_checkpoint_count_changed(current: int, target: int) -> bytes:
    """Pack a report on passed checkpoints in all laps, the finish included."""
    return _ID_INT32_PAIR.pack(MessageId.CHECKPOINT_COUNT_CHANGED, current, target)


def pack_lap_count_changed(current: int, target: int) -> bytes:
    """Pack a report on completed laps."""
    return _ID_INT32_PAIR.pack(MessageId.LAP_COUNT_CHANGED, current, target)


def pack_set_speed(speed: float) -> bytes:
    """Pack the game speed, a factor on real time. 0 freezes the physics, not the rendering."""
    return _ID_FLOAT32.pack(MessageId.SET_SPEED, speed)


def pack_rewind_to_state(blob: bytes) -> bytes:
    """Pack a rewind to an earlier state blob."""
    return pack_bytes(MessageId.REWIND_TO_STATE, blob)


def pack_set_input(held: HeldInputs) -> bytes:
    """Pack the inputs from the next tick on. Analog ones need `ANALOG_LINK_VERSION`."""
    if isinstance(held, AnalogInput):
        return _ID_ANALOG.pack(MessageId.SET_ANALOG_INPUT, *held)
    return _ID_KEYS.pack(MessageId.SET_INPUT, *held)


def pack_command(text: str) -> bytes:
    """Pack a console command, e.g. ``map "name.toml"``."""
    return pack_bytes(MessageId.COMMAND, text.encode())


def pack_set_timeout(timeout_ms: int) -> bytes:
    """Pack the game's timeout for a silent client, 0 to 2**32 - 1 ms."""
    return _ID_UINT32.pack(MessageId.SET_TIMEOUT, timeout_ms)


def pack_request_frame(width_px: int, height_px: int) -> bytes:
    """Pack a request for one frame at the next rendering."""
    return _ID_INT32_PAIR.pack(MessageId.REQUEST_FRAME, width_px, height_px)


def pack_set_step_period(period_ms: int) -> bytes:
    """Pack the race time between two RUN_STEP reports."""
    return _ID_INT32.pack(MessageId.SET_STEP_PERIOD, period_ms)


def pack_toggle_interface(shown: bool) -> bytes:
    """Pack whether TMInterface's windows are shown."""
    return _ID_INT32.pack(MessageId.TOGGLE_INTERFACE, int(shown))


def pack_bytes(message_id: MessageId, payload: bytes) -> bytes:
    """Pack an int32 length and that many bytes. Raise `ValueError` above `MAX_PAYLOAD_BYTES`."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"{message_id.name} payload of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")
    return _ID_INT32.pack(message_id, len(payload)) + payload


def link_version(in_menus_answer: int) -> int:
    """Return our plugin's version from the first answer to IS_IN_MENUS after LINK_VERSION_COMMAND; 0: another plugin.

    The command itself has no answer, so other plugins stay in step.
    """
    return max(in_menus_answer, 0) >> _FIRST_LINK_VERSION_BIT


def pack_in_menus_answer(is_in_menus: bool, version: int) -> bytes:
    """Pack the answer to IS_IN_MENUS; `version` is 0 unless requested."""
    return INT32.pack(is_in_menus | version << _FIRST_LINK_VERSION_BIT)


def frame_bytes(width_px: int, height_px: int) -> int:
    """Return a frame payload's size, which has no length prefix."""
    return width_px * height_px * FRAME_BYTES_PER_PIXEL
