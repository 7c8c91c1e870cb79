"""When a training ends: on a signal, or at a limit of its command line."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from trackmania_rl.multiprocess.signals import HANG_UP, OF_THE_TERMINAL, terminate_main_thread


class StopRequested(KeyboardInterrupt):
    """Leaves what is done `interruptibly`; no `except Exception` on the way, as in torch's compiler, holds it up."""


class Counts(Protocol):
    """What a run has done.

    Attributes:
        frames_total: frames collected.
        batches_total: updates made.
    """

    frames_total: int
    batches_total: int


class StopConditions:
    """Says whether a run is to end. A signal of the terminal, or SIGTERM, ends it in order; a second Ctrl-C at once.

    From its making on, this process's signals are its own. Make it in the main thread.

    Args:
        max_wall_s: seconds of the clock after which the run ends.
        max_frames: frames after which it ends.
        clock: seconds since the start of the command.
        counts: the run's, such as its `TrainingStatistics`.
        max_updates: updates after which the run ends.
    """

    def __init__(
        self,
        max_wall_s: float,
        max_frames: int,
        clock: Callable[[], float],
        counts: Counts,
        max_updates: int = sys.maxsize,
    ) -> None:
        self._max_wall_s = max_wall_s
        self._max_frames = max_frames
        self._max_updates = max_updates
        self._clock = clock
        self._counts = counts
        self._is_requested = False
        self._is_interruptible = False
        for number in (*OF_THE_TERMINAL, signal.SIGTERM):
            if number != HANG_UP or signal.getsignal(number) != signal.SIG_IGN:  # nohup has it ignored
                signal.signal(number, self._on_signal)

    def __call__(self) -> bool:
        """Say whether the run is to end."""
        return (
            self._is_requested
            or self._clock() > self._max_wall_s
            or self._counts.frames_total >= self._max_frames
            or self._counts.batches_total >= self._max_updates
        )

    def interruptibly(self, work: Callable[[], object]) -> None:
        """Do long work that does not ask whether to stop. The first signal and the limit of seconds interrupt it.

        Work that begins after either is skipped.
        """
        left_s = max(0.0, self._max_wall_s - self._clock())
        at_limit = threading.Timer(min(left_s, threading.TIMEOUT_MAX), terminate_main_thread)
        at_limit.daemon = True
        try:
            self._is_interruptible = True
            if not self():
                at_limit.start()
                work()
            self._is_interruptible = False  # here already, so that no signal comes between `try` and `finally`
        except StopRequested:
            pass
        finally:
            self._is_interruptible = False
            at_limit.cancel()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        is_first, self._is_requested = not self._is_requested, True
        if self._is_interruptible and (is_first or number != signal.SIGINT):
            raise StopRequested
        if not is_first and number == signal.SIGINT:
            raise KeyboardInterrupt
