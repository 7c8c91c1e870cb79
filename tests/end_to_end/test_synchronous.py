"""Synchronous trainings of whole races, as commands: interrupted or killed and resumed, they are the same to the byte.

A quarter of an hour: python -m pytest -m slow tests/end_to_end/test_synchronous.py
"""

import signal
import time

import numpy as np
import pytest

from trackmania_rl.runs.reading import load_checkpoint

from ..training.test_turns import GENERATED, THREE_MAPS, digest_of, races_of

N_FRAMES = 10_000  # more than are driven before the interruptions
VARIANTS = {
    "whole races": {},
    "sockets": {"game_transport": "'socket'"},
    "three maps and generated tracks": {"map_cycle": repr((*THREE_MAPS, GENERATED))},
    "prioritized replay": {"prio_alpha": 0.6},
    "SAC": {
        "agent": "'trackmania_rl.agents.torchrl_agent:SAC'",
        "actions": "'analog'",
        "gamma_schedule": "((0, 0.99),)",
    },
}
SYNCHRONOUS = {"sampling": "'synchronous'", "n_collectors": 2, "cutoff_race_longer_than_ms": 8_000}


def what_came_out(command):
    """The race log without times and sessions, and the checkpoint."""
    return races_of(command.run_folder / "run.sqlite"), digest_of(load_checkpoint(command.run_folder).state)


def finish(start_training, folder, **settings):
    command = start_training(folder, ("--max-frames", str(N_FRAMES)), **SYNCHRONOUS, **settings)
    assert command.process.wait(300) == 0, command.output
    return command


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("variant", VARIANTS)
def test_interrupted_and_killed_at_any_moment_it_is_still_the_same_run(start_training, tmp_path, variant):
    settings = VARIANTS[variant]
    races, state = what_came_out(finish(start_training, tmp_path / "once", **settings))
    assert len(races) >= 8
    assert state["agent"]["updates"] > 50

    folder, random = tmp_path / "ended", np.random.default_rng(3)
    for number in (signal.SIGINT, signal.SIGKILL, signal.SIGKILL):
        ended = start_training(folder, **SYNCHRONOUS, **settings, checkpoint_interval_s=0.5)
        ended.wait_for_races(1)
        time.sleep(random.uniform(0.0, 1.5))
        ended.stop(number, whole_group=number == signal.SIGINT)
        assert ended.process.returncode == (0 if number == signal.SIGINT else -number), ended.output
        if len(ended.races) > len(races) // 2:
            break
    assert what_came_out(finish(start_training, folder, **settings)) == (races, state)
