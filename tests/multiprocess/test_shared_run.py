"""What the processes of a run share: the queue of log records."""

import logging
import multiprocessing
import os
import signal
import time

import pytest

from trackmania_rl.multiprocess import shared_run
from trackmania_rl.multiprocess.shared_run import StopFlag, logs_of_collectors

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


def _set_and_die(flag: StopFlag) -> None:
    flag.set()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process as POSIX systems do")
def test_the_stop_flag_reaches_all_and_has_no_lock_to_leave_behind() -> None:
    flag = StopFlag(CONTEXT)
    assert not flag.is_set()
    process = CONTEXT.Process(target=_set_and_die, args=(flag,))
    process.start()
    process.join(60)
    assert flag.is_set()
    assert not hasattr(flag._value, "get_lock")


class _Keeping(logging.Handler):
    """Keeps what collectors say."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "collector":
            self.messages.append(record.getMessage())
