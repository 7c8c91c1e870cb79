"""Log records of collectors: handled to the last, and one that is killed or stopped in the midst holds up nobody."""

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from trackmania_rl.multiprocess import collector_logs
from trackmania_rl.multiprocess.collector_logs import CollectorLogs, sending_logs_to

SPAWN = multiprocessing.get_context("spawn")


class Keeping(logging.Handler):
    """Keeps what collectors say."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "collector":
            self.messages.append(record.getMessage())

    def wait_for(self, message: str) -> None:
        deadline_s = time.monotonic() + 60
        while message not in self.messages:
            assert time.monotonic() < deadline_s, self.messages
            time.sleep(0.01)


@pytest.fixture
def kept() -> Iterator[Keeping]:
    handler = Keeping()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def say(pipe: Connection, n_records: int) -> None:
    with sending_logs_to(pipe):
        for number in range(n_records):
            logging.getLogger("collector").info("race %d", number)


def say_half_a_record(pipe: Connection, word: str) -> None:
    with sending_logs_to(pipe):
        logging.getLogger("collector").info(word)
        time.sleep(1.0)
        os.write(pipe.fileno(), b"\x00\x00\x10\x00half")  # 4096 bytes are announced
        time.sleep(600)


def start(logs: CollectorLogs, target: object, argument: object) -> multiprocessing.process.BaseProcess:
    with logs.open("collector 0") as pipe:
        process = SPAWN.Process(target=target, args=(pipe, argument), daemon=True)  # type: ignore[arg-type]
        process.start()
    return process


def test_records_are_handled_to_the_last(kept: Keeping) -> None:
    with CollectorLogs() as logs:
        process = start(logs, say, 500)
        process.join(60)
    assert kept.messages == [f"race {number}" for number in range(500)]


@pytest.mark.parametrize("number", ["SIGSTOP", pytest.param("SIGKILL", marks=pytest.mark.slow)])
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals, and pipes take messages whole")
def test_a_collector_that_is_stopped_or_killed_in_the_midst_of_a_record_holds_up_nobody(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setattr(collector_logs, "LAST_RECORDS_WITHIN_S", 0.5)
    began_s = 0.0
    with CollectorLogs() as logs:
        stuck = start(logs, say_half_a_record, "begun")
        try:
            kept.wait_for("begun")
            time.sleep(1.5)  # half a record is in its pipe
            os.kill(stuck.pid or 0, getattr(signal, number))
            other = start(logs, say, 3)
            kept.wait_for("race 2")
            other.join(60)
            began_s = time.monotonic()
        except BaseException:
            stuck.kill()
            raise
    stuck.kill()
    assert time.monotonic() - began_s < 10, "the end waits for it half a second"


def test_a_collector_does_not_wait_for_a_learner_that_reads_nothing() -> None:
    reading, writing = SPAWN.Pipe(duplex=False)
    root = logging.getLogger()
    before = root.handlers, root.level
    began_s = time.monotonic()
    try:
        with sending_logs_to(writing):
            for number in range(20_000):  # far more than the pipe and the queue hold
                logging.getLogger("collector").info("race %d", number)
            assert time.monotonic() - began_s < 30
            reading.close()
    finally:
        root.handlers, root.level = before
