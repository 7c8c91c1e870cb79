"""The learner's number of threads: as configured, or what was faster."""

import os

import pytest
import torch

from trackmania_rl.agents import devices
from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.agents.devices import pick_learner_threads
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import settings_from_flat


@pytest.fixture
def pick(default_settings, agent_settings, monkeypatch):
    """Picks for a run with `learner_threads` on a machine of so many cores, where updates take `seconds`."""

    def make(learner_threads, seconds=None, n_cores=8, n_collectors=2, device="cpu"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)), raising=False)
        monkeypatch.setattr(devices, "pick_device", torch.device)
        if seconds is not None:
            monkeypatch.setattr(devices, "_seconds_per_update", lambda *_: seconds)
        run = {"learner_threads": learner_threads, "torch_device": device, "n_collectors": n_collectors}
        settings = settings_from_flat(default_settings.flat() | run).model_copy(update={"agent": agent_settings()})
        return pick_learner_threads(settings, race_spaces(settings), SeedTree(0), make_agent_builder)

    return make


@pytest.mark.parametrize(
    ("machine", "seconds", "expected"),
    [
        ({"learner_threads": 3}, [], 3),
        ({"n_cores": 2, "n_collectors": 1}, [], 1),
        ({"n_cores": 4, "n_collectors": 16}, [], 1),
        ({"device": "cuda"}, [], 1),
        ({}, [2.0, 1.0], 6),
        ({}, [1.05, 1.0], 1),
    ],
)
def test_free_cores_are_used_if_updates_become_clearly_faster(pick, machine, seconds, expected):
    assert pick(**{"learner_threads": "auto"} | machine, seconds=seconds) == expected


def test_trying_leaves_threads_as_they_were(pick, monkeypatch):
    monkeypatch.setattr(devices, "TRIAL_S", 0.01)
    threads_before = torch.get_num_threads()
    assert pick("auto", n_cores=4) in (1, 2)
    assert torch.get_num_threads() == threads_before
