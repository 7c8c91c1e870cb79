"""Heartbeat of a process: one record in shared memory, which the process writes and its supervisor reads."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

BEAT_EVERY_S: Final = 1.0


class Heartbeat(ctypes.Structure):
    """Time stamps of one process, and its limits. There is no lock that a killed process could hold.

    `multiprocessing.RawValue(Heartbeat)` shares one with a spawned process, `heartbeat_file` with any other. Times are
    those of `time.monotonic`, which no change of the clock moves.

    Attributes:
        at_s: time of the last heartbeat; 0 before the first.
        progress_at_s: time of the last pass of the training loop, or of a collector's last race or fragment; 0 before.
        n_waiting: threads that wait for room or for a turn, without progress meanwhile.
        silence_s: longest time without a heartbeat; 0 for the supervisor's default.
        stall_s: longest time without progress, likewise.
        saved: frames and updates in the last checkpoint of this process, those of earlier stages included.
    """

    _fields_ = (
        ("at_s", ctypes.c_double),
        ("progress_at_s", ctypes.c_double),
        ("n_waiting", ctypes.c_int64),
        ("silence_s", ctypes.c_double),
        ("stall_s", ctypes.c_double),
        ("saved", ctypes.c_int64),
    )
    at_s: float
    progress_at_s: float
    n_waiting: int
    silence_s: float
    stall_s: float
    saved: int

    def beat(self) -> None:
        """Stamp the heartbeat."""
        self.at_s = time.monotonic()

    def progress(self, silence_s: float, stall_s: float) -> None:
        """Stamp a pass of the training loop and set the limits."""
        self.silence_s, self.stall_s = silence_s, stall_s
        self.progress_at_s = time.monotonic()


@contextlib.contextmanager
def heartbeat_file() -> Iterator[Path]:
    """Create a file that holds a `Heartbeat` for a process that is not spawned by `multiprocessing`.

    Raises:
        OSError: if there is no room for it.
    """
    shared_memory = "/dev/shm"  # on Linux; a temporary folder may be on a full disk
    folder = shared_memory if os.access(shared_memory, os.W_OK) else None
    number, name = tempfile.mkstemp(prefix="trackmania_rl_", dir=folder)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(bytes(Heartbeat()))
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def open_heartbeat(path: Path) -> Heartbeat:
    """Map the heartbeat in a file of `heartbeat_file`."""
    with path.open("r+b") as file:
        return Heartbeat.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(Heartbeat)))


@contextlib.contextmanager
def beating(
    beat: Callable[[], object], is_needed: Callable[[], bool] = lambda: True, every_s: float = BEAT_EVERY_S
) -> Iterator[None]:
    """Call `beat` regularly from a thread while `is_needed()`."""
    ends = threading.Event()

    def run() -> None:
        while not ends.wait(every_s):
            if is_needed():
                beat()

    threading.Thread(target=run, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        ends.set()
