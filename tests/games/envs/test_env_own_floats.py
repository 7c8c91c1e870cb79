"""Floats of a user's own (the part `games`) in the environments."""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from examples.slip_angle import SlipAngle
from trackmania_rl.games.envs import RaceEnv, RaceVectorEnv

SLIP = {"games": "examples.slip_angle:SlipAngle"}


@pytest.mark.parametrize("transport", ["in_process", "socket"])
def test_they_are_shown_behind_the_others(
    make_env: Callable[..., RaceEnv], wandering: list[int], transport: str
) -> None:
    overrides = {"game_transport": transport}
    plain, with_slip = (make_env("lane", overrides=overrides | more, normalize=False) for more in ({}, SLIP))
    assert with_slip.observation_space.shape == (185,)
    slip = SlipAngle(with_slip.settings)
    seen, theirs = with_slip.reset()[0], plain.reset()[0]
    is_over, actions = False, iter(wandering)
    while not is_over:
        np.testing.assert_array_equal(seen[:184], theirs)
        np.testing.assert_allclose(seen[184:], slip.own_floats(theirs[np.newaxis])[0], rtol=1e-6)
        action = next(actions)
        seen, _, terminated, truncated, _ = with_slip.step(action)
        theirs, *_ = plain.step(action)
        is_over = terminated or truncated
    np.testing.assert_array_equal(seen[:184], theirs)
    assert seen.shape == (185,), "at the finish, too"


def test_they_are_normalized_as_networks_do_it(make_env: Callable[..., RaceEnv]) -> None:
    raw, normalized = (make_env("lane", overrides=SLIP, normalize=normalize) for normalize in (False, True))
    spaces = SlipAngle(raw.settings).spaces
    for env in (raw, normalized):
        env.reset()
    shown, scaled = raw.step(1)[0], normalized.step(1)[0]
    expected = (shown - np.float32(spaces.float_mean)) / np.float32(spaces.float_std)
    np.testing.assert_allclose(scaled, expected, rtol=1e-5, atol=1e-6)


def test_many_games_have_them(make_envs: Callable[..., RaceVectorEnv]) -> None:
    envs = make_envs(3, "lane", overrides=SLIP | {"cutoff_no_progress_within_ms": 500})
    with contextlib.closing(envs):
        assert envs.reset()[0].shape == (3, 185)
        for _ in range(25):
            observations, *_ = envs.step([0, 3, 3])
        assert observations.shape == (3, 185)


def test_games_that_are_no_races_leave_the_environment_as_it_is(make_env: Callable[..., RaceEnv]) -> None:
    env = make_env("lane", config="config_files/config_cartpole.py")
    assert env.reset()[1]["map"] == "lane"
