"""Slot of shared memory for one rollout: its size, and where its arrays are."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.channels.protocols import ChannelError
from trackmania_rl.channels.sinks import Room
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import GameSettings

ALIGNMENT_BYTES: Final = 64
"""Arrays start at multiples of a cache line."""
OTHER_BYTES_PER_ACTION: Final = 512
"""Room for the values of an action beside frame, floats and Q values, and its share of the input script."""
OTHER_BYTES_PER_RACE: Final = 1 << 16
"""Room for values that do not grow with the race, and for alignment."""


@dataclass(frozen=True)
class RolloutBounds:
    """Size of the largest rollout."""

    max_actions: int  # decisions in the longest race
    image_height_px: int  # 0 without images
    image_width_px: int  # 0 without images
    n_floats: int  # floats that one state has of its own
    n_values: int  # entries of one Q-value vector

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
        """Size of the frames of the longest race (uint8), aligned."""
        return _aligned(self.max_actions * self.image_height_px * self.image_width_px)

    @property
    def slot_bytes(self) -> int:
        """Size of one slot. The system provides pages when they are first written, so unused length costs nothing."""
        bytes_per_action = 4 * (self.n_floats + self.n_values) + OTHER_BYTES_PER_ACTION
        return self.frames_bytes + (self.max_actions + 1) * bytes_per_action + OTHER_BYTES_PER_RACE


@dataclass(frozen=True)
class ArrayInSlot:
    """Place of one array in a slot."""

    offset_bytes: int
    shape: tuple[int, ...]
    dtype: str

    def view(self, memory: SharedMemory) -> npt.NDArray[Any]:
        """Return the array, in place."""
        return np.ndarray(self.shape, dtype=self.dtype, buffer=memory.buf, offset=self.offset_bytes)


class RolloutSlot(Room):
    """Slot that a collector holds and writes to: the frames first, then the other arrays.

    Args:
        index: number of the slot in its collector's set.
        memory: of the slot.
        bounds: of a rollout.

    Attributes:
        index: as given.
        frames: (max_actions, 1, H, W) uint8 view of the slot; `frames[:T]` is sent without a copy.
    """

    def __init__(self, index: int, memory: SharedMemory, bounds: RolloutBounds) -> None:
        super().__init__(np.ndarray(bounds.frames_shape, dtype=np.uint8, buffer=memory.buf))
        self.index = index
        self._memory = memory
        self._bounds = bounds

    def write(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, ArrayInSlot]:
        """Copy arrays into the slot, in place of earlier ones; return their places.

        Raises:
            ChannelError: if the slot is too small.
        """
        places: dict[str, ArrayInSlot] = {}
        next_offset_bytes = self._bounds.frames_bytes
        for name, array in arrays.items():
            is_frames = name == "frames" and array.nbytes <= self._bounds.frames_bytes
            places[name] = ArrayInSlot(0 if is_frames else next_offset_bytes, array.shape, array.dtype.str)
            if is_frames:
                if array.ctypes.data == self.frames.ctypes.data and array.flags.c_contiguous:
                    continue  # in place already
            elif next_offset_bytes + array.nbytes > self._bounds.slot_bytes:
                raise ChannelError(
                    f"a rollout does not fit its shared-memory slot: {name} has shape {array.shape}, and the slot is "
                    f"made for races of at most {self._bounds.max_actions} actions ({self._bounds.slot_bytes} bytes). "
                    "Was cutoff_race_longer_than_ms raised while the run was on? That takes effect at the next start"
                )
            else:
                next_offset_bytes += _aligned(array.nbytes)
            places[name].view(self._memory)[...] = array
        return places


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
