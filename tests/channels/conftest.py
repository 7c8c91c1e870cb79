"""Small races, and a run's channels in each implementation."""

import copy
import multiprocessing
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.channels import protocols
from trackmania_rl.channels.protocols import WEIGHTS_KINDS, Channels
from trackmania_rl.channels.shared_memory.rollouts import RolloutBounds, SharedRolloutSource
from trackmania_rl.channels.shared_memory.run_state import SharedRunState
from trackmania_rl.settings import load_settings

SPAWN = multiprocessing.get_context("spawn")
CHILDREN = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
"""Starts processes of the tests. They get the same pickles as spawned ones, and import numpy once for all."""
BOUNDS = RolloutBounds(max_actions=20, image_height_px=6, image_width_px=8, n_floats=5, n_values=3)


def network_of(value):
    """Two layers whose parameters are all the same."""
    network = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)
    return network


def assert_is_race(rollout, expected_results, expected_stats):
    assert rollout.rollout_results.keys() == expected_results.keys()
    for name, expected in expected_results.items():
        np.testing.assert_array_equal(rollout.rollout_results[name], expected)
        assert np.asarray(rollout.rollout_results[name]).dtype == np.asarray(expected).dtype
    assert rollout.end_race_stats == expected_stats


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

    multiprocessing.set_forkserver_preload(["rollout_children", "trackmania_rl.channels.shared_memory.rollouts"])
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


def _open_shared(settings, slots, games):
    weights = {kind: flatten_parameters(network_of(0.5)) for kind in WEIGHTS_KINDS}
    run_state = SharedRunState(settings, weights)
    return Channels(SharedRolloutSource(BOUNDS, slots, games, stop=run_state.stop_flag), run_state)


def _open_ray(settings, slots, games):
    """With collectors of this process in place of actors; what the learner takes goes through Ray's store."""
    import ray

    from trackmania_rl.channels.over_ray import CollectorEnds, RayRollouts, RayRunState

    def start(*arguments):
        ends = CollectorEnds(*arguments)
        take = SimpleNamespace(remote=lambda *arguments: ray.put(ends.take(*arguments)))
        return SimpleNamespace(ends=ends, take=take)

    run_state = RayRunState(settings, {kind: network_of(0.5) for kind in WEIGHTS_KINDS})
    rollouts = RayRollouts(start, BOUNDS, run_state, slots, games)
    open_actor = rollouts.open_collector
    rollouts.open_view = lambda: open_actor(99).ends.run_state
    rollouts.open_collector = lambda collector: open_actor(collector).ends.sink
    return Channels(rollouts, run_state)


def view_of(channels):
    """The run state as a new collector has it."""
    if isinstance(channels.run_state, SharedRunState):
        view = copy.copy(channels.run_state)
        view.pull()
        return view
    return channels.rollouts.open_view()


IMPLEMENTATIONS = {"shared memory": _open_shared, "ray": _open_ray}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    """Heartbeats of waits, and looks for the run's end, a hundred times a second."""
    monkeypatch.setattr(protocols, "LOOK_EVERY_S", 0.01)


@pytest.fixture(params=IMPLEMENTATIONS)
def open_channels(request, settings):
    """`open_channels(slots_per_collector=2, games_per_collector=1)` opens them in each implementation in turn."""
    if request.param == "ray":
        request.getfixturevalue("ray_here")
        patch = request.getfixturevalue("monkeypatch").setattr
        patch("trackmania_rl.channels.over_ray.TAKE_WITHIN_S", 0.02)
        patch("trackmania_rl.channels.over_ray.WEIGHTS_EVERY_S", 0.0)
    opened = []

    def open_them(slots_per_collector=2, games_per_collector=1):
        channels = IMPLEMENTATIONS[request.param](settings, slots_per_collector, games_per_collector)
        opened.append(channels)
        return channels

    yield open_them
    for channels in opened:
        channels.rollouts.close()
