"""The training's side of `train.py --supervised`: it tells the process that watches it that it lives."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from trackmania_rl.multiprocess.signals import terminate_main_thread

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


VARIABLE: Final = "TRACKMANIA_RL_SUPERVISED"
"""Environment variable with an `Orders` as JSON."""
STIR_EVERY_S: Final = 1.0


@dataclass(frozen=True)
class Orders:
    """What a training is told by who watches it.

    Attributes:
        pulse: the file of its `Pulse`.
        elapsed_s: how long ago the first training of this command was started.
        because: how the one before it ended; empty for the first one.
    """

    pulse: str
    elapsed_s: float
    because: str

    def as_environment(self) -> dict[str, str]:
        """What the training's environment has of it."""
        return {VARIABLE: json.dumps(asdict(self))}


class Progress(Protocol):
    """What a run has done and saved; `TrainingStatistics` does."""

    frames_total: int
    batches_total: int
    checkpoint_time_s: float | None


class WatchedTraining:
    """A context in which a thread beats, and in which the training ends in order when its watcher has vanished.

    Args:
        orders: from the watcher, whose pipe is this process's standard input.
    """

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.pulse = Pulse(Path(orders.pulse))
        self._progress: Progress | None = None
        self._checkpoint_time_s: float | None = None
        self._ends = threading.Event()

    @classmethod
    def by_environment(cls) -> WatchedTraining | None:
        """Read what the watcher wrote; None if there is none. Processes of this one are not meant any more."""
        text = os.environ.pop(VARIABLE, None)
        return None if text is None else cls(Orders(**json.loads(text)))

    def begin(self, progress: Progress) -> None:
        """Note the checkpoints that are written from now on."""
        self._checkpoint_time_s = progress.checkpoint_time_s
        self._progress = progress

    def __enter__(self) -> WatchedTraining:
        threading.Thread(target=self._stir, name="pulse", daemon=True).start()
        threading.Thread(target=self._end_with_watcher, name="watcher-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._note_saved()

    def _stir(self) -> None:
        while not self._ends.wait(STIR_EVERY_S):
            self.pulse.stir()
            self._note_saved()

    def _note_saved(self) -> None:
        """Tell how far the run had come, if a checkpoint was written since the last look."""
        progress = self._progress
        if progress is not None and progress.checkpoint_time_s != self._checkpoint_time_s:
            self._checkpoint_time_s = progress.checkpoint_time_s
            self.pulse.saved = progress.frames_total + progress.batches_total

    def _end_with_watcher(self) -> None:
        while os.read(0, 1 << 10):
            pass
        if not self._ends.is_set():
            terminate_main_thread()
