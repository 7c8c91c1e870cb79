"""Running processes, descendants, and ending them. A zombie counts as ended: without an init process it stays."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psutil

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase

PipeEnd: TypeAlias = "_ConnectionBase[Any, Any]"
"""`multiprocessing` pipe end: `Connection`, or `PipeConnection` on Windows."""

HANG_UP: Final = getattr(signal, "SIGHUP", None)
OF_THE_TERMINAL: Final = tuple(
    number for number in (signal.SIGINT, getattr(signal, "SIGBREAK", None), HANG_UP) if number is not None
)
"""Signals for Ctrl-C, Ctrl-Break (Windows) and a closed terminal (elsewhere). They reach all processes there."""
ENDS_WITHIN_S: Final = 5.0
CHECK_ENDED_EVERY_S: Final = 0.02


def is_running(process: psutil.Process) -> bool:
    """Return whether a process runs and is no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def descendants_of(pid: int) -> list[psutil.Process]:
    """Return the running processes that a process has started, at any depth."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def end_processes(processes: Iterable[psutil.Process], within_s: float = ENDS_WITHIN_S) -> list[psutil.Process]:
    """Kill processes, stopped ones included; return those that still run after a time."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            process.kill()
    deadline_s = time.monotonic() + within_s
    while (running := [one for one in processes if is_running(one)]) and time.monotonic() < deadline_s:
        time.sleep(CHECK_ENDED_EVERY_S)
    return running


@contextlib.contextmanager
def terminal_signals_blocked() -> Iterator[None]:
    """Block the terminal's signals in this thread, and in the processes that it starts (not on Windows).

    They would end a process that still imports modules with a traceback.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # its start, with the first process, unblocks SIGINT
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


@contextlib.contextmanager
def answering(function: Callable[..., object], *arguments: Any) -> Iterator[PipeEnd]:
    """Call `function(answers, *arguments)` in a separate process, which is killed at the context's end.

    Yields the other end of the pipe `answers`; `recv` there raises `EOFError` if the process has ended.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
    with terminal_signals_blocked():
        process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()
