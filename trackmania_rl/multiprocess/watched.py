"""The training's side of `train.py --supervised`: it tells the process that watches it that it lives."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from trackmania_rl.multiprocess.signals import terminate_main_thread
from trackmania_rl.pulse import Pulse

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
