"""Log records of the collectors, which the main process alone writes to terminal and file."""

from __future__ import annotations

import logging
import logging.handlers
import multiprocessing
import threading
from types import TracebackType
from typing import Any, Final

LAST_RECORDS_WITHIN_S: Final = 3.0
"""How long the collectors' last log records are waited for."""


def send_logs_to(log_queue: Any) -> None:
    """Let this process's log records go to the main process, which alone writes to terminal and file."""
    root = logging.getLogger()
    root.handlers = [logging.handlers.QueueHandler(log_queue)]
    root.setLevel(logging.INFO)


class CollectorLogs:
    """A context in which the collectors' log records are handled by this process's own handlers.

    A collector that is killed in the midst of a record may leave the queue locked for ever; the end waits for that no
    longer than `LAST_RECORDS_WITHIN_S`.

    Attributes:
        queue: where collectors send their records; hand it to their processes when they are spawned.
    """

    def __init__(self) -> None:
        self.queue: Any = multiprocessing.get_context("spawn").Queue()  # of logging.LogRecord
        self._listener: logging.handlers.QueueListener | None = None

    def __enter__(self) -> CollectorLogs:
        handlers = logging.getLogger().handlers
        self._listener = logging.handlers.QueueListener(self.queue, *handlers, respect_handler_level=True)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._listener is not None
        ending = threading.Thread(target=self._listener.stop, name="last log records", daemon=True)
        ending.start()
        ending.join(LAST_RECORDS_WITHIN_S)
        if ending.is_alive():
            self.queue.cancel_join_thread()  # else the interpreter's end would wait for the lock, too
