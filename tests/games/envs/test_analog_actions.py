"""Environments with steer, gas and brake: Gymnasium's rules, the same races in all forms, and what is no action."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs import RaceEnv, RaceVectorEnv

ANALOG = {"actions": "analog"}
SOCKET = {"game_transport": "socket"}
SPACE = gymnasium.spaces.Box(-1, 1, (3,), np.float32)

MakeEnv = Callable[..., RaceEnv]


def wheel(step: int) -> np.ndarray:
    return np.array([0.2 * np.sin(step), 1.0, -1.0], dtype=np.float32)


def play(env: Any) -> tuple[list[np.ndarray], list[float], dict[str, Any]]:
    observation, info = env.reset(seed=0)
    observations, rewards = [observation], []
    while "race_finished" not in info:
        observation, reward, _, _, info = env.step(wheel(len(rewards)))
        observations.append(observation)
        rewards.append(reward)
    return observations, rewards, info


def test_a_race_is_the_same_in_process_through_the_socket_and_among_others(
    make_env: MakeEnv, make_envs: Callable[..., RaceVectorEnv]
) -> None:
    observations, rewards, info = play(make_env("straight", overrides=ANALOG))
    theirs, their_rewards, their_info = play(make_env("straight", overrides=ANALOG | SOCKET))
    assert info["race_finished"]
    assert info["race_time_ms"] == their_info["race_time_ms"]
    np.testing.assert_array_equal(observations, theirs)
    np.testing.assert_array_equal(rewards, their_rewards)
    envs = make_envs(3, "straight", overrides=ANALOG)
    assert envs.action_space.shape == (3, 3)
    envs.reset(seed=0)
    for step in range(len(rewards)):
        others = np.array([[-0.1, 1, -1], [0.1, -1, -1]], dtype=np.float32)
        seen, reward, *_ = envs.step(np.stack((others[0], wheel(step), others[1])))
        np.testing.assert_array_equal(seen[1], observations[step + 1])
        assert reward[1] == pytest.approx(rewards[step], rel=1e-6)


@pytest.mark.parametrize("wrong", [0, [0.0, 0.0], [0.0, 2.0, 0.0], [0.0, float("nan"), 0.0]])
def test_what_is_no_action_costs_nothing(make_env: MakeEnv, wrong: object) -> None:
    env = make_env("straight", overrides=ANALOG)
    env.reset()
    with pytest.raises(UserError, match="steer, gas, brake, each -1 to 1"):
        env.step(wrong)
    assert env.step(wheel(0))[4]["race_time_ms"] == 50
