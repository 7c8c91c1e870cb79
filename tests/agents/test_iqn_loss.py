"""Targets, quantile Huber loss and its scaling, against plain loops."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from trackmania_rl.agents import iqn
from trackmania_rl.agents.iqn import (
    SelfLossScaling,
    Transitions,
    draw_symmetric_taus,
    draw_taus,
    margin_loss,
    quantile_huber_loss,
    target_returns,
)


def naive_quantile_huber_loss(targets, predictions, tau, kappa):
    losses = []
    for b in range(len(targets)):
        total = 0.0
        for n in range(len(predictions[b])):
            for m in range(len(targets[b])):
                error = targets[b][m] - predictions[b][n]
                huber = 0.5 * error**2 if abs(error) <= kappa else kappa * (abs(error) - 0.5 * kappa)
                total += abs(tau[b][n] - (1.0 if error < 0 else 0.0)) * huber / kappa / len(targets[b])
        losses.append(total)
    return losses


@pytest.mark.parametrize("kappa", [5e-3, 1.0])
def test_quantile_huber_loss_equals_loops(kappa):
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(5, 7, generator=generator)
    predictions = torch.randn(5, 9, generator=generator)
    predictions[0, 0] = targets[0, 0] + 0.5 * kappa  # one within the square part, whatever kappa
    tau = torch.rand(5, 9, generator=generator)
    expected = naive_quantile_huber_loss(targets.tolist(), predictions.tolist(), tau.tolist(), kappa)
    np.testing.assert_allclose(quantile_huber_loss(targets, predictions, tau, kappa).numpy(), expected, rtol=1e-5)


def test_margin_loss_equals_loops():
    generator = torch.Generator().manual_seed(0)
    returns = torch.randn(40, 8, 3, generator=generator)
    action = torch.randint(3, (40,), generator=generator)
    expected = []
    for of_state, taken in zip(returns.mean(dim=1).tolist(), action.tolist(), strict=True):
        raised = [value + (0.3 if a != taken else 0.0) for a, value in enumerate(of_state)]
        expected.append(max(raised) - of_state[taken])
    assert 0 < np.count_nonzero(expected) < 40
    np.testing.assert_allclose(margin_loss(returns, action, 0.3).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_only_demonstrations_have_a_margin(make_agent, make_batch):
    def loss_of(margin, *demonstrations):
        batch = make_batch()
        if demonstrations:
            batch["is_demonstration"] = torch.tensor([row in demonstrations for row in range(5)])
        return make_agent(demonstrations_margin=margin).loss_module(batch)["loss"].item()

    without = loss_of(0.0)
    assert without == loss_of(0.5) == loss_of(0.0, 1, 3) == loss_of(0.5, 99)
    more = [loss_of(0.5, row) - without for row in range(5)]
    assert min(more) >= 0
    assert loss_of(0.5, 1, 3) - without == pytest.approx(more[1] + more[3], rel=1e-4)
    assert loss_of(0.5, 1, 3) > without


class Scripted(nn.Module):
    """Stands for a network: returns (B, N, A) drawn from a seed, the same at each call."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, img, floats, tau):
        return torch.randn((*tau.shape, 3), generator=torch.Generator().manual_seed(self.seed)) + self.shift


@pytest.mark.parametrize("way", ["max_of_each_quantile", "argmax_of_mean", "ddqn"])
def test_targets_equal_loops(agent_settings, make_batch, way):
    use_ddqn = way == "ddqn"
    settings = agent_settings(use_ddqn=use_ddqn, target_action="argmax_of_mean" if use_ddqn else way)
    batch = make_batch()
    online, target = Scripted(11), Scripted(12)
    taus = draw_taus(5, settings, torch.Generator().manual_seed(5))
    tau, transitions = taus.target, Transitions.from_batch(batch, torch.device("cpu"))
    targets = target_returns(online, target, transitions, settings, tau)
    assert targets.shape == tau.shape == (5, 8)
    assert torch.equal(tau, draw_symmetric_taus(5, 8, torch.Generator().manual_seed(5)))

    by_target, by_online = (network(None, None, tau).detach().numpy() for network in (target, online))
    disagreements = 0
    for b in range(5):
        by_mean = by_target[b].mean(axis=0).argmax()
        best_by_online = by_online[b].mean(axis=0).argmax()
        disagreements += by_mean != best_by_online
        for m in range(8):
            action = {"max_of_each_quantile": by_target[b, m].argmax(), "argmax_of_mean": by_mean}.get(
                way, best_by_online
            )
            expected = batch["reward"][b].item() + batch["gamma_n"][b].item() * by_target[b, m, action]
            assert targets[b, m].item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert disagreements > 0  # else double DQN was not told apart
    assert not targets.requires_grad
    assert torch.all(targets[1] == batch["reward"][1])  # terminal: nothing after the reward counts


def test_self_loss_scaling_equals_plain_running_means(agent_settings, monkeypatch):
    monkeypatch.setattr(iqn, "SELF_LOSS_RATE", 0.25)
    monkeypatch.setattr(iqn, "SELF_LOSS_CLAMP_RATIO", 2.0)
    settings = agent_settings()
    scaling = SelfLossScaling()
    generator = torch.Generator().manual_seed(0)
    mean = clamped_mean = 0.0
    for batch in range(7):
        targets = torch.randn(5, 8, generator=generator) * torch.tensor([0.01, 0.5, 1, 2, 5])[:, None]
        targets[0] = targets[0, 0]  # like a terminal transition: no spread
        tau = draw_symmetric_taus(5, 8, generator)
        before = [buffer.clone() for buffer in scaling.buffers()]
        looked_at = scaling.eval()(targets, tau, settings)
        assert all(map(torch.equal, before, scaling.buffers()))
        weights = scaling.train()(targets, tau, settings)

        self_loss = naive_quantile_huber_loss(targets.tolist(), targets.tolist(), tau.tolist(), settings.iqn_kappa)
        divisors = [math.sqrt(loss) for loss in self_loss]
        if batch > 0:
            clamped_by_old_mean = np.maximum(divisors, mean / 2.0)
            np.testing.assert_allclose(looked_at.numpy(), clamped_mean / clamped_by_old_mean, rtol=1e-4)
        rate = max(0.25, 1 / (batch + 1))
        mean += rate * (np.mean(divisors) - mean)
        clamped = np.maximum(divisors, mean / 2.0)
        clamped_mean += rate * (clamped.mean() - clamped_mean)
        np.testing.assert_allclose(weights.numpy(), clamped_mean / clamped, rtol=1e-4)
        if batch == 0:
            torch.testing.assert_close(looked_at, weights)
        assert scaling.batches == batch + 1


def test_targets_that_are_no_numbers_do_not_stay_in_the_running_means(agent_settings):
    settings, scaling = agent_settings(), SelfLossScaling()
    targets, tau = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), torch.rand(5, 8)
    scaling(targets, tau, settings)
    before = [buffer.clone() for buffer in scaling.buffers()]
    for broken in (math.nan, math.inf):
        scaling(targets.where(targets < 1, broken), tau, settings)
        assert all(map(torch.equal, before, scaling.buffers()))
