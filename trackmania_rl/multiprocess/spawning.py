"""Spawned processes that end with their parent, also while they import their modules, which takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from trackmania_rl.processes import OF_THE_TERMINAL, terminal_signals_blocked

UNGUARDED: Final = 79
"""Exit code of a process that was to start a training while it imported the program."""

_at_parents_end: list[Callable[[], object]] = []


def spawn(name: str, function: Callable[..., object], *arguments: Any) -> SpawnProcess:
    """Start a process that calls a function, and return it. Signals of the terminal do not reach it."""
    process = multiprocessing.get_context("spawn").Process(
        target=_call, args=(_Pickled(function, *arguments),), name=name, daemon=False
    )
    with terminal_signals_blocked():
        process.start()
    return process


def end_if_program_has_no_guard() -> None:
    """End a spawned process that is still importing the program: the program lacks `if __name__ == "__main__"`."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing checks it
        raise SystemExit(UNGUARDED)


def end_with_parent(end: Callable[[], object]) -> None:
    """Call a function in a thread when the parent has ended, in place of that of an earlier call."""
    _at_parents_end.append(end)
    if len(_at_parents_end) == 1:
        threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        _at_parents_end[-1]()


class _Pickled:
    """A call, which arrives as its pickle."""

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(ForkingPickler.dumps(self._call)),)


def _call(pickled: bytes) -> None:
    end_with_parent(lambda: os._exit(1))
    for number in OF_THE_TERMINAL:  # they reach every process; the main one ends the run in order
        signal.signal(number, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_TERMINAL)
    function, arguments = pickle.loads(pickled)  # imports what it names
    function(*arguments)
