"""The learner's number of threads: as configured, or what was faster."""

import os

import pytest
import torch

from trackmania_rl.agents import threads
from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.agents.threads import pick_learner_threads
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree


@pytest.fixture
def pick(default_settings, agent_settings, monkeypatch):
    """Picks for a run with `learner_threads` on a machine of so many cores."""

    def make(learner_threads, *, n_cores=8, n_collectors=2, device="cpu"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)), raising=False)
        monkeypatch.setattr(threads, "pick_device", torch.device)
        settings = default_settings.model_copy(
            update={
                "run": default_settings.run.model_copy(
                    update={"learner_threads": learner_threads, "torch_device": device}
                ),
                "game": default_settings.game.model_copy(update={"n_collectors": n_collectors}),
                "agent": agent_settings(),
            }
        )
        return pick_learner_threads(settings, race_spaces(settings), SeedTree(0), make_agent_builder)

    return make


@pytest.mark.parametrize(
    ("n_cores", "n_collectors", "device"), [(2, 1, "cpu"), (1, 1, "cpu"), (4, 16, "cpu"), (8, 1, "cuda")]
)
def test_without_a_free_core_there_is_one_thread(pick, monkeypatch, n_cores, n_collectors, device):
    monkeypatch.setattr(threads, "_seconds_per_update", pytest.fail)
    assert pick("auto", n_cores=n_cores, n_collectors=n_collectors, device=device) == 1


@pytest.mark.parametrize(
    ("seconds", "expected"), [([2.0, 1.0], 6), ([1.0, 1.0], 1), ([1.05, 1.0], 1), ([1.0, 10.0], 1)]
)
def test_more_threads_must_be_clearly_faster(pick, monkeypatch, seconds, expected):
    monkeypatch.setattr(threads, "_seconds_per_update", lambda *_: seconds)
    assert pick("auto") == expected
    assert pick(3) == 3, "as configured"


def test_trying_leaves_threads_as_they_were(pick, monkeypatch):
    monkeypatch.setattr(threads, "TRIAL_S", 0.01)
    threads_before = torch.get_num_threads()
    assert pick("auto", n_cores=4) in (1, 2)
    assert torch.get_num_threads() == threads_before
