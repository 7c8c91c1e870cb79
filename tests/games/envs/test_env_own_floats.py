"""Floats of a user's own (the part `games`) in the environments."""

from collections.abc import Callable

import numpy as np
import pytest

from examples.slip_angle import SlipAngle
from trackmania_rl.games.envs import RaceEnv

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
