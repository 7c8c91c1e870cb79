"""Noisy and spectral heads: formulas against loops, the plain twin against autograd, updates against the plain form."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn

from trackmania_rl.agents.exploration import GREEDY, Exploration
from trackmania_rl.agents.flat_parameters import flatten_gradients, flatten_parameters
from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.iqn import SelfLossScaling, draw_taus, iqn_loss
from trackmania_rl.agents.learner import IQNLearner
from trackmania_rl.agents.network_layers import (
    NoisyLinear,
    SpectralLinear,
    draw_noise,
    follow_singular_vectors,
    has_noise,
    silence_noise,
)
from trackmania_rl.agents.plain_twin import PlainTwin
from trackmania_rl.settings import ExplorationSettings

CPU = torch.device("cpu")
NOISY = {"noisy_heads_sigma": 0.5}
SPECTRAL = {"use_spectral_norm_on_heads": True}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def noisy_layer():
    layer = NoisyLinear(nn.Linear(7, 5), 0.5)
    with torch.no_grad():
        layer.weight_sigma.copy_(torch.randn(5, 7, generator=generator(1)))
        layer.bias_sigma.copy_(torch.randn(5, generator=generator(2)))
    return layer


def test_noise_is_factorised_as_in_the_paper():
    layer, drawn = noisy_layer(), generator(3)
    layer.draw_noise(drawn)
    same = generator(3)
    eps_in, eps_out = torch.randn(7, generator=same).tolist(), torch.randn(5, generator=same).tolist()

    def f(x):
        return math.copysign(math.sqrt(abs(x)), x)

    rows = torch.randn(11, 7, generator=generator(4))
    outputs = layer(rows)
    assert outputs.shape == (11, 5)
    for r in range(11):
        for j in range(5):
            expected = layer.bias[j].item() + layer.bias_sigma[j].item() * f(eps_out[j])
            for i in range(7):
                noise = f(eps_in[i]) * f(eps_out[j])
                weight = layer.weight[j, i].item() + layer.weight_sigma[j, i].item() * noise
                expected += weight * rows[r, i].item()
            assert outputs[r, j].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_noise_has_the_papers_moments():
    layer = NoisyLinear(nn.Linear(300, 200), 0.5)
    nn.init.ones_(layer.weight_sigma)
    nn.init.zeros_(layer.weight)
    layer.draw_noise(generator())
    weight = layer.effective()[0]
    assert weight.mean().abs() < 0.1
    assert weight.pow(2).mean().item() == pytest.approx(2 / math.pi, rel=0.15)  # E[f(eps)^2]^2 = (E|eps|)^2


def test_noisy_heads_begin_silent_and_with_noise_of_the_weights_size(agent_settings, make_network, make_batch):
    noisy, plain = make_network(agent_settings(**NOISY)), make_network(agent_settings())
    batch, tau = make_batch(), torch.rand(5, 4)
    silent = noisy(batch.state_img, batch.state_float, tau)
    assert torch.equal(silent, plain(batch.state_img, batch.state_float, tau))
    assert has_noise(noisy)
    assert not has_noise(plain)
    gain = math.sqrt(2 / (1 + 0.01**2))
    torch.testing.assert_close(noisy.A_head[0].weight_sigma, torch.full((11, 9), 0.5 * gain / 3))
    torch.testing.assert_close(noisy.A_head[2].weight_sigma, torch.full((3, 11), 0.5 / math.sqrt(11)))
    draw_noise(noisy, generator())
    assert not torch.allclose(silent, noisy(batch.state_img, batch.state_float, tau))
    silence_noise(noisy)
    assert torch.equal(silent, noisy(batch.state_img, batch.state_float, tau))


def test_spectral_layers_have_a_largest_singular_value_of_1():
    layer = SpectralLinear(nn.Linear(9, 7))
    nn.init.normal_(layer.weight, generator=generator())
    layer.initialize_singular_vector(generator(1))
    for _ in range(100):
        layer.iterate()
    weight = layer.weight.detach()
    largest = np.linalg.svd(weight.numpy(), compute_uv=False)[0]
    torch.testing.assert_close(layer.effective()[0], weight / largest, rtol=1e-4, atol=1e-5)
    rows = torch.randn(11, 9, generator=generator(2))
    torch.testing.assert_close(layer(rows), rows @ (weight / largest).t() + layer.bias, rtol=1e-4, atol=1e-5)


def test_the_spectral_gradient_is_that_of_the_exact_norm():
    layer = SpectralLinear(nn.Linear(9, 7))
    nn.init.normal_(layer.weight, generator=generator())
    layer.initialize_singular_vector(generator(1))
    for _ in range(200):
        layer.iterate()
    upstream = torch.randn(7, 9, generator=generator(3))
    layer.effective()[0].backward(upstream)
    exact = layer.weight.detach().double().requires_grad_()
    (exact / torch.linalg.matrix_norm(exact, ord=2)).backward(upstream.double())
    torch.testing.assert_close(layer.weight.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)


def test_fresh_spectral_heads_are_normalized_at_once(agent_settings, make_network):
    network = make_network(agent_settings(**SPECTRAL))
    for head in (network.A_head, network.V_head):
        norm = torch.linalg.matrix_norm(head[0].effective()[0], ord=2)
        assert isinstance(head[0], SpectralLinear)
        assert type(head[2]) is nn.Linear  # its output is free
        assert norm.item() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("option", [NOISY, SPECTRAL, {}])
def test_a_plain_twin_computes_and_learns_the_same(agent_settings, make_network, make_batch, option):
    network = make_network(agent_settings(**option), has_image=True)
    flatten_parameters(network)
    batch, tau = make_batch(has_image=True), torch.rand(5, 4)
    draw_noise(network, generator())
    follow_singular_vectors(network)
    returns = network(batch.state_img, batch.state_float, tau)
    upstream = torch.randn(returns.shape)
    returns.backward(upstream)
    expected = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}

    gradient = flatten_gradients(network)
    twin = PlainTwin(network)
    assert twin.is_source == (not option)
    of_twin = twin.network(batch.state_img, batch.state_float, tau)
    torch.testing.assert_close(of_twin, returns)
    of_twin.backward(upstream)
    twin.return_gradient()
    for name, parameter in network.named_parameters():
        if name.endswith("left_singular_vector"):
            assert not parameter.grad.any()
        else:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-5)
    assert gradient.norm() > 0
    twin.refresh()
    assert twin.is_source or not any(parameter.grad.any() for parameter in twin.network.parameters())


def test_a_twin_may_leave_the_noise_out(agent_settings, make_network, make_batch):
    network = make_network(agent_settings(**NOISY))
    batch, tau = make_batch(), torch.rand(5, 4)
    silent = network(batch.state_img, batch.state_float, tau)
    draw_noise(network, generator())
    twin = PlainTwin(network, with_noise=False).network
    torch.testing.assert_close(twin(batch.state_img, batch.state_float, tau), silent)


@pytest.fixture
def make_learner(agent_settings, make_network):
    def make(*, seed=2, **changes):
        settings = agent_settings(**changes)
        return IQNLearner(make_network(settings, has_image=True), settings, device=CPU, seed=seed)

    return make


@pytest.mark.parametrize("option", [NOISY, SPECTRAL])
def test_an_update_equals_the_plain_form(make_learner, make_batch, option):
    learner = make_learner(use_ddqn=True, clip_grad_norm=3.0, **option)
    settings = learner.settings
    online, target = copy.deepcopy(learner.online), copy.deepcopy(learner.target)
    learned = [parameter for parameter in online.parameters() if parameter.requires_grad]
    optimizer = torch.optim.RAdam(learned, eps=settings.adam_epsilon, betas=(settings.adam_beta1, settings.adam_beta2))
    scaling, same = SelfLossScaling(CPU), generator(2)
    for step in range(8):
        batch = make_batch(seed=step, has_image=True)
        metrics = learner.update(batch, 1e-2)
        learner.soft_update_target()

        follow_singular_vectors(online)
        for network in (online, target):
            draw_noise(network, same)
        optimizer.zero_grad()
        taus = draw_taus(5, settings, same)
        loss = iqn_loss(online, target, batch, settings, scaling, taus, learning=True)
        loss.total.backward()
        nn.utils.clip_grad_norm_(learned, settings.clip_grad_norm)
        optimizer.param_groups[0]["lr"] = 1e-2
        optimizer.step()
        with torch.no_grad():
            for parameter, slow in zip(online.parameters(), target.parameters(), strict=True):
                parameter.mul_(1 - 1e-2 * settings.weight_decay_lr_ratio)
                slow.mul_(1 - settings.soft_update_tau).add_(settings.soft_update_tau * parameter)

        torch.testing.assert_close(metrics.loss, loss.total.detach(), rtol=1e-4, atol=1e-5)
        for ours, plain in ((learner.online, online), (learner.target, target)):
            for (name, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("option", [NOISY, SPECTRAL])
def test_a_resumed_learner_makes_the_same_bytes(make_learner, make_batch, option):
    straight, first_half, resumed = make_learner(**option), make_learner(**option), make_learner(seed=77, **option)

    def run(learner, steps):
        for step in steps:
            learner.update(make_batch(seed=step, has_image=True), 1e-3)
            learner.soft_update_target()
            learner.update_evaluation_weights()

    def bytes_of(learner):
        file = io.BytesIO()
        torch.save(learner.state_dict(), file)
        return file

    run(straight, range(5))
    run(first_half, range(3))
    state = bytes_of(first_half)
    state.seek(0)
    resumed.load_state_dict(torch.load(state, weights_only=True))
    run(resumed, range(3, 5))
    assert bytes_of(resumed).getvalue() == bytes_of(straight).getvalue()


def test_the_test_loss_is_without_noise(make_learner, make_batch):
    learner = make_learner(use_target_self_loss_scaling=False, **NOISY)
    state = learner.state_dict()["generator"].clone()
    losses = []
    for seed in (5, 6):
        for network in (learner.online, learner.target):
            draw_noise(network, generator(seed))
        learner._generator.set_state(state)
        losses.append(learner.evaluate(make_batch(has_image=True)))
    assert torch.equal(*losses)


def test_partial_resets_reach_noise_and_singular_vectors(make_learner):
    noisy = make_learner(overall_reset_mul_factor=1.0, last_layer_reset_mul_factor=1.0, **NOISY)
    with torch.no_grad():
        noisy.online.A_head[0].weight_sigma.zero_()
    noisy.reset_partially()
    assert noisy.online.A_head[0].weight_sigma.all()
    spectral = make_learner(overall_reset_mul_factor=1.0, **SPECTRAL)
    before = spectral.online.A_head[0].left_singular_vector.clone()
    spectral.reset_partially()
    assert not torch.equal(before, spectral.online.A_head[0].left_singular_vector)


def test_one_head_is_not_both(agent_settings):
    with pytest.raises(ValueError, match=r"noisy_heads_sigma = 0.5 and use_spectral_norm_on_heads = True"):
        agent_settings(**NOISY, **SPECTRAL)


def greedy_and_exploring(probability):
    settings = ExplorationSettings(
        epsilon_schedule=((0, probability),),
        epsilon_boltzmann_schedule=((0, 0.0),),
        tau_epsilon_boltzmann=0.01,
        random_action_throttle_probability=None,
        noise_redraw_every_n_actions=3,
    )
    return settings, Exploration.scheduled(settings, 0)


@pytest.fixture
def make_inferer(agent_settings, make_network, key_states):
    def make(*, seed=0, **option):
        settings = agent_settings(**option)
        exploration_settings, _ = greedy_and_exploring(0.0)
        return Inferer(
            make_network(settings),
            n_quantiles=settings.iqn_k,
            inputs=key_states,
            exploration_settings=exploration_settings,
            rng=np.random.default_rng(seed),
        )

    return make


def states(n):
    rng = np.random.default_rng(1)
    return np.zeros((n, 1, 0, 0), dtype=np.uint8), rng.standard_normal((n, 7)).astype(np.float32)


def test_noise_is_for_exploring_only_and_stays_for_some_actions(make_inferer):
    inferer, (frames, floats) = make_inferer(**NOISY), states(1)
    tau = ((torch.arange(6) + 0.5) / 6).expand(1, 6)
    expected = inferer.network(torch.from_numpy(frames), torch.from_numpy(floats), tau).mean(dim=1).detach().numpy()
    inferer.begin_race(is_explo=True, frame_count=0)
    seen = [inferer.act(frames[0], floats[0]) for _ in range(7)]
    draws = [seen[i].q_values.tobytes() for i in range(7)]
    assert draws[0] == draws[1] == draws[2] != draws[3] == draws[4] == draws[5] != draws[6]
    assert all(decision.is_greedy for decision in seen)  # greedy for the values with noise
    inferer.begin_race(is_explo=False, frame_count=0)
    np.testing.assert_allclose(inferer.act(frames[0], floats[0]).q_values, expected[0], rtol=1e-4, atol=1e-5)


def test_in_a_batch_only_exploring_races_have_noise(make_inferer):
    inferer, (frames, floats) = make_inferer(**NOISY), states(5)
    exploring = greedy_and_exploring(0.0)[1]
    greedy = inferer.act_batch(frames, floats).q_values
    mixed = inferer.act_batch(frames, floats, [exploring, GREEDY, exploring, GREEDY, GREEDY]).q_values
    same = np.isclose(mixed, greedy, rtol=1e-4, atol=1e-5).all(axis=1)
    assert same.tolist() == [False, True, False, True, True]
    again = make_inferer(**NOISY).act_batch(frames, floats, [exploring] * 5).q_values
    np.testing.assert_allclose(again[[0, 2]], mixed[[0, 2]], rtol=1e-5, atol=1e-6)
    other = make_inferer(seed=1, **NOISY).act_batch(frames, floats, [exploring] * 5).q_values
    assert not np.allclose(other, again)


@pytest.mark.parametrize("option", [NOISY, SPECTRAL])
def test_changed_weights_count_once_announced(make_inferer, option):
    inferer, (frames, floats) = make_inferer(**option), states(5)
    inferer.act_batch(frames, floats, [greedy_and_exploring(0.0)[1]] * 5)
    with torch.no_grad():
        for parameter in inferer.network.parameters():
            parameter.mul_(0.9)
    inferer.weights_changed()
    silence_noise(inferer.network)
    tau = ((torch.arange(6) + 0.5) / 6).expand(5, 6)
    expected = inferer.network(torch.from_numpy(frames), torch.from_numpy(floats), tau).mean(dim=1).detach().numpy()
    np.testing.assert_allclose(inferer.act_batch(frames, floats).q_values, expected, rtol=1e-4, atol=1e-5)
