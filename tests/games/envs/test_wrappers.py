"""What other libraries do with the environments: Gymnasium's wrappers and vectorizers, torchrl."""

import contextlib

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics
from gymnasium.wrappers.vector import DictInfoToList
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordStatisticsOfMany
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs import RACE_ID, make_race_env, make_race_vector_env

ID_THAT_REGISTERS_ITSELF = f"trackmania_rl.games.envs:{RACE_ID}"
ENDS_AFTER_TEN_ACTIONS = {"cutoff_no_progress_within_ms": 500}


@pytest.mark.parametrize("vectorization_mode", ["sync", "async"])
def test_gymnasium_makes_several_of_one(tracks: dict[str, str], vectorization_mode: str) -> None:
    envs = gymnasium.make_vec(
        ID_THAT_REGISTERS_ITSELF, 2, vectorization_mode, maps=tracks["lane"], overrides=ENDS_AFTER_TEN_ACTIONS
    )
    with contextlib.closing(envs):
        observations, infos = envs.reset(seed=0)
        assert observations.shape == (2, 184)
        assert list(infos["map"]) == ["lane", "lane"]
        for _ in range(10):
            *_, truncated, infos = envs.step(np.zeros(2, dtype=np.int64))
        assert truncated.all()
        assert list(infos["cutoff_reason"]) == ["no_progress"] * 2


def test_gymnasiums_wrappers_go_around_one_game(tracks: dict[str, str]) -> None:
    env = FrameStackObservation(RecordEpisodeStatistics(gymnasium.make(RACE_ID, maps=tracks["lane"])), 3)
    with contextlib.closing(env):
        first, _ = env.reset()
        assert first.shape == (3, 184)
        rewards, terminated = [], False
        while not terminated:
            observation, reward, terminated, truncated, info = env.step(0)
            assert not truncated
            rewards.append(reward)
        assert observation.shape == (3, 184)
        assert info["episode"]["l"] == len(rewards)
        assert info["episode"]["r"] == pytest.approx(sum(rewards), rel=1e-4)


def test_gymnasiums_wrappers_go_around_many_games(tracks: dict[str, str]) -> None:
    made = gymnasium.make_vec(RACE_ID, num_envs=3, maps=tracks["lane"], overrides=ENDS_AFTER_TEN_ACTIONS)
    envs = DictInfoToList(RecordStatisticsOfMany(made))
    with contextlib.closing(envs):
        envs.reset(seed=1)
        for _ in range(10):
            *_, infos = envs.step([0, 0, 0])
        assert [info["episode"]["l"] for info in infos] == [10] * 3
        assert [info["map"] for info in infos] == ["lane"] * 3


def test_a_limit_of_steps_truncates_one_game_and_many_alike(tracks: dict[str, str]) -> None:
    one = gymnasium.make(RACE_ID, maps=tracks["lane"], max_episode_steps=4)
    many = gymnasium.make_vec(RACE_ID, num_envs=2, maps=tracks["lane"], max_episode_steps=4)
    with contextlib.closing(one), contextlib.closing(many):
        one.reset()
        many.reset()
        for step in range(1, 5):
            assert one.step(0)[2:4] == (False, step == 4)
            _, _, terminated, truncated, _ = many.step([0, 0])
            assert (terminated.tolist(), truncated.tolist()) == ([False] * 2, [step == 4] * 2)
    with contextlib.closing(make_race_vector_env(1, tracks["lane"], max_episode_steps=-1)) as unlimited:
        assert unlimited.settings.game.horizon is None
    with pytest.raises(UserError, match="max_episode_steps = 0: it takes 1 step or more"):
        make_race_vector_env(1, tracks["lane"], max_episode_steps=0)


@pytest.mark.parametrize("has_image", [False, True])
def test_torchrl_takes_one_game(tracks: dict[str, str], image: dict, has_image: bool) -> None:
    env = GymWrapper(make_race_env(tracks["lane"], overrides=image if has_image else {}))
    check_env_specs(env)
    rollout = env.rollout(7)
    assert rollout["next", "reward"].shape == (7, 1)
    env.close()


@pytest.mark.parametrize("has_image", [False, True])
def test_torchrl_takes_many_games_and_begins_their_next_races(
    tracks: dict[str, str], image: dict, has_image: bool
) -> None:
    overrides = ENDS_AFTER_TEN_ACTIONS | (image if has_image else {})
    envs = GymWrapper(
        gymnasium.make_vec(RACE_ID, num_envs=2, maps=tracks["lane"], overrides=overrides, autoreset_mode="DISABLED")
    )
    check_env_specs(envs)
    rollout = envs.rollout(25, break_when_any_done=False)
    assert rollout["next", "reward"].shape == (2, 25, 1)
    done = rollout["next", "done"][..., 0]
    assert done.nonzero().tolist() == [[game, step] for game in range(2) for step in (9, 19)]
    floats = rollout["floats" if has_image else "observation"]
    assert (floats[:, 10] == floats[:, 0]).all(), "the start of the next race"
    envs.close()


def test_torchrl_says_that_games_must_not_begin_again_by_themselves(tracks: dict[str, str]) -> None:
    with (
        contextlib.closing(gymnasium.make_vec(RACE_ID, num_envs=2, maps=tracks["lane"])) as envs,
        pytest.raises(RuntimeError, match="auto-reset mode must be one of"),
    ):
        GymWrapper(envs)
