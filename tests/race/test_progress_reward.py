"""Metres and an early finish: what they are worth."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.race.progress_reward import PER_M, ProgressReward
from trackmania_rl.race.rewards import Arrival
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, load_settings

METERS = "meters_advanced_along_centerline"


@pytest.fixture
def settings(repository_root: Path) -> Settings:
    return load_settings(repository_root / "config_files" / "config.py")


def test_a_race_cut_off_earns_its_metres(settings):
    reward = ProgressReward(settings, race_spaces(settings), SeedTree(0))
    race = {METERS: np.array([3.0, 3.5, 5.0, 4.0])}
    rewarded = reward(race, settings, 0)
    np.testing.assert_allclose(rewarded.rewards, PER_M * np.array([0.5, 1.5, -1.0]), rtol=1e-6)
    assert rewarded.rewards.dtype == rewarded.potentials.dtype == np.float32
    assert rewarded.potentials.tolist() == [0, 0, 0, 0]


def test_a_finished_race_earns_the_more_the_sooner_and_its_actions_earn_what_it_earns(settings):
    reward = ProgressReward(settings, race_spaces(settings), SeedTree(0), per_m=2.0, finish_s=3.0)
    meters, race_time_ms = np.array([1.0, 2.0, 4.5, 4.0, 8.0]), 180
    whole = reward({METERS: meters, "race_time": race_time_ms}, settings, 0).rewards
    assert whole.sum() == pytest.approx(2.0 * 7 * (1 + 3.0 / 0.180), rel=1e-6)
    assert whole.sum() < reward({METERS: meters, "race_time": 160}, settings, 0).rewards.sum()
    nothing = np.empty((3, 0), dtype=np.float32)
    steps = reward.of_actions(nothing, nothing, np.diff(meters)[:3], n_actions_made=3)
    arrival = Arrival(advanced_m=4.0, duration_ms=30, race_m=7.0, race_time_ms=race_time_ms)
    np.testing.assert_allclose([*steps, reward.of_arrival(arrival)], whole, rtol=1e-6)
    assert reward({"rewards": [1.0, 2.0]}, settings, 0).rewards.tolist() == [1.0, 2.0], "an environment's own are kept"
