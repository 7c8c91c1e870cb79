"""Inferer: values over fixed quantiles, one state or many, greedy or exploring."""

import numpy as np
import pytest
import torch

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.settings import ExplorationSettings

ALWAYS_RANDOM = ExplorationSettings(
    epsilon_schedule=((0, 1.0),),
    epsilon_boltzmann_schedule=((0, 0.0),),
    tau_epsilon_boltzmann=0.01,
    random_action_throttle_probability=None,
)


@pytest.fixture
def make_inferer(agent_settings, make_network, key_states):
    def make(*, has_image=False, seed=0, dtype=torch.float32, multiplied="features"):
        settings = agent_settings(expected_reward_per_action=-0.05, quantile_factors_multiply=multiplied)
        return Inferer(
            make_network(settings, has_image=has_image),
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


@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_values_are_means_over_the_midpoints(make_inferer, has_image, multiplied):
    inferer = make_inferer(has_image=has_image, multiplied=multiplied)
    frames, floats = states(11, has_image=has_image)
    tau = ((torch.arange(6) + 0.5) / 6).expand(11, 6)
    with torch.no_grad():
        expected = inferer.network(torch.from_numpy(frames), torch.from_numpy(floats), tau).mean(dim=1).numpy()
    for frame, state, values in zip(frames, floats, expected, strict=True):
        decision = inferer.act(frame, state)
        assert decision.q_values.shape == (3,)
        assert decision.q_values.dtype == np.float32
        np.testing.assert_allclose(decision.q_values, values, rtol=1e-4, atol=1e-5)
        assert decision.action == values.argmax()
        assert decision.is_greedy
        assert type(decision.action) is int
    batch = inferer.act_batch(frames, floats)
    np.testing.assert_allclose(batch.q_values, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(batch.actions, expected.argmax(axis=1))
    assert batch.is_greedy.all()


def test_greedy_decisions_repeat_to_the_byte(make_inferer):
    one, other = make_inferer(seed=0), make_inferer(seed=5)
    for frame, state in zip(*states(9), strict=True):
        for inferer in (one, other):
            inferer.begin_race(is_explo=False, frame_count=0)
        assert one.act(frame, state).q_values.tobytes() == other.act(frame, state).q_values.tobytes()


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


def test_bfloat16_values_are_rougher_float32_values(make_inferer):
    frames, floats = states(11, has_image=True)
    exact, rough = (
        make_inferer(has_image=True, dtype=dtype).act_batch(frames, floats).q_values
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rough.dtype == np.float32
    assert not np.array_equal(rough, exact)
    np.testing.assert_allclose(rough, exact, rtol=0.01, atol=0.05)
