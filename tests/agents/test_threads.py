"""The learner's number of threads: as configured, or the faster one."""

import os

import pytest
import torch

from trackmania_rl.agents import threads
from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree


@pytest.fixture
def pick(default_settings, agent_settings, monkeypatch):
    """`pick(learner_threads, n_cores=8, n_collectors=2)` on a machine of so many cores."""

    def make(learner_threads, *, n_cores=8, n_collectors=2):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)), raising=False)
        run = {"learner_threads": learner_threads, "torch_device": "cpu"}
        changes = {
            "run": default_settings.run.model_copy(update=run),
            "game": default_settings.game.model_copy(update={"n_collectors": n_collectors}),
            "agent": agent_settings(),
        }
        settings = default_settings.model_copy(update=changes)
        return threads.pick_learner_threads(settings, race_spaces(settings), SeedTree(0), make_agent_builder)

    return make


@pytest.mark.parametrize(
    ("seconds", "cores", "expected"),
    [
        ([2.0, 1.0], {}, 6),
        ([1.05, 1.0], {}, 1),  # not clearly faster
        ([1.0, 10.0], {}, 1),
        (None, {"n_cores": 2, "n_collectors": 1}, 1),  # no free core: nothing is tried
        (None, {"n_cores": 4, "n_collectors": 16}, 1),
    ],
)
def test_more_threads_must_be_clearly_faster(pick, monkeypatch, seconds, cores, expected):
    monkeypatch.setattr(threads, "_seconds_per_update", lambda *_: seconds or pytest.fail("tried"))
    assert pick("auto", **cores) == expected
    assert pick(3, **cores) == 3, "as configured"


def test_trying_leaves_threads_as_they_were(pick, monkeypatch):
    monkeypatch.setattr(threads, "TRIAL_S", 0.01)
    threads_before = torch.get_num_threads()
    assert pick("auto", n_cores=4) in (1, 2)
    assert torch.get_num_threads() == threads_before
