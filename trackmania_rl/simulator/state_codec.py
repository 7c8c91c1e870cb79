"""Car in a state blob, restored bit for bit: every 32-bit word of VEHICLE_DTYPE has a place.

Fields in the game's format are at the game's offsets; the rest is in the blob's private part.
"""

from __future__ import annotations

import zlib
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.protocol.state_blob import HEAD_BYTES, STATE_HEAD_DTYPE, StateBlobError
from trackmania_rl.simulator.physics.vehicle import NEVER_MS, VEHICLE_DTYPE
from trackmania_rl.simulator.tracks.world import Track

WORD_BYTES: Final = 4

PRIVATE_HEADER_WORDS: Final = 5
"""Magic number, signature, reported checkpoints and laps, and the respawn gate's number, from 1; 0 for none."""

_HEAD_FIELDS: Final = {
    "position_m": "position_m",
    "quaternion": "quaternion",
    "rotation": "rotation",
    "velocity_m_s": "velocity_m_s",
    "angular_velocity_rad_s": "angular_velocity_rad_s",
    "local_speed_m_s": "current_local_speed_m_s",
    "gear": "engine_gear",
    "gearbox_state": "gearbox_state",
    "actual_rpm": "engine_actual_rpm",
    "clamped_rpm": "engine_clamped_rpm",
    "slide_factor": "engine_slide_factor",
    "is_reversing": "engine_rear_gear",
    "is_freewheeling": "is_freewheeling",
    "is_sliding": "is_sliding",
    "turning_rate": "turning_rate",
    "turbo_boost_factor": "turbo_boost_factor",
    "has_any_lateral_contact": "has_any_lateral_contact",
    "last_lateral_contact_time_ms": "last_has_any_lateral_contact_time_ms",
}
"""VEHICLE_DTYPE field -> STATE_HEAD_DTYPE field."""

_WHEEL_FIELDS: Final = {
    "wheel_damper_absorb_m": "damper_absorb_m",
    "wheel_is_sliding": "is_sliding",
    "wheel_has_ground_contact": "has_ground_contact",
    "wheel_material": "contact_material_id",
}
"""VEHICLE_DTYPE field -> WHEEL_DTYPE field."""

MAX_RACE_MS: Final = 24 * 60 * 60 * 1000  # a race is given up after a day, so clocks fit 32 bits

_FLAG: Final = (0.0, 1.0)
_RANGES: Final = {
    "velocity_m_s": (-1000.0, 1000.0),
    "angular_velocity_rad_s": (-1000.0, 1000.0),
    "quaternion": (-1.01, 1.01),
    "rotation": (-1.01, 1.01),
    "wheel_is_sliding": _FLAG,
    "wheel_has_ground_contact": _FLAG,
    "wheel_damper_absorb_m": (-1.0, 1.0),
    "wheel_material": (0.0, 30.0),
    "gear": (0.0, 5.0),
    "gearbox_state": (0.0, 4.0),
    "is_reversing": _FLAG,
    "is_freewheeling": _FLAG,
    "is_sliding": _FLAG,
    "turning_rate": (-1.0, 1.0),
    "has_any_lateral_contact": _FLAG,
    "last_lateral_contact_time_ms": (float(NEVER_MS), float(MAX_RACE_MS)),
    "clock_ms": (0.0, float(MAX_RACE_MS)),
}
_ANY: Final = (-1e9, 1e9)  # wide enough for a car that falls during a whole race

_QUATERNION_NORM_TOLERANCE: Final = 0.01


