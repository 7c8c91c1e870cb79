"""What the processes of a run share: the queue of log records."""

import logging
import multiprocessing
import time

import pytest

from trackmania_rl.multiprocess import shared_run
from trackmania_rl.multiprocess.shared_run import logs_of_collectors

CONTEXT = multiprocessing.get_context("spawn")


def test_records_are_handled_to_the_last(caplog: pytest.LogCaptureFixture) -> None:
    log_queue = CONTEXT.Queue()
    handler = _Keeping()
    logging.getLogger().addHandler(handler)
    try:
        with logs_of_collectors(log_queue):
            for number in range(5):
                log_queue.put(logging.LogRecord("collector", logging.INFO, "x", 1, "race %d", (number,), None))
    finally:
        logging.getLogger().removeHandler(handler)
    assert handler.messages == [f"race {number}" for number in range(5)]


def test_a_queue_that_a_killed_collector_left_locked_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_run, "LAST_RECORDS_WITHIN_S", 0.2)
    log_queue = CONTEXT.Queue()
    began_s = time.monotonic()
    with log_queue._wlock, logs_of_collectors(log_queue):  # type: ignore[attr-defined]  # what the dead would hold
        pass
    assert time.monotonic() - began_s < 5


class _Keeping(logging.Handler):
    """Keeps what collectors say."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "collector":
            self.messages.append(record.getMessage())
