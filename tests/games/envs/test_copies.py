"""Environments that are copied in the middle of a race."""

import copy
import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

from trackmania_rl.errors import UserError
from trackmania_rl.games.envs import RaceEnv, RaceVectorEnv

COAST = 3


def steps(env: RaceEnv | RaceVectorEnv, actions: Sequence) -> list:
    return [env.step(action) for action in actions]


@pytest.mark.parametrize("has_image", [False, True])
def test_a_copy_and_its_original_go_on_from_the_same_state_by_themselves(
    make_env: Callable[..., RaceEnv], image: dict, wandering: list[int], has_image: bool
) -> None:
    never_copied, env = (make_env("straight", overrides=image if has_image else {}) for _ in range(2))
    begun, rest = wandering[:20], wandering[20:45]
    for one in (never_copied, env):
        one.reset()
        steps(one, begun)
    copied, astray = copy.deepcopy(env), copy.deepcopy(env)
    steps(astray, [COAST] * 10)
    expected = steps(never_copied, rest)
    assert data_equivalence(steps(copied, rest), expected, exact=True)
    assert data_equivalence(steps(env, rest), expected, exact=True)


def test_copies_of_many_games_go_on_from_the_same_state_and_draw_the_same_maps(
    make_envs: Callable[..., RaceVectorEnv],
) -> None:
    envs = make_envs(3, "straight", "lane", overrides={"cutoff_no_progress_within_ms": 500})
    envs.reset(seed=3)
    forward, coast = np.zeros(3, dtype=np.int64), np.full(3, COAST)
    steps(envs, [forward] * 5)
    copied, astray = copy.deepcopy(envs), copy.deepcopy(envs)
    steps(astray, [coast] * 9)
    expected = steps(envs, [forward] * 60)
    assert data_equivalence(steps(copied, [forward] * 60), expected, exact=True)
    assert len({name for *_, infos in expected for name in infos["map"]}) == 2


def test_closing_a_copy_leaves_the_originals_tracks(make_env: Callable[..., RaceEnv]) -> None:
    env = make_env("generated:0.2:7-8")
    env.reset(options={"map": env.map_names[0]})
    copy.deepcopy(env).close()
    env.reset(options={"map": env.map_names[1]})


def test_a_pickled_environment_begins_the_same_race(make_env: Callable[..., RaceEnv]) -> None:
    env = make_env("straight", "lane")
    first = env.reset(seed=2)
    pickled = pickle.loads(pickle.dumps(env))
    assert data_equivalence(pickled.reset(seed=2), first, exact=True)
    pickled.close()
    env.step(0)


def test_a_game_behind_a_socket_is_not_copied(make_env: Callable[..., RaceEnv]) -> None:
    env = make_env("straight", overrides={"game_transport": "socket"})
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UserError, match="can't be copied"):
            copying(env._games)
    with pytest.raises(UserError, match="can't be copied"):
        copy.deepcopy(env)
