"""Log records of the collectors, which the main process writes to terminal and file.

Each collector has a pipe, and the main process a thread for each pipe. A collector that is killed or stopped within a
record blocks only that thread.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import multiprocessing
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

from typing_extensions import override

LAST_RECORDS_WITHIN_S: Final = 3.0


class LogPipe(Protocol):
    """Destination of a collector's log records."""

    def send(self, record: Any, /) -> None:
        """Send a record."""
        ...


class _PipeHandler(logging.handlers.QueueHandler):
    @override
    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the main process is gone
            self.queue.send(record)  # type: ignore[attr-defined]


def send_logs_to(pipe: LogPipe) -> None:
    """Send this process's log records to the main process from now on."""
    root = logging.getLogger()
    root.handlers = [_PipeHandler(pipe)]  # type: ignore[arg-type]
    root.setLevel(logging.INFO)


class CollectorLogs:
    """Threads in which this process handles the collectors' log records; a context that waits for the last ones."""

    def __init__(self) -> None:
        self._readers: list[threading.Thread] = []

    def open(self, name: str) -> Connection:
        """Read a pipe of a process in a thread; return the end for the process, to be closed after its spawn."""
        reading, writing = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self._readers = [reader for reader in self._readers if reader.is_alive()]
        self._readers.append(threading.Thread(target=self._read, args=(reading,), name=f"logs of {name}", daemon=True))
        self._readers[-1].start()
        return writing

    def __enter__(self) -> CollectorLogs:
        return self

    def __exit__(self, *_: object) -> None:
        deadline_s = time.monotonic() + LAST_RECORDS_WITHIN_S
        for reader in self._readers:
            reader.join(max(0.0, deadline_s - time.monotonic()))

    def _read(self, pipe: Connection) -> None:
        with pipe, contextlib.suppress(EOFError, OSError):  # until the process ends, in whatever way
            while True:
                logging.getLogger().handle(pipe.recv())
