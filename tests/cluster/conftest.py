"""Trainings on a Ray cluster, and waiting for them."""

import pytest

from benchmarks.training_command import TrainCommand

from ..end_to_end.conftest import SMALL

ONE_COLLECTOR = {**SMALL, "n_collectors": 1, "collector_silence_s": 4, "checkpoint_interval_s": 5}


@pytest.fixture
def start(tmp_path):
    """`start(cluster, **settings)` starts a training in the test's folder; no cluster is this machine alone."""
    commands = []

    def start_it(cluster, **settings):
        options = ("--cluster", cluster) if cluster else ()
        commands.append(TrainCommand(tmp_path, {**ONE_COLLECTOR, **settings}, options))
        return commands[-1]

    yield start_it
    for command in commands:
        command.end()
