"""`RaceEnv` on games of both kinds: the races, observations and rewards of the trainer."""

import copy
import tempfile

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence

from trackmania_rl.errors import UserError
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import rollout
from trackmania_rl.race.actions import PolicyDecision
from trackmania_rl.race.rewards import FINISH_S, ProgressReward, RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.track.named_maps import map_entries

COAST = 3
SOCKET = {"game_transport": "socket"}
OPTIONAL_REWARDS = {
    "final_speed_reward_per_m_per_s": 0.013,
    "engineered_kamikaze_reward_schedule": ((0, 0.1), (200, 0.1)),
    "engineered_close_to_vcp_reward_schedule": ((0, -0.02), (200, -0.02)),
}


def play(env, actions):
    """Play one race, forward when the actions are over; returns observations, rewards and the last info."""
    observation, first_info = env.reset(seed=0)
    observations, rewards, is_over, step = [observation], [], False, 0
    while not is_over:
        action = actions[step] if step < len(actions) else 0
        observation, reward, terminated, truncated, info = env.step(action)
        assert {key: type(value) for key, value in info.items()} == {k: type(v) for k, v in first_info.items()}
        observations.append(observation)
        rewards.append(reward)
        is_over, step = terminated or truncated, step + 1
    assert terminated == info["race_finished"] != truncated
    return observations, rewards, info


def settings_with(repository_root, overrides):
    return load_settings(repository_root / "config_files" / "config.py", [f"{k}={v!r}" for k, v in overrides.items()])


@pytest.mark.parametrize("overrides", [OPTIONAL_REWARDS, OPTIONAL_REWARDS | SOCKET], ids=["in process", "socket"])
def test_a_race_is_the_trainers_race(make_env, tracks, wandering, repository_root, overrides):
    env = make_env("straight", overrides=overrides, reward="trainer", normalize=False)
    observations, rewards, info = play(env, wandering)

    settings = settings_with(repository_root, OPTIONAL_REWARDS)
    games = InProcessGames(1, settings.game, settings.observation, repository_root / "maps")
    upcoming = iter(wandering + [0] * 1000)
    no_values = np.zeros(len(settings.game.inputs), dtype=np.float32)
    entry = map_entries(settings, repository_root / "maps", [tracks["straight"]])[0]
    ended = rollout(games, entry, lambda: lambda frame, floats: PolicyDecision(next(upcoming), True, no_values))
    race, stats = ended.rollout_results(), ended.end_race_stats()
    expected = RaceReward(settings, race_spaces(settings), SeedTree(0))(race, settings, 0).rewards
    assert race["race_time"] % settings.game.ms_per_action != 0, "else the socket's game asks once more at the finish"
    np.testing.assert_allclose(rewards, expected, rtol=1e-5)
    np.testing.assert_array_equal(np.stack(observations), race["state_float"])
    assert info["race_time_ms"] == stats["race_time_ms"] == race["race_time"]
    assert info["map"] == "straight"


def test_by_default_metres_and_an_early_finish_are_rewarded(make_env, wandering):
    env = make_env("straight")
    _, rewards, info = play(env, wandering)
    assert info["race_finished"]
    per_m = sum(rewards[:-1]) / (info["meters"] - 1.0)
    race_s = info["race_time_ms"] / 1000
    whole = ProgressReward(env.settings, race_spaces(env.settings), SeedTree(0))(
        {
            "meters_advanced_along_centerline": np.array([0.0, info["meters"]]),
            "race_time": info["race_time_ms"],
            "state_float": np.empty((2, 0)),
        },
        env.settings,
        0,
    )
    assert sum(rewards) == pytest.approx(float(whole.rewards.sum()), rel=1e-5)
    assert rewards[-1] > 0.5 * per_m * FINISH_S * info["meters"] / race_s
    standing = play(make_env("straight", overrides={"cutoff_no_progress_within_ms": 500}), [COAST] * 100)
    assert sum(standing[1]) == pytest.approx(0, abs=0.01), "parking costs nothing and earns nothing"


def test_both_transports_show_the_same_and_an_image_holds_the_last_frames(make_env, image, wandering):
    shown = []
    for transport in ({}, SOCKET):
        env = make_env("straight", overrides=image | transport | {"cutoff_race_longer_than_ms": 1000})
        shown.append([env.reset(), *map(env.step, wandering[:21])])
    assert data_equivalence(*shown, exact=True)
    start, *_, (before, *_), (last, _, terminated, truncated, info) = shown[0]
    assert (terminated, truncated, info["cutoff_reason"]) == (False, True, "too_long")
    assert start[0]["image"].shape == (3, 30, 40)
    assert (start[0]["image"] == start[0]["image"][0]).all(), "the first frame stands in for those before it"
    assert (last["image"][:-1] == before["image"][1:]).all()
    assert (last["image"][-1] != before["image"][-1]).any(), "the state that the last action led to"
    assert info["position_m"].dtype == info["speed_m_s"].dtype == np.float32
    assert info["position_m"][2] - start[1]["position_m"][2] == pytest.approx(info["meters"], abs=0.1)
    assert 3.0 < info["speed_m_s"] < 30.0


def test_maps_are_drawn_by_the_seed_or_chosen(make_env):
    env = make_env("straight", "lane")
    drawn = [[env.reset(seed=seed)[1]["map"]] + [env.reset()[1]["map"] for _ in range(20)] for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == {"straight", "lane"}
    assert [env.reset(options={"map": "lane"})[1]["map"] for _ in range(5)] == ["lane"] * 5


def test_generated_tracks_go_with_the_environment(make_env, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = make_env("generated:0.2:7-9")
    env.reset()
    assert len(list(tmp_path.rglob("*.toml"))) == 3
    copy.deepcopy(env).close()
    assert len(list(tmp_path.rglob("*.toml"))) == 3, "copies read them"
    env.close()
    assert not list(tmp_path.iterdir())


def test_a_lost_game_ends_the_race_and_the_next_one_has_another_game(make_env):
    env = make_env("straight", overrides=SOCKET)
    keys = env.reset()[1].keys()
    for _ in range(5):
        seen = env.step(0)[0]
    env.races.games._drivers[0]._launcher.kill()
    observation, reward, terminated, truncated, info = env.step(0)
    assert info.keys() == keys
    np.testing.assert_array_equal(observation, seen)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["race_finished"], info["cutoff_reason"]) == (False, "game_lost")
    with pytest.raises(ResetNeeded):
        env.step(0)
    assert play(env, [])[2]["race_finished"]
    assert env.races.games._drivers[0].game_starts == 2


def test_a_step_needs_a_race_and_an_open_environment(make_env):
    env = make_env("straight", render_mode="rgb_array")
    play(env, [])
    with pytest.raises(ResetNeeded, match="call reset first"):
        env.step(0)
    env.close()
    env.close()  # which may be said twice
    with pytest.raises(ClosedEnvironmentError, match="make another one"):
        env.reset()


@pytest.mark.parametrize("action", [-1, 12, 0.0])
def test_an_action_that_there_is_not_is_refused(make_env, action):
    env = make_env("straight")
    env.reset()
    with pytest.raises(UserError, match=r"an action is one whole number, 0 to 11") as refused:
        env.step(action)
    assert f"step({action!r})" in str(refused.value)
    for number in (np.int8(4), np.uint64(4), np.array(4)):
        env.step(number)
