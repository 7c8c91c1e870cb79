"""The run log: its writer, its readers, and disks that fail."""

import contextlib
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import deque

import pytest

from tests.run_log import write_messages, write_races
from tests.telemetry.conftest import race_record
from trackmania_rl.errors import UserError
from trackmania_rl.runs import log as log_module
from trackmania_rl.runs.log import (
    MessageHandler,
    RunLog,
    RunStatus,
    iterate_races,
    logged_figures,
    newest_messages,
    newest_race,
    race_rows,
    races_with_learning,
    read_status,
)

FACTS = race_record(31_250, collector=1, meters=812.12345, checkpoint_times_ms=(12_000, 20_500, 31_250))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


def frames(path):
    return [race["frames_total"] for race in iterate_races(path)]


def test_each_race_is_readable_at_once(path):
    log = RunLog(path, lambda: 1.5, session=7)
    assert list(iterate_races(path)) == []
    log.write(FACTS, frames_total=625)
    assert list(iterate_races(path)) == [
        {
            "session": 7,
            "wall_s": 1.5,
            "frames_total": 625,
            "map": "valley",
            "is_explo": True,
            "race_finished": True,
            "race_time_ms": 31_250,
            "meters": 812.123,
            "collector": 1,
            "cutoff_reason": None,
            "is_demonstration": False,
            "checkpoint_times_ms": [12_000, 20_500, 31_250],
        }
    ]
    generated = FACTS.with_changes(track="generated_0.412_7", is_generated=True)
    log.write(generated, 1_250)
    log.write(FACTS.with_changes(progress_unit="points"), 1_300)
    second, third = list(iterate_races(path))[1:]
    assert second["track"] == "generated_0.412_7"
    assert (third["progress_unit"], third["n_actions"]) == ("points", FACTS.n_actions)
    assert next(race_rows(path, after_id=1, most=1))["id"] == 2
    log.close()


def test_a_resumed_run_marks_races_after_its_checkpoint_as_undone(path):
    write_races(path, [_race(number) for number in (5, 9, 12, 40)])
    log = RunLog(path, lambda: 0.0, 2)
    assert log.undo_after(12) == 1
    log.write(FACTS, 15)
    assert frames(path) == [5, 9, 12, 15]
    assert newest_race(path) == (5, 2), "no number repeats"
    log.close()
    again = RunLog(path, lambda: 0.0, 3)
    assert again.undo_after(12) == 1, "those undone before are not counted again"
    again.close()


def test_figures_are_logged_and_undone_with_the_races(path):
    log = RunLog(path, lambda: 0.0, 1)
    log.write(FACTS, 10)
    log.write_figures({"train/loss": 0.123456789, "train/nan": float("nan"), "rollout/x/valley": 1.0}, 10)
    log.write(FACTS, 20)
    log.write_figures({"train/loss": 0.5}, 20)
    log.close()
    again = RunLog(path, lambda: 0.0, 2)
    again.undo_after(10)
    again.write_figures({"train/loss": 0.25, "train/update_ms": 4}, 10)
    again.write(FACTS, 15)
    again.write(FACTS, 25)
    again.close()
    names = [(figure.id, figure.frames_total, figure.name) for figure in logged_figures(path)]
    assert names == [
        (1, 10, "train/loss"),
        (2, 10, "rollout/x/valley"),
        (4, 10, "train/loss"),
        (5, 10, "train/update_ms"),
    ]
    assert [figure.id for figure in logged_figures(path, after_id=1, most=1, like="train/%")] == [4]
    learning = [race.get("learning") for race in races_with_learning(path)]
    assert learning == [None, {"train/loss": 0.25, "train/update_ms": 4.0}, None]


def _race(frames_total):
    return {"wall_s": 1.0, "frames_total": frames_total, "map": "valley", "is_explo": True}


@pytest.mark.skipif(sys.platform == "win32", reason="an open file stays there")
def test_a_log_that_was_deleted_while_the_run_trains_is_made_again(path):
    log = RunLog(path, lambda: 0.0, 7)
    log.write(FACTS, 1)
    for file in path.parent.glob("run.sqlite*"):
        file.unlink()
    log.write(FACTS, 2)
    path.rename(path.with_name("moved.sqlite"))
    log.write(FACTS, 3)
    assert frames(path) == [3]
    log.close()
    assert [file.name for file in path.parent.glob("run.sqlite*")] == ["run.sqlite"]


@pytest.fixture
def retries_at_once(monkeypatch):
    monkeypatch.setattr(log_module, "RETRY_EVERY_S", 0.0)


