"""Log records of collectors: handled to the last, but for a collector that was killed in the midst of one."""

import logging
import time

import pytest

from trackmania_rl.multiprocess import collector_logs
from trackmania_rl.multiprocess.collector_logs import CollectorLogs


def test_records_are_handled_to_the_last(caplog: pytest.LogCaptureFixture) -> None:
    logs = CollectorLogs()
    handler = _Keeping()
    logging.getLogger().addHandler(handler)
    try:
        with logs:
            for number in range(5):
                logs.queue.put(logging.LogRecord("collector", logging.INFO, "x", 1, "race %d", (number,), None))
    finally:
        logging.getLogger().removeHandler(handler)
    assert handler.messages == [f"race {number}" for number in range(5)]


def test_a_queue_that_a_killed_collector_left_locked_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector_logs, "LAST_RECORDS_WITHIN_S", 0.2)
    logs = CollectorLogs()
    began_s = time.monotonic()
    with logs.queue._wlock, logs:  # what the dead would hold
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