def _words_of_fields() -> dict[str, slice]:
    assert VEHICLE_DTYPE.fields is not None
    return {
        name: slice(offset // WORD_BYTES, (offset + dtype.itemsize) // WORD_BYTES)
        for name, (dtype, offset, *_) in VEHICLE_DTYPE.fields.items()
    }


def _head_words() -> npt.NDArray[np.intp]:
    head = np.arange(HEAD_BYTES // WORD_BYTES, dtype=np.uint32).view(STATE_HEAD_DTYPE)[0]
    places = np.empty(VEHICLE_DTYPE.itemsize // WORD_BYTES, dtype=np.intp)
    private = iter(head["private"][PRIVATE_HEADER_WORDS:].tolist())
    for name, words in _FIELD_WORDS.items():
        if name in _HEAD_FIELDS:
            places[words] = np.asarray(head[_HEAD_FIELDS[name]]).view(np.uint32).ravel()
        elif name in _WHEEL_FIELDS:
            places[words] = np.ascontiguousarray(head["wheels"][_WHEEL_FIELDS[name]]).view(np.uint32)
        else:
            places[words] = list(islice(private, words.stop - words.start))
    return places


def _bounds() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    lowest, highest = np.empty((2, VEHICLE_DTYPE.itemsize // WORD_BYTES))
    for name, words in _FIELD_WORDS.items():
        lowest[words], highest[words] = _RANGES.get(name, _ANY)
    return lowest, highest


_FIELD_WORDS: Final = _words_of_fields()
_HEAD_WORD_OF_CAR_WORD: Final = _head_words()
_LOWEST, _HIGHEST = _bounds()
_IS_FLOAT: Final = np.concatenate(
    [np.full(words.stop - words.start, VEHICLE_DTYPE[name].base.kind == "f") for name, words in _FIELD_WORDS.items()]
)


def signature(track: Track) -> int:
    """Return a 32-bit checksum of a track's world and the car layout."""
    checksum = zlib.crc32(repr(VEHICLE_DTYPE).encode())
    if track.mesh_world is not None:
        columns = [track.world.records[name] for name in ("corners_m", "surface", "forward")]
    else:  # numeric columns hold everything; records have padding
        columns = [column for column in track.ribbon if column.dtype.names is None]
    for column in columns:
        checksum = zlib.crc32(np.ascontiguousarray(column).tobytes(), checksum)
    return checksum


def write_car(car: npt.NDArray[np.void], blob_words: npt.NDArray[np.uint32]) -> None:
    """Write a (1,) car into a blob (32-bit words)."""
    blob_words[_HEAD_WORD_OF_CAR_WORD] = car.view(np.uint32)


def write_cars(cars: npt.NDArray[np.void], heads: npt.NDArray[np.uint32]) -> None:
    """Write (K,) cars into K blob heads, (K, HEAD_BYTES / 4) words."""
    heads[:, _HEAD_WORD_OF_CAR_WORD] = cars.view(np.uint32).reshape(len(cars), -1)


def read_car(blob_words: npt.NDArray[np.uint32], section_count: int) -> npt.NDArray[np.void]:
    """Read a (1,) car from a blob (32-bit words), in a world with `section_count` records.

    Raises:
        StateBlobError: If the car holds an impossible number.
    """
    words = blob_words[_HEAD_WORD_OF_CAR_WORD]
    values = np.where(_IS_FLOAT, words.view(np.float32), words.view(np.int32))
    is_possible = (values >= _LOWEST) & (values <= _HIGHEST)  # false for NaN too
    car = words.view(VEHICLE_DTYPE)
    if not is_possible.all():
        word = int(np.argmin(is_possible))
        name = next(name for name, words in _FIELD_WORDS.items() if words.start <= word < words.stop)
        raise StateBlobError(f"state blob whose {name} is {car[0][name]}; {_RANGES.get(name, _ANY)} is possible")
    norm = float(np.linalg.norm(car[0]["quaternion"]))
    if abs(norm - 1.0) > _QUATERNION_NORM_TOLERANCE:
        raise StateBlobError(f"state blob whose quaternion has length {norm}; 1 expected")
    section = int(car[0]["surface_index"])
    if not 0 <= section < section_count:
        raise StateBlobError(f"state blob whose car is at cross-section {section}; the road has {section_count}")
    return car
