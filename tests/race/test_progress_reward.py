"""Metres and an early finish: what they are worth."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.race.progress_reward import FINISH_S, PER_M, ProgressReward
from trackmania_rl.race.rewards import Arrival
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, load_settings

METERS = "meters_advanced_along_centerline"


@pytest.fixture
def settings(repository_root: Path) -> Settings:
    return load_settings(repository_root / "config_files" / "config.py")


@pytest.fixture
def reward(settings: Settings) -> ProgressReward:
    return ProgressReward(settings, race_spaces(settings), SeedTree(0))


def test_a_race_cut_off_earns_its_metres(settings: Settings, reward: ProgressReward) -> None:
    race = {METERS: np.array([3.0, 3.5, 5.0, 4.0])}
    rewarded = reward(race, settings, 0)
    np.testing.assert_allclose(rewarded.rewards, PER_M * np.array([0.5, 1.5, -1.0]), rtol=1e-6)
    assert rewarded.rewards.dtype == rewarded.potentials.dtype == np.float32
    assert rewarded.potentials.tolist() == [0, 0, 0, 0]


def test_the_sooner_the_finish_the_larger_its_bonus(settings: Settings, reward: ProgressReward) -> None:
    meters = np.linspace(10.0, 310.0, 7)
    total = {
        time_ms: float(reward({METERS: meters, "race_time": time_ms}, settings, 0).rewards.sum())
        for time_ms in (280, 300)
    }
    for time_ms, earned in total.items():
        assert earned == pytest.approx(PER_M * 300 * (1 + FINISH_S / (time_ms / 1000)), rel=1e-6)
    assert total[280] > total[300] > PER_M * 300


def test_single_actions_earn_what_they_earn_in_the_race(settings: Settings, reward: ProgressReward) -> None:
    meters, race_time_ms = np.array([1.0, 2.0, 4.5, 4.0, 8.0]), 180
    whole = reward({METERS: meters, "race_time": race_time_ms}, settings, 0).rewards
    nothing = np.empty((3, 0), dtype=np.float32)
    steps = reward.of_actions(nothing, nothing, np.diff(meters)[:3], n_actions_made=3)
    arrival = Arrival(advanced_m=4.0, duration_ms=30, race_m=7.0, race_time_ms=race_time_ms)
    np.testing.assert_allclose([*steps, reward.of_arrival(arrival)], whole, rtol=1e-6)


def test_its_scale_and_its_bonus_are_arguments(settings: Settings) -> None:
    reward = ProgressReward(settings, race_spaces(settings), SeedTree(0), per_m=2.0, finish_s=0.0)
    race = {METERS: np.array([0.0, 1.0, 3.0]), "race_time": 90}
    assert reward(race, settings, 0).rewards.tolist() == [2.0, 4.0]


def test_rewards_of_an_environments_own_are_kept(settings: Settings, reward: ProgressReward) -> None:
    assert reward({"rewards": [1.0, 2.0]}, settings, 0).rewards.tolist() == [1.0, 2.0]
