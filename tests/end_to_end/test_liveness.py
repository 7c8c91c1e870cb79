"""Trainings that are suspended, killed or hang: what lives is left alone, and what does not is started again."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from .conftest import StartTraining

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")]


def test_a_training_that_was_stopped_as_a_whole_loses_no_collector(
    start_training: StartTraining, tmp_path: Path
) -> None:
    run = start_training(tmp_path, n_collectors=2, games_per_collector=1, collector_silence_s=4.0)
    run.wait_for_races(6)
    collectors = run.collectors()
    family = [psutil.Process(run.process.pid), *run.children("")]
    for _ in range(2):
        for process in family:
            process.suspend()
        time.sleep(12.0)  # as when a machine is suspended: longer than a collector may be silent
        for process in family:
            process.resume()
        run.wait_for_races(4)
    assert all(process.is_running() for process in collectors), run.output
    assert "no sign of life" not in run.output
    run.stop(signal.SIGINT)
    assert run.process.returncode == 0, run.output


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "ended with SIGKILL"), (signal.SIGSTOP, "gave no sign of life for 6 s")],
    ids=["killed", "stopped"],
)
def test_a_supervised_training_resumes_and_ends_in_order(
    start_training: StartTraining, tmp_path: Path, number: signal.Signals, said: str
) -> None:
    settings = {"learner_silence_s": 6.0, "checkpoint_interval_s": 2.0, "n_collectors": 1}
    run = start_training(tmp_path, ("--supervised",), **settings)
    run.wait_for_races(10)
    run.wait_for(lambda: any(run.run_folder.glob("checkpoint*")), "checkpoint")
    [learner] = psutil.Process(run.process.pid).children()
    family = [learner, *learner.children(recursive=True)]
    os.kill(learner.pid, number)
    run.wait_for(lambda: f"WARNING the training {said}; it starts again in 2 s" in run.output, "line that says so")
    assert psutil.wait_procs(family, timeout=30)[1] == []
    run.wait_for(lambda: "resumed" in run.output, "training that goes on", 120)
    run.wait_for_races(10)
    assert f"started again by --supervised, since the training {said}" in (run.run_folder / "train.log").read_text()
    run.stop(signal.SIGTERM)
    assert run.process.returncode == 0, run.output
    assert not run.survivors()
