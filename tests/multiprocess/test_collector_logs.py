"""Log records of collectors: handled to the last; the main process waits for none that is stopped or killed."""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys

import psutil
import pytest

from trackmania_rl.multiprocess import collectors
from trackmania_rl.multiprocess.collector_process import send_logs_to
from trackmania_rl.multiprocess.collectors import LogPipes

from ..keep_games_command import wait_until

FORK = multiprocessing.get_context("spawn" if sys.platform == "win32" else "fork")


def said(caplog):
    """The messages of collectors."""
    return [record.getMessage() for record in caplog.records if record.name == "collector"]


def say(pipe, n_records):
    send_logs_to(pipe)
    for number in range(n_records):
        logging.getLogger("collector").info("race %d", number)


def say_half_a_record(pipe, word):
    send_logs_to(pipe)
    logging.getLogger("collector").info(word)
    os.write(pipe.fileno(), b"\x00\x00\x10\x00half")  # 4096 bytes are announced
    os.kill(os.getpid(), signal.SIGSTOP)


def start(logs, target, argument):
    with logs.open("collector 0") as pipe:
        process = FORK.Process(target=target, args=(pipe, argument), daemon=True)
        process.start()
    return process


def test_records_are_handled_to_the_last(caplog, monkeypatch):
    monkeypatch.setattr(collectors, "LAST_RECORDS_WITHIN_S", 60.0)
    with contextlib.closing(LogPipes()) as logs:
        start(logs, say, 500).join(60)
    assert said(caplog) == [f"race {number}" for number in range(500)]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals, and pipes take messages whole")
def test_the_main_process_waits_for_no_collector_that_is_stopped_or_killed_within_a_record(
    caplog, monkeypatch, is_killed
):
    with contextlib.closing(LogPipes()) as logs:
        stuck = start(logs, say_half_a_record, "begun")
        try:
            wait_until(lambda: psutil.Process(stuck.pid).status() == psutil.STATUS_STOPPED)
            if is_killed:
                stuck.kill()
            start(logs, say, 3).join(60)
            wait_until(lambda: said(caplog) == ["begun", "race 0", "race 1", "race 2"])
            monkeypatch.setattr(collectors, "LAST_RECORDS_WITHIN_S", 0.5)
        except BaseException:
            stuck.kill()
            raise
    stuck.kill()
