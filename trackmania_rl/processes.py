"""Processes of this program: spawned ones, signals of the terminal, descendants, and their end."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
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
UNGUARDED: Final = 79
"""Exit code of a process that was to start a training while it imported the program."""
ENDS_WITHIN_S: Final = 5.0
CHECK_ENDED_EVERY_S: Final = 0.02

_at_parents_end: list[Callable[[], object]] = []


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end a training: the terminal's and SIGTERM, without those ignored (nohup)."""
    numbers = (*OF_THE_TERMINAL, signal.SIGTERM)
    return [number for number in numbers if number != HANG_UP or signal.getsignal(number) != signal.SIG_IGN]


def is_running(process: psutil.Process) -> bool:
    """Return whether a process runs and is no zombie, which remains without an init process."""
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


def call_in_process(function: Callable[..., object], *arguments: Any, limit_s: float) -> None:
    """Call a function in a process of its own.

    Raises:
        TimeoutError: if the function does not return in time. The process is killed.
        EOFError: if the process was ended.
        Exception: the function's error.
    """
    with answering(_send_error, function, *arguments) as answers:
        if not answers.poll(limit_s):
            raise TimeoutError(f"it takes longer than {limit_s:g} s")
        try:
            error = answers.recv()
        except EOFError:
            raise EOFError("its process was ended") from None
        if error is not None:
            raise error


def _send_error(answers: PipeEnd, function: Callable[..., object], *arguments: Any) -> None:
    try:
        function(*arguments)
        answers.send(None)
    except Exception as error:
        answers.send(error)


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
