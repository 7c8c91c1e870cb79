"""Trainings under conditions that are rare or take long; `python -m pytest -m slow tests/end_to_end` runs them."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from trackmania_rl.runs.reading import find_manifests
from trackmania_rl.telemetry.live import LiveReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SOCKET = {"game_transport": "'socket'"}


def frames_saved(run_folder):
    return max((manifest.frames for manifest in find_manifests(run_folder).values()), default=0)


@pytest.mark.parametrize("transport", ["socket", "in_process"])
@pytest.mark.parametrize("delay_s", [0.3, 1.5, 3.0, 4.5, 6.0, 8.0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_during_start_up(start_training, tmp_path, delay_s, number, transport):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    command = start_training(tmp_path, environment=environment, game_transport=repr(transport))
    time.sleep(delay_s)
    command.stop(number, whole_group=number == signal.SIGINT)
    assert "Traceback" not in command.output, command.output
    assert "leaked" not in command.output, command.output
    assert not command.survivors()
    # Before Python has come to the command's own first lines, a signal does what it always does.
    assert command.process.returncode in (0, 130, -number), command.output


@pytest.mark.parametrize("transport", ["socket", "in_process"])
def test_a_killed_main_process_leaves_nothing_but_its_last_checkpoint(start_training, tmp_path, transport):
    settings = {"game_transport": repr(transport), "n_collectors": 2, "checkpoint_interval_s": 1.0}
    command = start_training(tmp_path, ("--dashboard",), **settings)
    command.wait_for_races(6)
    assert command.children("trackmania_rl.telemetry.page")
    n_frames = command.races[-1]["frames_total"]
    command.wait_for(lambda: frames_saved(command.run_folder) >= n_frames, "a checkpoint of them")
    reader = LiveReader(command.run_folder)
    command.stop(signal.SIGKILL)
    assert not command.survivors(), "collectors, games and the page"

    resumed = start_training(tmp_path, **settings)
    resumed.wait_for_races(2)
    resumed.wait_for(lambda: {car.collector for car in reader.cars()} == {0, 1}, "cars of both collectors")
    resumed.stop(signal.SIGTERM)
    said = re.search(r"resumed .* at frame ([\d,]+)", resumed.output)
    assert said is not None, resumed.output
    assert int(said[1].replace(",", "")) >= n_frames


def test_training_continues_while_games_fail_at_random(start_training, tmp_path):
    ledger = tmp_path / "chaos.ledger"
    command = start_training(
        tmp_path,
        environment={
            "SIMULATED_GAME_SCRIPT": str(Path(__file__).parent.parent / "faults" / "chaotic_game.py"),
            "SIMULATED_GAME_CHAOS": "random@share=0.3,seed=5",
            "SIMULATED_GAME_CHAOS_LEDGER": str(ledger),
        },
        **SOCKET,
        tmi_protection_timeout_s=6.0,
        cutoff_race_longer_than_ms=6_000,
    )

    def faults():
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return [line for line in lines if line != "start"]

    command.wait_for(lambda: len(command.races) >= 40 and len(faults()) >= 8, "40 races and 8 faults", within_s=700)
    command.stop(signal.SIGINT, whole_group=True)
    assert command.process.returncode == 0
    assert not command.survivors()
    assert "Traceback" not in command.output, command.output
    assert find_manifests(command.run_folder)
    kinds = {line.split("'")[1] for line in faults()}
    assert len(kinds) >= 3, kinds


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
@pytest.mark.parametrize(
    ("number", "said"), [("SIGKILL", "ended with SIGKILL"), ("SIGSTOP", "has had no heartbeat for 6 s")]
)
def test_a_supervised_training_resumes_and_ends_in_order(start_training, tmp_path, number, said):
    settings = {"learner_silence_s": 6.0, "checkpoint_interval_s": 2.0, "n_collectors": 1}
    run = start_training(tmp_path, ("--supervised",), **settings)
    run.wait_for_races(10)
    run.wait_for(lambda: any(run.run_folder.glob("checkpoint*")), "checkpoint")
    [learner] = psutil.Process(run.process.pid).children()
    family = [learner, *learner.children(recursive=True)]
    os.kill(learner.pid, getattr(signal, number))
    run.wait_for(lambda: f"WARNING the training {said}; it starts again in 2 s" in run.output, "line that says so")
    assert psutil.wait_procs(family, timeout=30)[1] == []
    run.wait_for(lambda: "resumed" in run.output, "training that goes on", 120)
    run.wait_for_races(10)
    assert f"started again by --supervised, since the training {said}" in (run.run_folder / "train.log").read_text()
    run.stop(signal.SIGTERM)
    assert run.process.returncode == 0, run.output
    assert not run.survivors()
