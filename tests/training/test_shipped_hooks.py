"""Hooks that a configuration names: tables of rounds, scaled rewards, the measured observation, the pipeline check."""

import csv
import functools
import runpy

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.trainers.trainers import RewardNormalizer

from trackmania_rl.errors import UserError
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import rollout
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.runs import load_checkpoint
from trackmania_rl.training.building import make_hooks
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.pipeline_check import (
    CHECK_SUMS,
    CheckPipeline,
    CheckSums,
    sums_of_actions,
    sums_of_states,
)
from trackmania_rl.training.hooks.rounds import TABLE, Rounds
from trackmania_rl.training.hooks.scaling import MeasureObservation, ScaleRewards

from .conftest import edit


def _table(run):
    with (run.context.folder.path / TABLE).open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_round_has_a_row_and_the_training_ends_after_the_last_epoch(live, make_run, make_race):
    edit(live, batch_size=10, number_times_single_memory_is_used_before_discard=1.0)
    epochs = []
    hook = Rounds(steps=5, rounds=2, epochs=2, agent_scheduler=lambda agent, epoch: epochs.append((agent, epoch)))
    run = make_run([hook])
    run.train_on([make_race(50, True, meters=300.0), make_race(50, False, meters=100.0)])
    run.train_on([make_race(50, True, meters=900.0, is_explo=False)])
    rows = first, second, third = _table(run)
    counted = [[row[name] for name in ("epoch", "round", "updates", "frames")] for row in rows]
    assert counted == [["0", "0", "5", "50"], ["0", "1", "10", "100"], ["1", "0", "15", "150"]]
    assert (first["explored_races"], first["explored_finished"], first["explored_meters"]) == ("1", "1", "300")
    assert (first["explored_time_s"], second["explored_time_s"]) == ("2.5", "")
    assert (third["explored_races"], third["evaluated_races"], third["evaluated_meters"]) == ("0", "1", "900")
    assert all(float(row["loss"]) > 0 and float(row["grad_norm"]) > 0 for row in rows)
    for _ in range(3):
        run.put(make_race(50, False))
    run.train()
    assert epochs == [(run.agent, 0), (run.agent, 1)]
    assert run.agent.updates == 20, "of the 30 that its races allow"


def test_a_round_and_its_table_continue_in_a_resumed_run(live, make_run, make_race):
    edit(live, batch_size=10, number_times_single_memory_is_used_before_discard=1.0)
    races = [make_race(50, True, meters=300.0), make_race(50, True, meters=500.0), make_race(70, False)]
    epochs = []

    def rounds():
        return [Rounds(steps=10, rounds=1, agent_scheduler=lambda _, epoch: epochs.append(epoch))]

    once = make_run(rounds(), name="once")
    once.train_on(races)
    run = make_run(rounds())
    run.train_on(races[:1])
    assert run.hook(SaveCheckpoints).try_to_save()
    run.train_on(races[1:2])  # which is lost with its row
    run.close_files()
    assert len(_table(run)) == 1
    epochs.clear()
    resumed = make_run(rounds())
    resumed.train_on(races[1:])
    assert epochs == [0, 1]
    rows, expected = ([{**row, "training_s": ""} for row in _table(one)] for one in (resumed, once))
    assert rows == expected
    assert [(row["explored_races"], row["explored_meters"]) for row in rows] == [("2", "400")]


UNITS = {"expected_reward_per_action": 0.0}


class SeenRewards(Hook):
    """Keeps the rewards of each batch at its place in the order of hooks."""

    def __init__(self):
        self.rewards = []

    def process_optim_batch(self, batch):
        self.rewards.append(batch["reward"].clone())


def train(make_run, make_race, live, hooks):
    edit(live, hooks=hooks, **UNITS)
    before, after = SeenRewards(), SeenRewards()
    run = make_run([before, *make_hooks(live.current), after])
    run.train_on([make_race(60, True), make_race(41, False)])
    assert len(before.rewards) > 10
    return run, before, after


