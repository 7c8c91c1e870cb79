"""Hooks that a configuration names: rewards scaled as they come, and the observation measured on the way."""

import functools
import runpy
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.trainers.trainers import RewardNormalizer

from trackmania_rl.checkpoints import load_checkpoint
from trackmania_rl.errors import UserError
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.building import make_hooks
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.scaling import MeasureObservation, ScaleRewards

from .conftest import LocalRun, MakeRace, MakeRun, edit

UNITS = {"expected_reward_per_action": 0.0, "return_bounds_per_action": None}


class Seen(Hook):
    """Keeps the rewards of each batch at its place in the order of hooks."""

    def __init__(self) -> None:
        self.rewards: list[torch.Tensor] = []

    def process_optim_batch(self, batch: TensorDict) -> None:
        self.rewards.append(batch["reward"].clone())


def train(make_run: MakeRun, make_race: MakeRace, live: LiveSettings, hooks: Any) -> tuple[LocalRun, Seen, Seen]:
    edit(live, hooks=hooks, **UNITS)
    before, after = Seen(), Seen()
    run = make_run([before, *make_hooks(live.current), after])
    run.train_on([make_race(60, True), make_race(41, False)])
    assert len(before.rewards) > 10
    return run, before, after


@pytest.mark.parametrize("subtract_mean", [False, True])
def test_rewards_are_scaled_as_torchrls_normalizer_does_also_in_a_resumed_run(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, subtract_mean: bool
) -> None:
    named = functools.partial(ScaleRewards, decay=0.9, scale=2.0, subtract_mean=subtract_mean)
    with pytest.raises(UserError, match=r"set them to 0\.0 and None"):
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


def test_the_observation_is_measured_over_all_sessions(
    live: LiveSettings, layout: ObservationLayout, make_run: MakeRun, make_race: MakeRace
) -> None:
    races = [make_race(60, True), make_race(41, False), make_race(90, True)]
    floats = np.concatenate([race.rollout_results["state_float"][:-1] for race in races])
    edit(live, hooks="trackmania_rl.training.hooks.scaling:MeasureObservation")
    run = make_run(make_hooks(live.current))
    run.train_on(races[:2])
    assert run.hook(SaveCheckpoints).try_to_save()
    state = load_checkpoint(run.context.folder.path)
    assert state is not None
    assert state["hooks"]["MeasureObservation"]["n_states"] == 101
    resumed = make_run(make_hooks(live.current))
    resumed.train_on(races[2:])
    resumed.hook(MeasureObservation).end()
    file = resumed.context.folder.path / "measured" / "state_normalization.py"
    assert "Measured in 191 states of the run run." in file.read_text()
    means, _ = runpy.run_path(str(file))["state_normalization"]["velocity_m_s"]
    expected = floats[:, layout["velocity_m_s"]].mean(axis=0)
    np.testing.assert_allclose(means, expected, rtol=2e-3)
