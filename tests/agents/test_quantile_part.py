"""QuantilePart of both kinds: values and written-out derivatives against the network and autograd."""

import pytest
import torch

from trackmania_rl.agents.flat_parameters import flatten_gradients, flatten_parameters
from trackmania_rl.agents.iqn import draw_taus, of_action
from trackmania_rl.agents.quantile_loss import quantile_huber_gradient, quantile_huber_loss
from trackmania_rl.agents.quantile_part import STATES_AT_ONCE, Workspace, portions, quantile_part

CPU = torch.device("cpu")


@pytest.fixture(params=["features", "hidden_layers"])
def settings(request, agent_settings):
    return agent_settings(expected_reward_per_action=-0.05, quantile_factors_multiply=request.param)


@pytest.fixture
def network(settings, make_network):
    network = make_network(settings, has_image=True)
    flatten_parameters(network)
    return network


@pytest.mark.parametrize("batch_size", [5, STATES_AT_ONCE + 3])
def test_returns_of_all_actions_are_those_of_the_network(settings, network, make_batch, batch_size):
    batch = make_batch(has_image=True, batch_size=batch_size)
    tau = draw_taus(batch_size, settings, torch.Generator().manual_seed(0)).target
    part = quantile_part(network, Workspace(CPU))
    returns = part(batch.state_img, batch.state_float, tau)
    torch.testing.assert_close(returns, network(batch.state_img, batch.state_float, tau).detach())
    assert torch.equal(part.actions_left(batch.state_float), network.actions_left(batch.state_float))


def test_gradients_are_those_of_autograd_and_add_up(settings, network, make_batch):
    batches = [make_batch(has_image=True, seed=seed) for seed in (0, 1)]
    generator = torch.Generator().manual_seed(0)
    taus = [draw_taus(5, settings, generator).prediction for _ in batches]
    grads = torch.randn(2, 5, 8, generator=generator)
    for batch, tau, grad in zip(batches, taus, grads, strict=True):
        of_action(network(batch.state_img, batch.state_float, tau), batch.action).backward(grad)
    expected = [parameter.grad.clone() for parameter in network.parameters()]

    flatten_gradients(network)
    part = quantile_part(network, Workspace(CPU))
    for batch, tau, grad in zip(batches, taus, grads, strict=True):
        features = network.features(batch.state_img, batch.state_float)
        returns = part.forward(features.detach(), batch.state_float, tau, batch.action)
        plain = of_action(network(batch.state_img, batch.state_float, tau), batch.action)
        torch.testing.assert_close(returns, plain.detach())
        features.backward(part.backward(grad))
    for (name, parameter), gradient in zip(network.named_parameters(), expected, strict=True):
        torch.testing.assert_close(
            parameter.grad, gradient, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("kappa", [5e-3, 1.0])
def test_the_losss_derivative_is_autograds(kappa):
    generator = torch.Generator().manual_seed(0)
    targets, tau = torch.randn(5, 7, generator=generator), torch.rand(5, 9, generator=generator)
    predictions = torch.randn(5, 9, generator=generator).requires_grad_()
    plain = quantile_huber_loss(targets, predictions, tau, kappa)
    plain.sum().backward()
    losses, gradient = quantile_huber_gradient(targets, predictions.detach(), tau, kappa)
    torch.testing.assert_close(losses, plain.detach())
    torch.testing.assert_close(gradient, predictions.grad)


def test_portions_cover_each_state_once():
    parts = [list(range(150))[states] for states in portions(150, CPU, has_image=True)]
    assert [state for part in parts for state in part] == list(range(150))
    assert [len(part) for part in parts] == [64, 64, 22]
    assert portions(150, torch.device("cuda"), has_image=True) == [slice(0, 150)]
    assert portions(150, CPU, has_image=False) == [slice(0, 150)]


def test_a_workspace_keeps_memory_until_the_shape_changes():
    workspace = Workspace(CPU)
    first = workspace.take("rows", (3, 4))
    assert workspace.take("rows", (3, 4)) is first
    assert workspace.take("other", (3, 4)) is not first
    assert workspace.take("rows", (2, 4)).shape == (2, 4)
