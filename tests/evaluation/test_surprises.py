"""`research/surprises.py`: expectations along a race, and what becomes of them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.track.named_maps import map_entries
from trackmania_rl.training.evaluation import load_driver


@pytest.fixture(autouse=True)
def _import_from_the_repository(monkeypatch, repository_root):
    monkeypatch.syspath_prepend(repository_root)  # research/ is no installed package


def test_what_a_driver_gains_who_expects_the_same_of_every_action(run_folder, run_settings, maps_folder):
    """Weights of zero leave the value baseline: each action is expected to bring -0.045, wherever the car is."""
    from research.surprises import watch_race

    driver = load_driver(run_folder)
    with torch.no_grad():
        for parameter in driver.actor.network.parameters():
            parameter.zero_()
    driver.actor.weights_changed()
    games = InProcessGames(1, run_settings.game, run_settings.observation, maps_folder)
    entry = map_entries(run_settings, maps_folder)[0]
    race = watch_race(driver, games, entry, number=1)
    assert race.race_finished
    assert race.meters[0] == 0
    assert 50 < race.meters[-1] < 60
    expected, gamma, actions_left = -0.045, 0.999, 100
    rewards = -6 / 5000 * 50 + 5 / 500 * np.diff(race.meters)
    gains = rewards + gamma * expected * (actions_left - 1) - expected * actions_left
    np.testing.assert_allclose(race.gains_s[:-1], gains / 1.2, rtol=1e-3, atol=1e-5)


def test_forced_actions_are_no_surprise(run_folder, run_settings, maps_folder):
    from research.surprises import watch_race

    driver = load_driver(run_folder)
    games = InProcessGames(1, run_settings.game, run_settings.observation, maps_folder)
    race = watch_race(driver, games, map_entries(run_settings, maps_folder)[0], number=2)
    assert not race.gains_s[:10].any()
    assert race.gains_s[10:].all()


def test_only_falls_beyond_the_threshold_count():
    from research.surprises import WatchedRace

    race = WatchedRace(20_000, True, np.arange(5.0), np.array([0.5, -0.04, -0.07, 0.0, -0.3]))
    assert race.surprises_s(0.05).tolist() == [0, 0, 0.07, 0, 0.3]


def test_the_command(run_folder: Path, repository_root: Path):
    command = [sys.executable, repository_root / "research/surprises.py", run_folder, "--races", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "bend after 1,234 frames: 2 of 2 races finished" in " ".join(done.stdout.split())


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path, repository_root: Path):
    command = [sys.executable, repository_root / "research/surprises.py", tmp_path / "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "no such run folder" in done.stderr