@pytest.mark.parametrize("subtract_mean", [False, True])
def test_rewards_are_scaled_as_torchrls_normalizer_does_also_in_a_resumed_run(live, make_run, make_race, subtract_mean):
    named = functools.partial(ScaleRewards, decay=0.9, scale=2.0, subtract_mean=subtract_mean)
    with pytest.raises(UserError, match=r"set it to 0\.0"):
        make_run([ScaleRewards()], name="units")
    run, before, after = train(make_run, make_race, live, named)
    oracle = RewardNormalizer(decay=0.9, scale=2.0, reward_key="reward")
    for rewards, scaled in zip(before.rewards, after.rewards, strict=True):
        batch = TensorDict({"reward": rewards}, batch_size=len(rewards))
        oracle.update_reward_stats(batch)
        expected = oracle.normalize_reward(batch)["reward"]
        if not subtract_mean:
            expected = rewards * 2.0 / oracle.state_dict()["_reward_stats"]["std"]
        torch.testing.assert_close(scaled, expected)
    assert run.hook(SaveCheckpoints).try_to_save()
    resumed = make_run(make_hooks(live.current))
    old, new = (r.hook(ScaleRewards).state_dict()["_reward_stats"] for r in (run, resumed))
    assert new["count"] == old["count"] > 100
    assert torch.equal(new["std"], old["std"])


def test_the_observation_is_measured_over_all_sessions(live, layout, make_run, make_race):
    races = [make_race(60, True), make_race(41, False), make_race(90, True)]
    floats = np.concatenate([race.rollout_results["state_float"][:-1] for race in races])
    edit(live, hooks="trackmania_rl.training.hooks.scaling:MeasureObservation")
    run = make_run(make_hooks(live.current))
    run.train_on(races[:2])
    assert run.hook(SaveCheckpoints).try_to_save()
    state = load_checkpoint(run.context.folder.path)
    assert state["hooks"]["MeasureObservation"]["n_states"] == 101
    resumed = make_run(make_hooks(live.current))
    resumed.train_on(races[2:])
    resumed.hook(MeasureObservation).end()
    file = resumed.context.folder.path / "measured" / "state_normalization.py"
    assert "Measured in 191 states of the run run." in file.read_text()
    means, _ = runpy.run_path(str(file))["state_normalization"]["velocity_m_s"]
    expected = floats[:, layout["velocity_m_s"]].mean(axis=0)
    np.testing.assert_allclose(means, expected, rtol=2e-3)


def test_a_race_that_is_listened_to_has_the_check_sums_of_its_columns(live, repository_root):
    game = live.current.game
    games = InProcessGames(1, game, live.current.observation, repository_root / "maps")
    decision = PolicyDecision(3, True, np.zeros(len(game.inputs), dtype=np.float32))
    race = rollout(games, game.map_cycle[0], lambda: lambda *_: decision, listeners=[CheckSums()])
    columns, n_actions = race.rollout_results, len(race.rollout_results["actions"])
    states = sums_of_states(columns["frames"][:n_actions], columns["state_float"][:n_actions])
    expected = np.array([states, sums_of_actions(columns["actions"])]).T
    assert columns[CHECK_SUMS].tolist() == expected.tolist()


def _with_sums(race):
    """Add what a collector does."""
    columns = race.rollout_results
    states = sums_of_states(columns["frames"][:-1], columns["state_float"][:-1])
    columns[CHECK_SUMS] = np.array([states, sums_of_actions(columns["actions"])], dtype=np.int64).T
    return race


@pytest.fixture
def run(live, make_run):
    edit(live, crc_debug=True, temporal_mini_race_duration_actions=20, oversample_long_term_steps=0)
    return make_run()


def test_sound_races_pass_and_a_resumed_run_leaves_out_what_its_checkpoint_holds(run, make_run, make_race):
    run.train_on([_with_sums(make_race(n, n % 2 == 0)) for n in (60, 71, 82)])
    assert run.hook(CheckPipeline).n_checked == run.agent.updates * 13 > 100
    assert run.hook(SaveCheckpoints).try_to_save()
    resumed = make_run()
    resumed.train_on([_with_sums(make_race(60, False))])
    assert 0 < resumed.hook(CheckPipeline).n_checked < (resumed.agent.updates - run.agent.updates) * 13


def _swap(column):
    column[[20, 21]] = column[[21, 20]]


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda race: race.rollout_results["state_float"].__setitem__((slice(None), 3), 0.5), "state or action"),
        (lambda race: race.rollout_results["frames"].__setitem__(slice(None), 7), "state or action"),
        (lambda race: np.copyto(race.rollout_results["actions"], (race.rollout_results["actions"] + 1) % 12), "action"),
        (lambda race: [_swap(race.rollout_results[name]) for name in ("frames", "state_float", "actions")], "next"),
    ],
    ids=["floats", "frames", "actions", "order"],
)
def test_what_is_changed_on_the_way_is_found(run, make_race, spoil, wrong):
    race = _with_sums(make_race(60, False))
    spoil(race)
    with pytest.raises(UserError, match=f"crc_debug: the .*{wrong} of transition|crc_debug: the {wrong} state"):
        run.train_on([race, _with_sums(make_race(60, False)), _with_sums(make_race(60, False))])
