"""Gymnasium's, Stable-Baselines3's and torchrl's rules of an environment, and the end of a race that was cut off."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FlattenObservation
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from trackmania_rl.games.envs import ANALOG_RACE_ID, RACE_ID, REAL_TIME_RACE_ID, RaceEnv, RaceVectorEnv
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


ALL_IDS = sorted(race_id for race_id in gymnasium.registry if race_id.startswith("TrackMania/"))


@pytest.fixture(params=ALL_IDS)
def registered(request: pytest.FixtureRequest, tracks: dict[str, str]) -> Iterator[gymnasium.Env[Any, Any]]:
    """Each of the environments that Gymnasium knows by a name; in real time twenty times as fast as the clock."""
    overrides = {}
    if request.param == REAL_TIME_RACE_ID:
        pytest.importorskip("rtgym", reason="python -m pip install rtgym")
        overrides = {"running_speed": 20.0}
    with contextlib.closing(gymnasium.make(request.param, maps=tracks["lane"], overrides=overrides)) as env:
        yield env


@pytest.mark.filterwarnings("ignore::UserWarning")  # infinite bounds; the time that a step takes on a busy machine
def test_all_keep_gymnasiums_rules(registered: gymnasium.Env[Any, Any]) -> None:
    assert set(ALL_IDS) >= {*IDS, REAL_TIME_RACE_ID}
    check_env(registered.unwrapped, skip_render_check=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_all_keep_stable_baselines_rules(registered: gymnasium.Env[Any, Any]) -> None:
    checker = pytest.importorskip(
        "stable_baselines3.common.env_checker", reason="python -m pip install stable-baselines3"
    )
    is_tuple = isinstance(registered.observation_space, gymnasium.spaces.Tuple)  # which it knows not of
    checker.check_env(FlattenObservation(registered) if is_tuple else registered.unwrapped, skip_render_check=True)


class OneOfMany(gymnasium.Env[Any, Any]):
    """The only game of a vector environment, as a single environment: checkers know no others."""

    def __init__(self, envs: RaceVectorEnv) -> None:
        self.envs = envs
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        shown, infos = self.envs.reset(seed=seed, options=options)
        return _first(shown), _first(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        shown, rewards, terminated, truncated, infos = self.envs.step(np.asarray(action)[np.newaxis])
        return _first(shown), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _first(infos)


def _first(values: Any) -> Any:
    return {name: part[0] for name, part in values.items()} if isinstance(values, dict) else values[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("race_id", IDS)
@pytest.mark.parametrize("kind", ["floats", "image"])
def test_many_games_keep_the_rules_one_by_one(tracks: dict[str, str], image: dict, race_id: str, kind: str) -> None:
    checker = pytest.importorskip(
        "stable_baselines3.common.env_checker", reason="python -m pip install stable-baselines3"
    )
    overrides = image if kind == "image" else {}
    envs = gymnasium.make_vec(race_id, 1, maps=tracks["lane"], overrides=overrides, autoreset_mode="DISABLED")
    with contextlib.closing(envs):
        checker.check_env(OneOfMany(envs), skip_render_check=True)
        check_env(OneOfMany(envs), skip_render_check=True, skip_close_check=True)


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
