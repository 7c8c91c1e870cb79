"""IQN_Network: its published shape, and its arithmetic against loops over states and quantiles."""

import math

import numpy as np
import pytest
import torch

from trackmania_rl.agents.iqn import IQN_Network, Sizes, draw_symmetric_taus, of_action

PUBLISHED_SHAPES = {
    "img_head.0.weight": (16, 1, 4, 4),
    "img_head.0.bias": (16,),
    "img_head.2.weight": (32, 16, 4, 4),
    "img_head.2.bias": (32,),
    "img_head.4.weight": (64, 32, 3, 3),
    "img_head.4.bias": (64,),
    "img_head.6.weight": (32, 64, 3, 3),
    "img_head.6.bias": (32,),
    "float_feature_extractor.0.weight": (256, 184),
    "float_feature_extractor.0.bias": (256,),
    "float_feature_extractor.2.weight": (256, 256),
    "float_feature_extractor.2.bias": (256,),
    "A_head.0.weight": (512, 5888),
    "A_head.0.bias": (512,),
    "A_head.2.weight": (12, 512),
    "A_head.2.bias": (12,),
    "V_head.0.weight": (512, 5888),
    "V_head.0.bias": (512,),
    "V_head.2.weight": (1, 512),
    "V_head.2.bias": (1,),
    "iqn_fc.0.weight": (5888, 64),
    "iqn_fc.0.bias": (5888,),
}


def test_full_size_network_has_the_published_shape(full_size_settings, make_network):
    settings = full_size_settings
    sizes = Sizes(
        float_mean=[0.0] * 184,
        float_std=[1.0] * 184,
        n_actions=len(settings.game.inputs),
        image_shape=(1, settings.game.image_height_px, settings.game.image_width_px),
        mini_race_duration_actions=settings.replay.temporal_mini_race_duration_actions,
    )
    network = IQN_Network(settings.agent, sizes, torch.Generator().manual_seed(0))
    assert {name: tuple(value.shape) for name, value in network.state_dict().items()} == PUBLISHED_SHAPES
    assert sum(parameter.numel() for parameter in network.parameters()) == 6_578_333


def test_without_image_there_is_no_image_head(agent_settings, make_network):
    keys = make_network(agent_settings()).state_dict().keys()
    assert {key.split(".")[0] for key in keys} == {"float_feature_extractor", "A_head", "V_head", "iqn_fc"}
    assert make_network(agent_settings()).A_head[0].in_features == 9


def test_too_small_an_image_is_named(agent_settings, make_network):
    with pytest.raises(ValueError, match=r"23 x 17 pixels is too small for conv_kernel_sizes = \(4, 9\)"):
        make_network(agent_settings(conv_kernel_sizes=(4, 9)), has_image=True)


def leaky_relu(x):
    return np.where(x > 0, x, 0.01 * x)


def linear(layer, x):
    return layer.weight.detach().double().numpy() @ x + layer.bias.detach().double().numpy()


@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_forward_equals_loops(agent_settings, make_network, make_batch, has_image, multiplied):
    settings = agent_settings(expected_reward_per_action=-0.05, quantile_factors_multiply=multiplied)
    network = make_network(settings, has_image=has_image)
    batch = make_batch(has_image=has_image)
    tau = torch.rand(5 if multiplied == "features" else 1, 4)  # or the same for all states
    returns = network(batch.state_img, batch.state_float, tau)
    tau = tau.expand(5, 4)
    assert returns.shape == (5, 4, 3)
    assert returns.dtype == torch.float32

    for b in range(5):
        floats = batch.state_float[b].double().numpy()
        features = (floats - 0.1 * np.arange(7)) / (1.0 + np.arange(7))
        for layer in (network.float_feature_extractor[0], network.float_feature_extractor[2]):
            features = leaky_relu(linear(layer, features))
        if has_image:
            image = (batch.state_img[b : b + 1].float() - 128) / 128
            features = np.concatenate((network.img_head(image)[0].detach().double().numpy(), features))
        for n in range(4):
            cosines = np.array([math.cos(math.pi * i * tau[b, n].item()) for i in range(1, 14)])
            factors = leaky_relu(linear(network.iqn_fc[0], cosines))
            if multiplied == "features":
                of_features, of_advantage, of_value = factors, 1.0, 1.0
            else:
                of_features, of_advantage, of_value = 1.0, factors[:11], factors[11:]
            mixed = features * of_features
            advantage = linear(network.A_head[2], of_advantage * leaky_relu(linear(network.A_head[0], mixed)))
            value = linear(network.V_head[2], of_value * leaky_relu(linear(network.V_head[0], mixed)))
            expected = value + advantage - advantage.mean() - 0.05 * (140 - floats[0])
            np.testing.assert_allclose(returns[b, n].detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
def test_the_returns_of_one_action_are_those_of_all(agent_settings, make_network, make_batch, has_image, multiplied):
    settings = agent_settings(expected_reward_per_action=-0.05, quantile_factors_multiply=multiplied)
    network, batch = make_network(settings, has_image=has_image), make_batch(has_image=has_image)
    tau = torch.rand(5 if multiplied == "features" else 1, 4)
    state = (batch.state_img, batch.state_float)
    of_one = network.returns_of_action(*state, tau, batch.action)
    torch.testing.assert_close(of_one, of_action(network(*state, tau), batch.action))


def test_initial_weights_are_orthogonal_and_come_from_the_generator(agent_settings, make_network):
    network, same, other = (make_network(agent_settings(), seed=seed) for seed in (3, 3, 4))
    for a, b, c in zip(network.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not a.any() if a.ndim == 1 else not torch.equal(a, c)
    hidden_gain = 2 / (1 + 0.01**2)
    for layer, squared_gain in (
        (network.float_feature_extractor[2], hidden_gain),
        (network.iqn_fc[0], 2 * hidden_gain),
        (network.A_head[2], 1.0),
        (network.V_head[2], 1.0),
    ):
        weight = layer.weight.detach()
        gram = weight @ weight.T
        torch.testing.assert_close(gram, squared_gain * torch.eye(len(weight)), rtol=1e-4, atol=1e-5)


def test_taus_are_mirrored_pairs_spread_over_strata():
    tau = draw_symmetric_taus(1000, 8, torch.Generator().manual_seed(0))
    assert tau.shape == (1000, 8)
    torch.testing.assert_close(tau[:, 4:], 1 - tau[:, :4])
    for i in range(4):
        assert i / 8 <= tau[:, i].min() < i / 8 + 0.01
        assert (i + 1) / 8 - 0.01 < tau[:, i].max() <= (i + 1) / 8
    assert torch.equal(tau, draw_symmetric_taus(1000, 8, torch.Generator().manual_seed(0)))


def test_layer_normalization_keeps_features_of_one_size_in_strange_states(agent_settings, make_network):
    no_image = torch.empty(2, 1, 0, 0, dtype=torch.uint8)
    for use_layer_norm, largest_ratio in ((False, 1e9), (True, 3.0)):
        network = make_network(agent_settings(use_layer_norm=use_layer_norm))
        known = network.float_mean + network.float_std
        strange = network.float_mean + 1000 * network.float_std
        near, far = network.features(no_image, torch.stack((known, strange))).norm(dim=1).tolist()
        assert far / near < largest_ratio
        assert use_layer_norm or far / near > 100
