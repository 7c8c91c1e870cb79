"""Small races, and a run's channels."""

import copy
import multiprocessing
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from torch import nn

from trackmania_rl.channels import rollouts
from trackmania_rl.channels.rollouts import Rollouts
from trackmania_rl.channels.run_state import WEIGHTS_KINDS, Channels, SharedRunState
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import load_settings

SPAWN = multiprocessing.get_context("spawn")
CHILDREN = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
"""Starts processes of the tests. They get the same pickles as spawned ones, and import numpy once for all."""
MAX_ACTIONS = 20
SPACES = Spaces((0.0,) * 5, (1.0,) * 5, Discrete(3), (1, 6, 8))


def network_of(value):
    """Two layers whose parameters are all the same."""
    network = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)
    return network


def assert_is_race(received, expected):
    assert received.columns.keys() == expected.columns.keys()
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(received.columns[name], column)
        assert received.columns[name].dtype == column.dtype
    of_channel = {name: getattr(received.facts, name) for name in ("collector", "waited_s", "elapsed_s")}
    assert received.facts == expected.facts.with_changes(**of_channel)


def acquired(sink, game=0, timeout_s=60.0):
    frames = sink.acquire_frames(game, timeout_s)
    assert frames is not None
    return frames


def got(source):
    rollout = source.get(timeout_s=60.0)
    assert rollout is not None
    return rollout


@pytest.fixture
def children(monkeypatch):
    """The module of the processes' functions, importable in the processes too (they inherit sys.path)."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import rollout_children

    multiprocessing.set_forkserver_preload(["rollout_children", "trackmania_rl.channels.rollouts"])
    return rollout_children


@pytest.fixture
def start(children):
    """`start(function, *arguments)` starts a process, which is killed at the test's end."""
    started = []

    def start_it(function, *arguments):
        started.append(CHILDREN.Process(target=function, args=arguments, daemon=True))
        started[-1].start()
        return started[-1]

    yield start_it
    for process in started:
        process.kill()
        process.join(60)


@pytest.fixture(scope="session")
def settings(repository_root):
    return load_settings(repository_root / "config_files" / "config.py")


def view_of(channels):
    """The run state as a new collector has it."""
    view = copy.copy(channels.run_state)
    view.pull()
    return view


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    """Heartbeats of waits, and looks for the run's end, a hundred times a second."""
    monkeypatch.setattr(rollouts, "WAKE_EVERY_S", 0.01)


@pytest.fixture
def open_channels(settings):
    """`open_channels(slots_per_collector=2, games_per_collector=1)` opens those of a run."""
    opened = []

    def open_them(slots_per_collector=2, games_per_collector=1):
        networks = {kind: network_of(0.5) for kind in WEIGHTS_KINDS}
        run_state = SharedRunState(settings, networks)
        of_run = Rollouts(MAX_ACTIONS, SPACES, slots_per_collector, games_per_collector, stop=run_state.stop_flag)
        opened.append(Channels(of_run, run_state))
        return opened[-1]

    yield open_them
    for channels in opened:
        channels.rollouts.close()
