"""A few numbers that a training tells the process that watches it, in memory that both see.

They lie in a small file outside the run's folder, in memory where the system has such a folder, so that a disk that is
full, slow or gone stops no beat. Nothing is locked: each number is written at once, by one process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from pathlib import Path
from typing import Final

MEMORY_FOLDER: Final = Path("/dev/shm")
N_BYTES: Final = 64
STIRS, TICKS, SILENCE_MS, STALL_MS, SAVED = range(5)


class Pulse:
    """The numbers. One process makes the file (`make`), the other one opens it (`Pulse(path)`).

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), N_BYTES)
        self._numbers = memoryview(self._map).cast("q")

    @classmethod
    def make(cls) -> Pulse:
        """Make one with all numbers 0.

        Raises:
            OSError: if there is no room for it.
        """
        folder = str(MEMORY_FOLDER) if os.access(MEMORY_FOLDER, os.W_OK) else None
        descriptor, name = tempfile.mkstemp(prefix="trackmania_rl_pulse_", dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(N_BYTES))
        return cls(Path(name))

    @property
    def stirs(self) -> int:
        """How often a thread of its own has said that the process runs."""
        return self._numbers[STIRS]

    @property
    def ticks(self) -> int:
        """How often the training loop has gone on."""
        return self._numbers[TICKS]

    @property
    def silence_s(self) -> float:
        """After how long without a stir it wishes to be taken to hang; 0 if it has not said so yet."""
        return self._numbers[SILENCE_MS] / 1000

    @property
    def stall_s(self) -> float:
        """Likewise without a tick."""
        return self._numbers[STALL_MS] / 1000

    @property
    def saved(self) -> int:
        """How far the run had come, in frames and updates together, when its last checkpoint was written."""
        return self._numbers[SAVED]

    @saved.setter
    def saved(self, progress: int) -> None:
        self._numbers[SAVED] = progress

    def stir(self) -> None:
        """Say that the process runs."""
        self._numbers[STIRS] += 1

    def tick(self) -> None:
        """Say that the training loop goes on."""
        self._numbers[TICKS] += 1

    def ask_for_bounds(self, silence_s: float, stall_s: float) -> None:
        """Say after how long without a stir, or without a tick, the process is to be taken to hang."""
        self._numbers[SILENCE_MS], self._numbers[STALL_MS] = round(silence_s * 1000), round(stall_s * 1000)

    def remove(self) -> None:
        """Let go of the memory and remove the file."""
        self._numbers.release()
        self._map.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
