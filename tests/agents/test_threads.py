"""The learner's number of threads: as configured, or what was faster."""

import os

import pytest
import torch

from trackmania_rl.agents import threads
from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.threads import pick_learner_threads

CPU = torch.device("cpu")


@pytest.fixture
def run(default_settings, agent_settings, make_network, monkeypatch):
    """Settings of a run with `learner_threads` on a machine of so many cores, and its network."""

    def make(learner_threads, *, n_cores=8, n_collectors=2):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)), raising=False)
        settings = default_settings.model_copy(
            update={
                "run": default_settings.run.model_copy(update={"learner_threads": learner_threads}),
                "game": default_settings.game.model_copy(update={"n_collectors": n_collectors}),
                "agent": agent_settings(),
            }
        )
        return settings, make_network(settings.agent)

    return make


def test_a_configured_number_is_taken_untried(run, monkeypatch):
    monkeypatch.setattr(threads, "_seconds_per_update", pytest.fail)
    assert pick_learner_threads(*run(3), CPU) == 3


@pytest.mark.parametrize(
    ("n_cores", "n_collectors", "device"), [(2, 1, "cpu"), (1, 1, "cpu"), (4, 16, "cpu"), (8, 1, "cuda")]
)
def test_without_a_free_core_there_is_one_thread(run, monkeypatch, n_cores, n_collectors, device):
    monkeypatch.setattr(threads, "_seconds_per_update", pytest.fail)
    assert pick_learner_threads(*run("auto", n_cores=n_cores, n_collectors=n_collectors), torch.device(device)) == 1


@pytest.mark.parametrize(
    ("seconds", "expected"), [([2.0, 1.0], 6), ([1.0, 1.0], 1), ([1.05, 1.0], 1), ([1.0, 10.0], 1)]
)
def test_more_threads_must_be_clearly_faster(run, monkeypatch, seconds, expected):
    monkeypatch.setattr(threads, "_seconds_per_update", lambda *_: seconds)
    assert pick_learner_threads(*run("auto"), CPU) == expected


def test_trying_leaves_network_and_threads_as_they_were(run, monkeypatch):
    monkeypatch.setattr(threads, "TRIAL_S", 0.01)
    settings, network = run("auto", n_cores=4)
    before, threads_before = flatten_parameters(network).clone(), torch.get_num_threads()
    assert pick_learner_threads(settings, network, CPU) in (1, 2)
    assert torch.equal(flatten_parameters(network), before)
    assert torch.get_num_threads() == threads_before
