"""Signals of a terminal, which reach all its processes, and the conditions that end a training."""

from __future__ import annotations

import _thread
import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from trackmania_rl.processes import HANG_UP, OF_THE_TERMINAL

if TYPE_CHECKING:
    from trackmania_rl.telemetry.statistics import TrainingStatistics


def terminate_main_thread() -> None:
    """Send SIGTERM to this process's main thread, from any thread; on POSIX this also interrupts a blocking call."""
    if sys.platform == "win32":
        _thread.interrupt_main(signal.SIGTERM)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def end_thread(thread: threading.Thread) -> None:
    """Interrupt a thread at its next line of Python, and wait for its end."""
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        thread.join()


class StopConditions:
    """Conditions that end a run. A signal of the terminal, or SIGTERM, ends it in order; a second Ctrl-C at once.

    The constructor installs signal handlers, in the main thread.

    Args:
        max_wall_s: seconds of the clock after which the run ends.
        max_frames: frames after which it ends.
        clock: seconds since the start of the command.
        counts: of the run.
        max_updates: updates after which the run ends.

    Attributes:
        is_requested: whether a signal has come.
    """

    def __init__(
        self,
        max_wall_s: float,
        max_frames: int,
        clock: Callable[[], float],
        counts: TrainingStatistics,
        max_updates: int = sys.maxsize,
    ) -> None:
        self._max_wall_s = max_wall_s
        self._max_frames = max_frames
        self._max_updates = max_updates
        self._clock = clock
        self._counts = counts
        self.is_requested = False
        for number in (*OF_THE_TERMINAL, signal.SIGTERM):
            if number != HANG_UP or signal.getsignal(number) != signal.SIG_IGN:  # nohup has it ignored
                signal.signal(number, self._on_signal)

    def __call__(self) -> bool:
        """Return whether the run is to end."""
        return (
            self.is_requested
            or self._clock() > self._max_wall_s
            or self._counts.frames_total >= self._max_frames
            or self._counts.updates_total >= self._max_updates
        )

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        is_first, self.is_requested = not self.is_requested, True
        if not is_first and number == signal.SIGINT:
            raise KeyboardInterrupt
