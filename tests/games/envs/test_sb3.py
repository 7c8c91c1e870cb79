"""`RaceVecEnv`: Stable-Baselines3's view of it against `RaceEnv`, and its wrappers around it."""

import contextlib

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs import make_race_env

pytest.importorskip("stable_baselines3", reason="python -m pip install stable-baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from trackmania_rl.games.envs.sb3 import RaceVecEnv

COAST = 3
ENDS_AFTER_TEN_ACTIONS = {"cutoff_no_progress_within_ms": 500}


@pytest.fixture
def make_vec_env(tracks):
    """`make_vec_env(num_envs, *names, **options)`; closed after the test."""
    with contextlib.ExitStack() as opened:

        def make(num_envs, *names, **options):
            envs = RaceVecEnv(num_envs, [tracks[name] for name in names], **options)
            return opened.enter_context(contextlib.closing(envs))

        yield make


def test_it_agrees_with_the_vectorizer_of_sb3(make_vec_env, tracks, image):
    overrides = {"cutoff_no_progress_within_ms": 1000} | image
    ours = make_vec_env(3, "straight", overrides=overrides)
    theirs = DummyVecEnv([lambda: make_race_env(tracks["straight"], overrides=overrides)] * 3)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    actions = np.random.default_rng(1).choice([0, 0, 0, 1, 2, 4], (200, 3))
    actions[:, 0] = COAST
    with contextlib.closing(theirs):
        _assert_same(ours.reset(), theirs.reset())
        n_ends = {True: 0, False: 0}
        for chosen in actions:
            (seen, rewards, dones, infos), expected = ours.step(chosen), theirs.step(chosen)
            _assert_same(seen, expected[0])
            np.testing.assert_allclose(rewards, expected[1], rtol=1e-5)
            assert rewards.dtype == expected[1].dtype
            np.testing.assert_array_equal(dones, expected[2])
            for info, told in zip(infos, expected[3], strict=True):
                assert info.keys() == told.keys()
                for name, value in told.items():
                    _assert_same(info[name], value)
            for game in np.flatnonzero(dones):
                n_ends[infos[game]["race_finished"]] += 1
                assert infos[game]["TimeLimit.truncated"] != infos[game]["race_finished"]
                assert ours.reset_infos[game]["race_time_ms"] == 0
        assert min(n_ends.values()) >= 3


def _assert_same(one, other):
    if isinstance(one, dict):
        for name, values in other.items():
            np.testing.assert_array_equal(one[name], values)
    else:
        np.testing.assert_array_equal(one, other)


def test_ppo_learns_in_it_and_is_evaluated(make_vec_env):
    envs = VecMonitor(make_vec_env(2, "lane", overrides=ENDS_AFTER_TEN_ACTIONS))
    agent = PPO("MlpPolicy", envs, n_steps=16, batch_size=16, n_epochs=1, device="cpu", seed=0)
    agent.learn(64)
    assert len(agent.ep_info_buffer) > 0
    _, lengths = evaluate_policy(agent, envs, n_eval_episodes=2, return_episode_rewards=True)
    assert all(length >= 10 for length in lengths)


def test_options_choose_maps_for_one_reset_and_games_are_drawn(make_vec_env):
    envs = make_vec_env(3, "straight", "lane", render_mode="rgb_array")
    chosen = ["lane", "straight", "lane"]
    envs.set_options([{"map": name} for name in chosen])
    envs.reset()
    assert [info["map"] for info in envs.reset_infos] == chosen
    assert envs._options == [{}] * 3
    assert [picture.shape for picture in envs.get_images()] == [(240, 320, 3)] * 3
    with pytest.raises(UserError, match="no attributes of their own"):
        envs.set_attr("settings", None)
    ((seen, info),) = envs.env_method("reset", options={"map": "straight"}, indices=2)
    assert info["map"] == "straight"
    envs.set_options({"map": "straight"})
    np.testing.assert_array_equal(seen, envs.reset()[2])
    assert [picture.shape for picture in envs.env_method("render", indices=[0, 2])] == [(240, 320, 3)] * 2
    assert envs.env_method("get_wrapper_attr", "map_names", indices=0) == [envs.envs.map_names]
    with pytest.raises(UserError, match="have render, reset and get_wrapper_attr"):
        envs.env_method("step")


def test_no_game_at_all_is_told():
    with pytest.raises(UserError, match="num_envs = 0: it takes 1 game or more"):
        RaceVecEnv(0)
