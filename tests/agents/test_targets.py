"""Options of the target (Munchausen, the smaller of two networks' returns) against plain loops."""

import math

import numpy as np
import pytest
import torch

from trackmania_rl.agents.iqn import draw_taus, target_returns


class Scripted:
    """Stands for a network: returns (B, N, 3) that depend on the quantiles and on whether the state is a next state."""

    def __init__(self, seed, scale=1.0):
        self.seed = seed
        self.scale = scale

    def __call__(self, img, floats, tau):
        seed = self.seed + 1000 * round(floats[0, 1].item() * 1e6)
        return self.scale * torch.randn((*tau.shape, 3), generator=torch.Generator().manual_seed(seed)) + tau[..., None]

    def actions_left(self, floats):
        return torch.arange(1.0, 1.0 + len(floats))


def softmax(values):
    exponentials = [math.exp(value - max(values)) for value in values]
    return [value / sum(exponentials) for value in exponentials]


@pytest.mark.parametrize(("temperature", "clip"), [(0.5, -0.55), (0.03, -0.1)])
def test_munchausen_targets_equal_loops(agent_settings, make_batch, temperature, clip):
    settings = agent_settings(munchausen_alpha=0.7, munchausen_temperature=temperature, munchausen_clip=clip)
    batch, target = make_batch(), Scripted(12, scale=0.3)
    taus = draw_taus(5, settings, torch.Generator().manual_seed(5))
    assert taus.policy is not None
    targets = target_returns(None, target, batch, settings, taus)
    assert targets.shape == (5, 8)

    values = target(None, batch.state_float, taus.policy).numpy().astype(np.float64)
    next_returns = target(None, batch.next_state_float, taus.target).numpy().astype(np.float64)
    n_clipped = 0
    for b in range(5):
        policy = softmax(values[b].mean(axis=0) / temperature)
        bonus = temperature * math.log(max(policy[batch.action[b]], 1e-300))
        n_clipped += bonus < clip
        reward = batch.reward[b].item() + 0.7 * min(max(bonus, clip), 0.0)
        next_policy = softmax(next_returns[b].mean(axis=0) / temperature)
        for m in range(8):
            soft = sum(
                share * (next_returns[b, m, a] - temperature * math.log(share)) if share > 0 else 0.0
                for a, share in enumerate(next_policy)
            )
            expected = reward + batch.gamma_n[b].item() * soft
            assert targets[b, m].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert 0 < n_clipped < 5


def test_a_cold_munchausen_policy_is_the_greedy_target(agent_settings, make_batch):
    cold = agent_settings(munchausen_alpha=0.5, munchausen_temperature=1e-6, munchausen_clip=0.0)
    plain = agent_settings(target_action="argmax_of_mean")
    batch, target = make_batch(), Scripted(12)
    taus = draw_taus(5, cold, torch.Generator().manual_seed(5))
    expected = target_returns(None, target, batch, plain, taus._replace(policy=None))
    torch.testing.assert_close(target_returns(None, target, batch, cold, taus), expected)


@pytest.mark.parametrize("way", ["max_of_each_quantile", "argmax_of_mean", "ddqn"])
def test_the_smaller_of_two_networks_returns_counts(agent_settings, make_batch, way):
    use_ddqn = way == "ddqn"
    settings = agent_settings(
        use_ddqn=use_ddqn,
        target_action="argmax_of_mean" if use_ddqn else way,
        use_minimum_of_online_and_target=True,
    )
    batch, online, target = make_batch(), Scripted(11), Scripted(12)
    taus = draw_taus(5, settings, torch.Generator().manual_seed(5))
    targets = target_returns(online, target, batch, settings, taus)
    by_both = [network(None, batch.next_state_float, taus.target).numpy() for network in (online, target)]
    smaller = np.minimum(*by_both)
    assert 0 < (smaller == by_both[0]).sum() < smaller.size
    for b in range(5):
        action = smaller[b].mean(axis=0).argmax()
        if use_ddqn:
            action = online(None, batch.next_state_float, taus.choice)[b].mean(dim=0).argmax()
        for m in range(8):
            value = smaller[b, m].max() if way == "max_of_each_quantile" else smaller[b, m, action]
            expected = batch.reward[b].item() + batch.gamma_n[b].item() * value
            assert targets[b, m].item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_bounds_leave_room_for_what_munchausen_adds(agent_settings, make_batch):
    bounded = {"return_bounds_per_action": (-0.5, 0.25)}
    batch, target = make_batch(), Scripted(12, scale=100.0)
    batch.reward.zero_()
    batch.gamma_n.fill_(1.0)
    left = target.actions_left(batch.next_state_float)
    plain = agent_settings(**bounded)
    taus = draw_taus(5, plain, torch.Generator().manual_seed(5))
    targets = target_returns(None, target, batch, plain, taus)
    assert torch.equal(targets.amax(dim=1), 0.25 * left)

    soft = agent_settings(munchausen_alpha=0.5, munchausen_temperature=0.1, munchausen_clip=-0.2, **bounded)
    taus = draw_taus(5, soft, torch.Generator().manual_seed(5))
    targets = target_returns(None, target, batch, soft, taus)
    highest, lowest = 0.25 + 0.1 * math.log(3), -0.5 - 0.5 * 0.2
    assert (targets <= highest * left[:, None] + 0.1 * math.log(3)).all()
    assert (targets.amax(dim=1) > 0.25 * left).all()
    assert (targets >= lowest * left[:, None] - 0.5 * 0.2 - 1e-6).all()


def test_switched_off_they_draw_no_random_number(agent_settings):
    settings = agent_settings(munchausen_alpha=0.0, use_minimum_of_online_and_target=False)
    generator, same = (torch.Generator().manual_seed(5) for _ in range(2))
    assert draw_taus(5, settings, generator).policy is None
    torch.rand((5, 4), generator=same)
    torch.rand((5, 4), generator=same)
    assert torch.equal(generator.get_state(), same.get_state())


def test_quantiles_that_multiply_hidden_layers_are_drawn_once_for_all_transitions(agent_settings):
    settings = agent_settings(quantile_factors_multiply="hidden_layers", use_ddqn=True)
    taus = draw_taus(5, settings, torch.Generator().manual_seed(5))
    assert [tau.shape for tau in taus if tau is not None] == [(1, 8)] * 3
    portion = taus.portion(slice(3, 5))
    assert torch.equal(portion.prediction, taus.prediction)
    assert not torch.equal(taus.prediction, taus.target)


def test_munchausen_has_no_action_for_double_dqn(agent_settings):
    with pytest.raises(ValueError, match=r"munchausen_alpha = 0.9 .* set use_ddqn = False"):
        agent_settings(munchausen_alpha=0.9, use_ddqn=True)
