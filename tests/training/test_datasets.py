"""Data sets in the memory of a run: before its first race, or without any race (offline training)."""

import dataclasses
import logging
import os
import signal
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.dataset_environments import environment_spec
from trackmania_rl.experience_replay.episodes import DataSetForm, episode_of_race
from trackmania_rl.experience_replay.minari_files import write_dataset
from trackmania_rl.processes import OF_THE_TERMINAL
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.run import train
from trackmania_rl.runs.reading import find_manifests
from trackmania_rl.runs.snapshot import read_snapshot
from trackmania_rl.settings import settings_from_flat
from trackmania_rl.training.datasets import open_datasets
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.learner import FRAMES_PER_ROUND

from .conftest import edit, n_stored


class EndAfterUpdates(Hook):
    """Ends the run after so many updates."""

    def __init__(self, n_updates):
        self.n_updates = n_updates

    def __call__(self):
        return self.run.agent.updates >= self.n_updates


@pytest.fixture
def form(live):
    return DataSetForm(race_spaces(live.current))


@pytest.fixture
def write(live, form, make_race, tmp_path):
    """`write(name, lengths)` writes races of so many actions, the last one finished; returns the folder's name."""
    pytest.importorskip("minari", reason='python -m pip install "minari[hdf5]"')

    def make(name, *lengths, change=lambda episode: episode):
        episodes = []
        for n_actions in lengths:
            race = make_race(n_actions, n_actions == lengths[-1], race_time_ms=n_actions * 50 - 20)
            race.rewards = np.linspace(-1, 1, n_actions).astype(np.float32)
            episodes.append(change(episode_of_race(race, form, 50, {})))
        write_dataset(f"tested/{name}-v0", episodes, form, environment_spec(live.current), "tested", tmp_path)
        return f"tested/{name}-v0"

    return make


@pytest.fixture
def run_with(live, make_run, tmp_path):
    """`run_with(names, n_collectors=1)` begins a run with these data sets, or goes on with it."""

    def make(*names, n_collectors=1, **how):
        edit(live, offline=names, n_collectors=n_collectors)
        return make_run(datasets=open_datasets(live.current, race_spaces(live.current), tmp_path), **how)

    return make


def test_they_are_in_the_memory_before_the_first_race(write, run_with, make_race, caplog):
    with caplog.at_level(logging.INFO):
        run = run_with(write("first", 30, 41), write("second", 17))
    assert n_stored(run) == 30 + 41 + 17
    assert "tested/first-v0: 71 transitions of 2 races are in the memory" in caplog.text
    assert run.agent.updates == 0
    assert run.context.statistics.frames_total == 0
    run.train_on([make_race(10, False)])
    assert run.agent.updates == (30 + 41 + 17 + 10) * 2 // 13, "each is trained on as often as configured"
    long = run_with(write("long", 200, 150), name="long")
    assert len(long.buffer.ring) == 300
    assert "tested/long-v0 has 352 states, but the memory has room for 300" in caplog.text


def test_rewards_are_those_of_the_configuration_that_learns_or_without_columns_those_recorded(live, write, run_with):
    edit(live, constant_reward_per_ms=-0.5, reward_per_m_advanced_along_centerline=0.0)
    rewards = run_with(write("first", 30), name="with columns").buffer.ring.columns.rewards[:30]
    assert rewards[:29].tolist() == pytest.approx([-25.0] * 29)
    assert rewards[29].item() == pytest.approx(-0.5 * 30), "the finish came 20 ms before the last action's end"
    bare = write("bare", 30, change=lambda episode: dataclasses.replace(episode, infos={}))
    columns = run_with(bare, name="without").buffer.ring.columns
    assert columns.rewards[:30].numpy().tobytes() == np.linspace(-1, 1, 30).astype(np.float32).tobytes()
    assert columns.steps_to_finish[:31].tolist() == list(range(30, -1, -1))


@pytest.mark.parametrize("holds_replay", [True, False])
def test_a_resumed_run_loads_them_again_only_where_its_checkpoint_lacks_them(
    live, write, run_with, make_race, holds_replay
):
    edit(live, checkpoint_holds_replay=holds_replay)
    first, second = write("first", 30, 41), write("second", 17)
    run = run_with(first)
    run.train_on([make_race(10, False)])
    run.save()
    run.close_files()
    again = run_with(first)
    assert n_stored(again) == 30 + 41 + 10 * holds_replay
    if holds_replay:
        before, after = (one.buffer.ring.state_dict() for one in (run, again))
        assert (after["first_row"], after["end_row"]) == (before["first_row"], before["end_row"])
        assert all(torch.equal(column, after["columns"][name]) for name, column in before["columns"].items())
        again.close_files()
        again = run_with(first, second)
    n_new = 17 * holds_replay  # of a data set that was named since
    assert n_stored(again) == 30 + 41 + 10 * holds_replay + n_new
    again.train_on([make_race(10, False)])
    assert again.agent.updates == (30 + 41 + 10 + n_new + 10) * 2 // 13


