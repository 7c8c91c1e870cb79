"""Decisions: mean values over fixed quantiles, prepared or plain; greedy or exploring actions."""

import numpy as np
import pytest
import torch

from trackmania_rl.agents.inference import BOLTZMANN_STD, GREEDY, ActionChooser, Exploration, Inferer
from trackmania_rl.settings import ExplorationSettings

from .conftest import draw_biases, needs_gpu

N_QUANTILES = 6
ALWAYS_RANDOM = ExplorationSettings(
    epsilon_schedule=((0, 1.0),),
    epsilon_boltzmann_schedule=((0, 0.0),),
    random_action_throttle_probability=None,
)


@pytest.fixture
def make_inferer(agent_settings, make_network):
    def make(*, has_image=False, seed=0, dtype=torch.float32, multiplied="features", device="cpu"):
        settings = agent_settings(expected_reward_per_action=-0.05, quantile_factors_multiply=multiplied)
        return Inferer(
            make_network(settings, has_image=has_image).to(device),
            n_quantiles=settings.iqn_k,
            throttle_actions=(),
            exploration_settings=ALWAYS_RANDOM,
            rng=np.random.default_rng(seed),
            dtype=dtype,
        )

    return make


def states(n, *, has_image=False):
    rng = np.random.default_rng(1)
    frames = rng.integers(0, 256, (n, 1, 17, 23) if has_image else (n, 1, 0, 0), dtype=np.uint8)
    return frames, rng.standard_normal((n, 7)).astype(np.float32)


def means_of_forward(network, frames, floats):
    midpoints = [[(i + 0.5) / N_QUANTILES for i in range(N_QUANTILES)]]
    inputs = (torch.as_tensor(array, device=network.float_mean.device) for array in (frames, floats, midpoints))
    with torch.no_grad():
        return network(*inputs).mean(dim=1).cpu().numpy()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_values_are_means_over_the_midpoints_of_the_newest_weights(
    make_inferer, monkeypatch, device, has_image, multiplied
):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    inferer = make_inferer(has_image=has_image, multiplied=multiplied, device=device)
    frames, floats = states(11, has_image=has_image)
    for seed in range(2):
        draw_biases(inferer.network, seed)
        inferer.weights_changed()
        expected = means_of_forward(inferer.network, frames, floats)
        for frame, state, values in zip(frames, floats, expected, strict=True):
            decision = inferer.act(frame, state)
            assert (decision.q_values.shape, decision.q_values.dtype) == ((3,), np.float32)
            np.testing.assert_allclose(decision.q_values, values, rtol=1e-4, atol=1e-4)
            assert decision.action == decision.q_values.argmax()
            assert decision.is_greedy
            assert type(decision.action) is int
        batch = inferer.act_batch(frames, floats)
        np.testing.assert_allclose(batch.q_values, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(batch.actions, batch.q_values.argmax(axis=1))
        assert batch.is_greedy.all()


def test_exploring_is_fixed_by_the_seed_and_told_apart_from_greedy(make_inferer):
    frames, floats = states(40)
    runs = []
    for seed in (0, 0, 1):
        inferer = make_inferer(seed=seed)
        inferer.begin_race(is_explo=True, frame_count=123)
        runs.append([inferer.act(frame, state) for frame, state in zip(frames, floats, strict=True)])
    actions = [[decision.action for decision in run] for run in runs]
    assert actions[0] == actions[1] != actions[2]
    for decision in runs[0]:
        assert decision.is_greedy == (decision.action == decision.q_values.argmax())
    assert 0 < sum(decision.is_greedy for decision in runs[0]) < 40


Q_VALUES = np.array([0.1, 0.3, 0.2], np.float32)
THROTTLE = (1,)


def together(chooser, exploration, n, q_values=Q_VALUES):
    return chooser.choose(np.tile(q_values, (n, 1)), [exploration] * n)


def counts(chooser, exploration, q_values=Q_VALUES, n=6000):
    """How often each action is chosen, as a share."""
    return np.bincount(together(chooser, exploration, n, q_values), minlength=3) / n


def test_greedy_takes_the_best_action_and_draws_nothing():
    rng = np.random.default_rng(0)
    chooser = ActionChooser(3, THROTTLE, rng)
    assert together(chooser, GREEDY, 20).tolist() == [1] * 20
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state


@pytest.mark.parametrize(
    ("epsilon", "probability", "expected"),
    [
        (0.6, None, [0.2, 0.6, 0.2]),  # 0.4 of them greedy
        (1.0, 0.0, [0.5, 0.0, 0.5]),
        (1.0, 0.7, [0.15, 0.7, 0.15]),
    ],
)
def test_random_actions_are_even_or_favour_throttle(epsilon, probability, expected):
    chooser = ActionChooser(3, THROTTLE, np.random.default_rng(0))
    shares = counts(chooser, Exploration(epsilon, 0.0, throttle_probability=probability))
    np.testing.assert_allclose(shares, expected, atol=0.02)


def test_boltzmann_noise_swaps_close_actions_only():
    chooser = ActionChooser(3, THROTTLE, np.random.default_rng(0))
    # The second and third differ by 2.5 / sqrt 2 = 1.77 deviations: passed 3.9 % of the time; the first hardly ever.
    far = Q_VALUES * np.float32(25 * BOLTZMANN_STD)
    shares = counts(chooser, Exploration(0.0, 1.0, throttle_probability=None), far)
    np.testing.assert_allclose(shares, [0.0, 0.961, 0.039], atol=0.01)
    half = counts(chooser, Exploration(0.0, 0.5, throttle_probability=None), Q_VALUES * np.float32(1e-9))
    np.testing.assert_allclose(half, [1 / 6, 1 / 2 + 1 / 6, 1 / 6], atol=0.02)
