"""What is stopped, hangs or dies is noticed and replaced, and what goes on meanwhile is not held up."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")


@pytest.mark.parametrize("transport", ["in_process", pytest.param("socket", marks=pytest.mark.slow)])
def test_a_stopped_collector_is_replaced_with_its_games_while_the_other_drives_on(
    start_training: Any, tmp_path: Path, transport: str
) -> None:
    run = start_training(
        tmp_path, n_collectors=2, games_per_collector=1, collector_silence_s=6.0, game_transport=repr(transport)
    )
    run.wait_for_races(6)
    stopped, other = sorted(run.collectors(), key=lambda process: process.pid)[-2:]
    games = [game for game in run.games() if game.ppid() == stopped.pid]
    assert len(games) == (1 if transport == "socket" else 0)
    os.kill(stopped.pid, signal.SIGSTOP)
    run.wait_for_races(3)
    run.wait_for(lambda: "no sign of life" in run.output, "line that says so")
    run.wait_for(lambda: not psutil.pid_exists(stopped.pid), "end of the stopped collector")
    run.wait_for(lambda: not psutil.wait_procs(games, 0)[1], "end of its game")
    run.wait_for(lambda: len(run.collectors()) == 2, "other collector in its place")
    run.wait_for_races(10)
    assert other.is_running(), run.output
    run.stop(signal.SIGINT)
    assert run.process.returncode == 0, run.output
    assert not run.survivors()


@pytest.mark.slow
def test_a_training_that_was_stopped_as_a_whole_loses_nobody(start_training: Any, tmp_path: Path) -> None:
    """As when a machine is suspended: all are stopped for longer than anybody may be silent, then all go on."""
    run = start_training(tmp_path, n_collectors=2, games_per_collector=1, collector_silence_s=4.0)
    run.wait_for_races(6)
    collectors = run.collectors()
    family = [psutil.Process(run.process.pid), *run.children("")]
    for _ in range(2):
        for process in family:
            process.suspend()
        time.sleep(12.0)
        for process in family:
            process.resume()
        run.wait_for_races(4)
    assert [process.is_running() for process in collectors] == [True, True], run.output
    assert "no sign of life" not in run.output
    run.stop(signal.SIGINT)
    assert run.process.returncode == 0, run.output


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_supervised_training_goes_on_where_it_was_and_ends_in_order(
    start_training: Any, tmp_path: Path, end: str
) -> None:
    settings = {"learner_silence_s": 6.0, "checkpoint_interval_s": 2.0, "n_collectors": 1}
    run = start_training(tmp_path, ("--supervised",), **settings)
    run.wait_for_races(10)
    run.wait_for(lambda: any(run.run_folder.glob("checkpoint*")), "checkpoint")
    [learner] = psutil.Process(run.process.pid).children()
    family = [learner, *learner.children(recursive=True)]
    os.kill(learner.pid, signal.SIGKILL if end == "killed" else signal.SIGSTOP)
    said = "ended with SIGKILL" if end == "killed" else "gave no sign of life for 6 s"
    run.wait_for(lambda: f"WARNING the training {said}; it starts again in 2 s" in run.output, "line that says so")
    assert psutil.wait_procs(family, timeout=30)[1] == []
    run.wait_for(lambda: "resumed" in run.output, "training that goes on", 120)
    run.wait_for_races(10)
    assert f"started again by --supervised, since the training {said}" in (run.run_folder / "train.log").read_text()
    run.stop(signal.SIGTERM)
    assert run.process.returncode == 0, run.output
    assert not run.survivors()
