"""Log records of the collectors, which the main process writes to terminal and file.

Each collector has a pipe, and the main process a thread for each pipe. A collector that is killed or stopped within a
record blocks only that thread.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import multiprocessing
import queue
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Protocol

LAST_RECORDS_WITHIN_S: Final = 3.0
"""Longest wait for the last log records, on both sides."""
MOST_WAITING: Final = 1000
"""Unread records that a collector keeps; further ones are dropped, so that logging never waits."""


class LogPipe(Protocol):
    """Destination of a collector's log records."""

    def send(self, record: Any, /) -> None:
        """Send a record."""
        ...


class _DroppingQueueHandler(logging.handlers.QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def sending_logs_to(pipe: LogPipe) -> Iterator[None]:
    """Send this process's log records to the main process; at the end, wait a little until the last ones are read."""
    waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(MOST_WAITING)
    sender = threading.Thread(target=_send, args=(waiting, pipe), name="log records", daemon=True)
    sender.start()
    root = logging.getLogger()
    root.handlers = [_DroppingQueueHandler(waiting)]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        with contextlib.suppress(queue.Full):
            waiting.put_nowait(None)
            sender.join(LAST_RECORDS_WITHIN_S)


def _send(waiting: queue.Queue[logging.LogRecord | None], pipe: LogPipe) -> None:
    with contextlib.suppress(OSError):  # the main process is gone
        while (record := waiting.get()) is not None:
            pipe.send(record)


class CollectorLogs:
    """Context in which this process's own handlers handle the collectors' log records."""

    def __init__(self) -> None:
        self._handlers: list[logging.Handler] = []
        self._readers: list[threading.Thread] = []

    def open(self, name: str) -> Connection:
        """Make a pipe for the records of a process and read it in a thread.

        Returns:
            The end for the process; close it here once the process is spawned.
        """
        reading, writing = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self._readers = [reader for reader in self._readers if reader.is_alive()]
        self._readers.append(threading.Thread(target=self._read, args=(reading,), name=f"logs of {name}", daemon=True))
        self._readers[-1].start()
        return writing

    def __enter__(self) -> CollectorLogs:
        self._handlers = logging.getLogger().handlers
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        deadline_s = time.monotonic() + LAST_RECORDS_WITHIN_S
        for reader in self._readers:
            reader.join(max(0.0, deadline_s - time.monotonic()))

    def _read(self, pipe: Connection) -> None:
        with pipe, contextlib.suppress(EOFError, OSError):  # until the process ends, in whatever way
            while True:
                record: logging.LogRecord = pipe.recv()
                for handler in self._handlers:
                    if record.levelno >= handler.level:
                        handler.handle(record)