@pytest.mark.usefixtures("retries_at_once")
def test_races_wait_while_the_disk_is_full(path):
    log = RunLog(path, lambda: 0.0, 1)
    connection = log._open()
    (n_pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {n_pages + 2}")
    with pytest.raises(OSError, match="full"):
        deque(log.write(FACTS, number) for number in range(1, 1000))
    log.write(FACTS, 1000)
    written = frames(path)
    assert written == [*range(1, len(written)), 1000], "no race is lost"
    log.close()


def test_a_disk_that_fails_is_tried_again_at_intervals(path, monkeypatch):
    log = RunLog(path, lambda: 0.0, 1)
    tries = []

    def fail():
        tries.append(len(log._waiting))
        raise OSError("full")

    with monkeypatch.context() as full:
        full.setattr(log, "_write_waiting", fail)
        with pytest.raises(OSError, match="full"):
            log.write(FACTS, 1)
        for number in range(2, 50):
            log.write(FACTS, number)
    assert tries == [1], "a try takes longer the more races wait"
    log.close()
    assert frames(path) == list(range(1, 50))


def test_a_reader_waits_while_a_training_opens_the_log(path):
    RunLog(path, lambda: 0.0, 1).close()
    opening = sqlite3.connect(path, check_same_thread=False)
    opening.execute("PRAGMA locking_mode = EXCLUSIVE")
    opening.execute("PRAGMA journal_mode = WAL")
    opening.execute("DELETE FROM races")
    opening.commit()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(path, timeout=0.0).execute("SELECT * FROM races")
    threading.Timer(0.2, opening.close).start()
    assert list(iterate_races(path)) == []


@pytest.mark.usefixtures("retries_at_once")
def test_a_locked_log_is_written_later(path):
    log = RunLog(path, lambda: 0.0, 1)
    with sqlite3.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match="locked"):
            log.write(FACTS, 1)
        other.rollback()
    other.close()
    log.write(FACTS, 2)
    log.close()
    assert frames(path) == [1, 2]


def test_a_log_that_another_connection_locks_for_a_moment_is_written_at_once(path):
    log = RunLog(path, lambda: 0.0, 1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.02, other.rollback)
        release.start()
        log.write(FACTS, 1)
        release.join()
    assert frames(path) == [1]
    log.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_no_race_is_lost_when_the_learner_is_killed(path):
    script = f"""
import itertools, pathlib
from tests.runs.test_log import FACTS, RunLog
log = RunLog(pathlib.Path({str(path)!r}), lambda: 0.0, 1)
for number in itertools.count(1):
    log.write(FACTS, number)
    print(number, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as writer:
        written = [int(writer.stdout.readline()) for _ in range(50)]
        writer.send_signal(signal.SIGKILL)
        written += [int(line) for line in writer.stdout.read().splitlines()]
    assert frames(path)[: len(written)] == written
    RunLog(path, lambda: 0.0, 2).close()
    assert frames(path)[: len(written)] == written


def test_a_reader_makes_no_file_and_names_a_log_it_cannot_read(path, tmp_path):
    with pytest.raises(UserError, match="No such file"):
        list(iterate_races(path))
    write_races(path, [_race(1)])
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
    assert frames(path) == [1]
    tmp_path.chmod(0o700)
    assert [file.name for file in tmp_path.iterdir()] == ["run.sqlite"]
    path.write_text("no log")
    with pytest.raises(UserError, match="not a database"):
        newest_race(path)
    with pytest.raises(UserError, match="cannot be written to: file is not a database"):
        RunLog(path, lambda: 0.0, 1)


def test_a_summary_tool_writes_lines(path, tmp_path, repository_root):
    write_races(path, [_race(1), _race(2)])
    tool = [sys.executable, repository_root / "scripts" / "tools" / "summarize_runs.py", tmp_path]
    subprocess.run([*tool, "--races", tmp_path / "races.jsonl"], check=True)
    lines = [json.loads(line) for line in (tmp_path / "races.jsonl").read_text().splitlines()]
    assert lines == list(races_with_learning(path))


def test_messages_are_logged_with_their_time_level_and_process(path):
    write_messages(path, ["the first", "the second %s"])
    log = RunLog(path, lambda: 0.0, 1)
    handler = MessageHandler(log)
    try:
        raise ValueError("a bug")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("a test", logging.ERROR, __file__, 1, "failed: %d", (7,), error)
    record.created = 1e9
    handler.handle(record)
    first, second, third = newest_messages(path, most=9)
    assert [first.text, second.text] == ["the first", "the second %s"]
    assert (third.time_s, third.level, third.process) == (1e9, "ERROR", "MainProcess")
    assert third.text.startswith("failed: 7\nTraceback")
    assert third.text.endswith("ValueError: a bug")
    assert newest_messages(path, most=2) == [second, third]
    assert newest_messages(path, most=9, after_id=second.id) == [third]
    log.close()


def test_threads_write_one_log(path):
    log = RunLog(path, lambda: 0.0, 1)

    def write(number):
        for step in range(50):
            log.write_status(RunStatus(is_over=False, timestamp_s=number))
            log.write_figures({f"figure {number}": step}, step)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(logged_figures(path))) == 200
    assert read_status(path).timestamp_s in range(4)
    log.close()
