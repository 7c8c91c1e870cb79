"""A slot of shared memory that holds one rollout: how large it must be, and where its arrays lie."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trackmania_rl.channels.protocols import ChannelError
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import GameSettings

ALIGNMENT_BYTES = 64
"""Arrays start at multiples of a cache line."""
OTHER_BYTES_PER_ACTION = 512
"""Room for what a race holds for each action beside frame, floats and Q values: action, flags, zone, metres, wheels,
and its share of the input script."""
OTHER_BYTES_PER_RACE = 1 << 16
"""Room for what does not grow with the race, and for alignment."""
SHARED_MEMORY_FOLDER = Path("/dev/shm")
"""Where Linux keeps shared memory; containers often give it 64 MB."""


@dataclass(frozen=True)
class RolloutBounds:
    """How large a rollout can be.

    Attributes:
        max_actions: decisions in the longest race.
        image_height_px: 0 where the observation has no image.
        image_width_px: 0 where the observation has no image.
        n_floats: floats that one state has of its own.
        n_values: entries of one Q-value vector.
    """

    max_actions: int
    image_height_px: int
    image_width_px: int
    n_floats: int
    n_values: int

    @classmethod
    def of_game(cls, game: GameSettings, spaces: Spaces) -> RolloutBounds:
        """Derive the bounds from the longest race that is not cut off."""
        return cls(
            max_actions=game.cutoff_race_longer_than_ms // game.ms_per_action + 2,
            image_height_px=spaces.image_size_px[0],
            image_width_px=spaces.image_size_px[1],
            n_floats=spaces.n_own_floats,
            n_values=spaces.n_values,
        )

    @property
    def frames_shape(self) -> tuple[int, int, int, int]:
        """Shape of the frames of the longest race."""
        return (self.max_actions, 1, self.image_height_px, self.image_width_px)

    @property
    def frames_bytes(self) -> int:
        """Size of the frames of the longest race, one byte for each pixel, rounded up to the alignment."""
        return _aligned(self.max_actions * self.image_height_px * self.image_width_px)

    @property
    def slot_bytes(self) -> int:
        """Size of one slot. The operating system provides a page when it is first written, so length costs nothing."""
        bytes_per_action = 4 * (self.n_floats + self.n_values) + OTHER_BYTES_PER_ACTION
        return self.frames_bytes + (self.max_actions + 1) * bytes_per_action + OTHER_BYTES_PER_RACE


@dataclass(frozen=True)
class ArrayInSlot:
    """Where one array lies in a slot."""

    name: str
    offset_bytes: int
    shape: tuple[int, ...]
    dtype: str

    def view(self, memory: SharedMemory) -> npt.NDArray[Any]:
        """Return the array, in place."""
        return np.ndarray(self.shape, dtype=self.dtype, buffer=memory.buf, offset=self.offset_bytes)


class RolloutSlot:
    """A slot that a collector holds and writes to.

    Attributes:
        index: the slot's number in its set.
        frames: (max_actions, 1, H, W) uint8 view of the slot. Frames of the race written here are sent without a copy:
            put `slot.frames[:T]` into the `rollout_results`.
    """

    def __init__(self, index: int, memory: SharedMemory, bounds: RolloutBounds) -> None:
        """Wrap a slot's memory; `SharedRolloutSink` does this."""
        self.index = index
        self._memory = memory
        self._bounds = bounds
        self._next_offset_bytes = bounds.frames_bytes
        self.frames: npt.NDArray[np.uint8] = np.ndarray(bounds.frames_shape, dtype=np.uint8, buffer=memory.buf)

    def clear(self) -> None:
        """Forget what was written."""
        self._next_offset_bytes = self._bounds.frames_bytes

    def put(self, name: str, array: npt.NDArray[Any]) -> ArrayInSlot:
        """Copy an array into the slot, unless it is a leading part of `frames` already.

        Raises:
            ChannelError: if the slot is full.
        """
        is_in_place = (
            array.size > 0
            and array.flags.c_contiguous
            and array.ctypes.data == self.frames.ctypes.data
            and array.nbytes <= self.frames.nbytes
        )
        if is_in_place:
            return ArrayInSlot(name, 0, array.shape, array.dtype.str)
        entry = ArrayInSlot(name, self._next_offset_bytes, array.shape, array.dtype.str)
        if name == "frames" and array.nbytes <= self._bounds.frames_bytes:
            entry = ArrayInSlot(name, 0, array.shape, array.dtype.str)
        elif entry.offset_bytes + array.nbytes > self._bounds.slot_bytes:
            raise ChannelError(
                f"a rollout does not fit its shared-memory slot: {name} has shape {array.shape}, and the slot is made "
                f"for races of at most {self._bounds.max_actions} actions ({self._bounds.slot_bytes} bytes). "
                "Was cutoff_race_longer_than_ms raised while the run was on? That takes effect at the next start"
            )
        else:
            self._next_offset_bytes += _aligned(array.nbytes)
        entry.view(self._memory)[...] = array
        return entry


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def available_shared_memory_bytes() -> int | None:
    """Look how much shared memory is free; None where the system sets no separate limit (Windows, macOS)."""
    return shutil.disk_usage(SHARED_MEMORY_FOLDER).free if SHARED_MEMORY_FOLDER.is_dir() else None


def unmap(memory: SharedMemory) -> None:
    """Let go of a slot's memory. Where somebody still holds a view of it (a traceback's locals), its process does."""
    with contextlib.suppress(BufferError):
        memory.close()
