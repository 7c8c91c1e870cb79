"""The signals of a terminal, which reach every process that it holds."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

HANG_UP: Final = getattr(signal, "SIGHUP", None)
OF_THE_TERMINAL: Final = tuple(
    number for number in (signal.SIGINT, getattr(signal, "SIGBREAK", None), HANG_UP) if number is not None
)
"""What every process of a terminal is sent: by Ctrl-C, by Ctrl-Break (Windows), and when it is closed (elsewhere)."""


@contextmanager
def hold_back_ctrl_c() -> Iterator[None]:
    """Keep a terminal's signals from processes that are started meanwhile, until each says `release_ctrl_c`.

    Ctrl-C reaches every process of a terminal, and would end one that still imports its modules with a traceback; so
    does the end of the terminal. This process gets its own ones afterwards. Windows cannot do so.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_TERMINAL)
    try:
        yield
    finally:
        release_ctrl_c()


def release_ctrl_c() -> None:
    """Undo `hold_back_ctrl_c` in this process."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_TERMINAL)


def terminate_main_thread() -> None:
    """Send SIGTERM to this process's main thread, from any thread; on POSIX this also interrupts a blocking call."""
    if sys.platform == "win32":
        _thread.interrupt_main(signal.SIGTERM)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