def test_without_collectors_the_learner_learns_from_them_alone_and_resumes_to_the_same_weights(live, write, run_with):
    edit(live, number_times_single_memory_is_used_before_discard=0.25)
    name, updates_per_round = write("first", 22, 20), FRAMES_PER_ROUND / 4 / 13

    def learn(run_name, *ends):
        for n_updates in ends:
            end = EndAfterUpdates(n_updates)
            run = run_with(name, n_collectors=0, name=run_name, hooks=[end], should_stop=end)
            run.train()
            run.save()
            run.close_files()
            assert run.agent.updates == n_updates, "fewer transitions than learning otherwise begins with"
            assert n_stored(run) == 42
            assert run.context.statistics.races_total == 0
        return run, parameters_to_vector(run.agent.exploration_network.parameters()).detach()

    once, weights = learn("at once", 23)
    resumed, of_resumed = learn("in two", 20, 23)
    assert torch.equal(weights, of_resumed)
    assert 2 * updates_per_round < 20 < 3 * updates_per_round
    for run in (once, resumed):
        assert run.context.statistics.frames_total == FRAMES_PER_ROUND * 3


def test_races_that_do_not_fit_are_refused_in_one_line(write, run_with, monkeypatch):
    def spoil(episode):
        return dataclasses.replace(episode, actions=episode.actions + (12 if len(episode.actions) == 20 else 0))

    with pytest.raises(UserError, match=r"offline: race 1 of tested/spoilt-v0: its actions are not all from 0 to 11"):
        run_with(write("spoilt", 10, 20, 30, change=spoil))
    monkeypatch.setattr("trackmania_rl.race.rewards.RaceReward.__call__", lambda _, race, *__: race["q_values"])
    with pytest.raises(UserError, match=r"the reward asks for the column 'q_values' of a race, which tested/first-"):
        run_with(write("first", 30))


class Interrupt(Hook):
    """Notes the runs that begin, and presses Ctrl-C once, at an update of a run."""

    def __init__(self, run_name, at_update):
        self.at = run_name, at_update
        self.began = []

    def begin(self):
        self.began.append((self.run.folder.name, self.run.agent.updates))

    def on_update(self, batch, losses):
        if (self.run.folder.name, self.run.agent.updates) == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_stages_follow_each_other_and_an_interrupted_one_resumes(
    live, write, repository_root, tmp_path, request, caplog
):
    for number in (*OF_THE_TERMINAL, signal.SIGTERM):
        request.addfinalizer(partial(signal.signal, number, signal.getsignal(number)))
    caplog.set_level(logging.INFO)
    cloning = {"agent": "trackmania_rl.agents.behaviour_cloning:BehaviourCloning"}
    values = {
        "run_name": "both",
        "stages": (("clone", cloning, {"max_updates": 6}), ("iqn", {"n_steps": 2}, {"max_updates": 9})),
        "offline": str(tmp_path / write("first", 30, 41)),
        "n_collectors": 0,
        "maps_folder": str(repository_root / "maps"),
        "terminal_view": "off",
        "loggers": (),
    }
    settings = settings_from_flat(live.current.flat() | values)
    clone, both = tmp_path / "save" / "both_clone", tmp_path / "save" / "both"

    def updates():
        return [next((one.updates for one in find_manifests(run).values()), None) for run in (clone, both)]

    def train_until(run_name, at_update):
        hook = Interrupt(run_name, at_update)
        train(settings, output_folder=tmp_path, hooks=[hook])
        return hook.began

    assert train_until("both_clone", 4) == [("both_clone", 0)]
    assert updates() == [4, None]
    assert "begins with the networks" not in caplog.text
    assert train_until("both", 5) == [("both_clone", 4), ("both", 0)]
    assert updates() == [6, 5]
    assert caplog.text.count(f"the run begins with the networks of {clone}") == 1
    assert train_until("", 0) == [("both", 5)], "the first stage is complete"
    assert updates() == [6, 9]
    assert caplog.text.count("the run begins with") == 1
    assert "--weights-from" not in caplog.text
    assert [read_snapshot(run).replay.n_steps for run in (clone, both)] == [3, 2]
    assert read_snapshot(both).run.stages == ()
