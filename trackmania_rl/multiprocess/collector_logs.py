"""Log records of the collectors, which the main process alone writes to terminal and file.

Each collector has a pipe of its own, and the main process a thread for each pipe. A collector that is killed or stopped
in the midst of a record holds up nobody but that thread.
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
from typing import Final

from trackmania_rl.multiprocess.collector_task import LogPipe

LAST_RECORDS_WITHIN_S: Final = 3.0
"""How long the collectors' last log records are waited for, and a collector waits until its own are read."""
MOST_WAITING: Final = 1000
"""Records that a collector keeps while nobody reads; further ones are dropped, so that it never waits to say them."""


class _DroppingQueueHandler(logging.handlers.QueueHandler):
    """Drops what there is no room for."""

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def sending_logs_to(pipe: LogPipe) -> Iterator[None]:
    """Let this process's log records go to the main process; at the end, wait a little until the last ones are read.

    Args:
        pipe: from `CollectorLogs.open`.
    """
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
    """A context in which the collectors' log records are handled by this process's own handlers.

    What a collector that was killed or stopped has not finished saying is not waited for longer than
    `LAST_RECORDS_WITHIN_S`.
    """

    def __init__(self) -> None:
        self._handlers: list[logging.Handler] = []
        self._readers: list[threading.Thread] = []

    def open(self, name: str) -> Connection:
        """Make a pipe for a collector's records and read it from now on.

        Args:
            name: of its process.

        Returns:
            The end to hand to the process when it is spawned; close it here afterwards.
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
        """Handle what comes until the pipe's other end is closed, by whatever end of its process."""
        with pipe, contextlib.suppress(EOFError, OSError):
            while True:
                record: logging.LogRecord = pipe.recv()
                for handler in self._handlers:
                    if record.levelno >= handler.level:
                        handler.handle(record)
