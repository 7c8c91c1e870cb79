"""Beats for a collector's main thread where that cannot: until it plays, and while numba compiles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from numba.core import event

COMPILING: Final = "numba:compile"
"""numba's name for its events of compiling; a function that is loaded from its cache is one, too."""
BEAT_EVERY_S: Final = 1.0


class _Compilations(event.Listener):
    """Counts the functions that are being compiled, in whichever thread."""

    def __init__(self) -> None:
        self.n_under_way = 0
        self._lock = threading.Lock()

    def on_start(self, event: Any) -> None:
        """Count one."""
        with self._lock:
            self.n_under_way += 1

    def on_end(self, event: Any) -> None:
        """Count it off."""
        with self._lock:
            self.n_under_way -= 1


class BeatKeeper:
    """Passes on the main thread's beats, and beats in its place from a thread of its own as long as it has reason to.

    So a process that is stopped, or whose main thread hangs, falls silent, while one that loads, sets up its device or
    compiles for minutes does not. How long the beginning may take is bounded by the races that do not come.

    Args:
        beat: tells the learner, see `RolloutSink.beat`.
        every_s: how often the thread beats.
    """

    def __init__(self, beat: Callable[[], None], every_s: float = BEAT_EVERY_S) -> None:
        self._beat = beat
        self._every_s = every_s
        self._plays = False
        self._compilations = _Compilations()
        self._ends = threading.Event()

    def beat(self) -> None:
        """Beat from the main thread, which from now on does so by itself."""
        self._plays = True
        self._beat()

    def __enter__(self) -> BeatKeeper:
        event.register(COMPILING, self._compilations)
        threading.Thread(target=self._keep, name="beats", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        event.unregister(COMPILING, self._compilations)

    def _keep(self) -> None:
        while not self._ends.wait(self._every_s):
            if not self._plays or self._compilations.n_under_way > 0:
                self._beat()
