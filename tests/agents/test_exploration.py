"""Exploration: how often, and which actions."""

import numpy as np
import pytest

from trackmania_rl.agents.exploration import GREEDY, ActionChooser, Exploration

Q_VALUES = np.array([0.1, 0.3, 0.2], np.float32)
THROTTLE = (1,)


def together(chooser, exploration, n):
    return chooser.choose(np.tile(Q_VALUES, (n, 1)), [exploration] * n)


def counts(chooser, exploration, n=6000):
    """How often each action is chosen, as a share."""
    return np.bincount(together(chooser, exploration, n), minlength=3) / n


def test_greedy_takes_the_best_action_and_draws_nothing():
    rng = np.random.default_rng(0)
    chooser = ActionChooser(3, THROTTLE, rng)
    assert together(chooser, GREEDY, 20).tolist() == [1] * 20
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state


@pytest.mark.parametrize("probability", [0.0, 0.7, 1.0])
def test_random_actions_favour_throttle_by_its_probability(probability):
    chooser = ActionChooser(3, THROTTLE, np.random.default_rng(0))
    shares = counts(chooser, Exploration(1.0, 0.0, 0.0, throttle_probability=probability))
    np.testing.assert_allclose(shares, [(1 - probability) / 2, probability, (1 - probability) / 2], atol=0.02)


def test_boltzmann_noise_swaps_close_actions_only():
    chooser = ActionChooser(3, THROTTLE, np.random.default_rng(0))
    shares = counts(chooser, Exploration(0.0, 1.0, 0.04, throttle_probability=None))
    # 0.3 and 0.2 differ by 0.1 / (0.04 x sqrt 2) = 1.77 deviations: passed 3.9 % of the time; 0.1 hardly ever.
    np.testing.assert_allclose(shares, [0.0, 0.961, 0.039], atol=0.01)
    half = counts(chooser, Exploration(0.0, 0.5, 1e9, throttle_probability=None))
    np.testing.assert_allclose(half, [1 / 6, 1 / 2 + 1 / 6, 1 / 6], atol=0.02)
