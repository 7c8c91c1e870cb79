"""Stable-Baselines3's rules of an environment, and the end of a race that was cut off."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from trackmania_rl.games.envs import ANALOG_RACE_ID, RACE_ID, RaceEnv
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import rollout
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.track.named_maps import map_entries

LIDAR = {"config": "config_files/config_lidar.py"}
ENDS_AFTER_TEN_ACTIONS = {"cutoff_no_progress_within_ms": 500}
IDS = (RACE_ID, ANALOG_RACE_ID)


@pytest.mark.filterwarnings("ignore::UserWarning")  # it would have images and floats named otherwise
@pytest.mark.parametrize("race_id", IDS)
@pytest.mark.parametrize("kind", ["floats", "image", "lidar"])
def test_it_keeps_the_rules_of_stable_baselines(tracks: dict[str, str], image: dict, race_id: str, kind: str) -> None:
    checker = pytest.importorskip(
        "stable_baselines3.common.env_checker", reason="python -m pip install stable-baselines3"
    )
    how = {"floats": {}, "image": {"overrides": image}, "lidar": LIDAR}[kind]
    with contextlib.closing(gymnasium.make(race_id, maps=tracks["lane"], **how)) as env:
        checker.check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.filterwarnings("ignore:.*Box observation space.*infinity")
@pytest.mark.parametrize("race_id", IDS)
def test_the_range_finder_keeps_gymnasiums_and_torchrls_rules(tracks: dict[str, str], race_id: str) -> None:
    with contextlib.closing(gymnasium.make(race_id, maps=tracks["lane"], **LIDAR)) as env:
        check_env(env.unwrapped, skip_render_check=True)
        check_env_specs(GymWrapper(env))


def test_the_last_observation_of_a_race_cut_off_is_the_true_one(
    make_env: Callable[..., RaceEnv], tracks: dict[str, str], image: dict
) -> None:
    coast = 3
    env = make_env("lane", overrides=ENDS_AFTER_TEN_ACTIONS | image, normalize=False)
    env.reset(seed=0)
    truncated = False
    while not truncated:
        observation, *_, truncated, _ = env.step(coast)
    games = InProcessGames(1, env.settings.game, env.settings.observation, maps_folder := Path(tracks["lane"]).parent)
    entry = map_entries(env.settings, maps_folder, [tracks["lane"]])[0]
    no_values = np.zeros(len(env.settings.game.inputs), dtype=np.float32)
    race = rollout(games, entry, lambda: lambda frame, floats: PolicyDecision(coast, True, no_values)).rollout_results
    np.testing.assert_array_equal(observation["floats"], race["state_float"][-1])
    np.testing.assert_array_equal(observation["image"], race["frames"][-3:, 0])
    assert not np.array_equal(race["state_float"][-1], race["state_float"][-2])
