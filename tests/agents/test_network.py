"""IQN_Network: its published shape, and its arithmetic against loops over states and quantiles."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from trackmania_rl.agents import networks
from trackmania_rl.agents.iqn import IQN_Network, draw_symmetric_taus
from trackmania_rl.agents.networks import Sizes, SpaceToDepthConv2d, image_features

from .conftest import draw_biases

PUBLISHED_WEIGHTS = {
    "img_head.0.weight": (16, 1, 4, 4),
    "img_head.2.weight": (32, 16, 4, 4),
    "img_head.4.weight": (64, 32, 3, 3),
    "img_head.6.weight": (32, 64, 3, 3),
    "float_feature_extractor.0.weight": (256, 184),
    "float_feature_extractor.2.weight": (256, 256),
    "A_head.0.weight": (512, 5888),
    "A_head.2.weight": (12, 512),
    "V_head.0.weight": (512, 5888),
    "V_head.2.weight": (1, 512),
    "iqn_fc.0.weight": (5888, 64),
}


def test_full_size_network_has_the_published_shape(full_size_settings):
    settings = full_size_settings
    game = settings.game
    sizes = Sizes(
        float_mean=[0.0] * 184,
        float_std=[1.0] * 184,
        n_actions=len(game.inputs),
        image_shape=(game.frames_per_state, game.image_height_px, game.image_width_px),
        mini_race_duration_actions=settings.replay.temporal_mini_race_duration_actions,
    )
    network = IQN_Network(settings.agent, sizes, torch.Generator().manual_seed(0))
    biases = {name.replace("weight", "bias"): shape[:1] for name, shape in PUBLISHED_WEIGHTS.items()}
    assert {name: tuple(v.shape) for name, v in network.state_dict().items()} == PUBLISHED_WEIGHTS | biases
    assert sum(parameter.numel() for parameter in network.parameters()) == 6_578_333


def leaky_relu(x):
    return np.where(x > 0, x, 0.01 * x)


def double(tensor):
    return tensor.detach().double().numpy()


def linear(layer, x):
    return double(layer.weight) @ x + double(layer.bias)


def convolution(layer, image):
    """An image (channels, H, W), as the textbook has it: one product for each output pixel."""
    weight, bias, (stride, _) = double(layer.weight), double(layer.bias), layer.stride
    size = weight.shape[2]
    height, width = ((side - size) // stride + 1 for side in image.shape[1:])
    output = np.empty((len(weight), height, width))
    for channel in range(len(weight)):
        for y in range(height):
            for x in range(width):
                seen = image[:, y * stride : y * stride + size, x * stride : x * stride + size]
                output[channel, y, x] = (weight[channel] * seen).sum() + bias[channel]
    return output


def naive_features(network, image, floats):
    """Return the network's input in one state: image (S, H, W), floats (F,)."""
    features = (floats - 0.1 * np.arange(7)) / (1.0 + np.arange(7))
    for layer in (network.float_feature_extractor[0], network.float_feature_extractor[2]):
        features = leaky_relu(linear(layer, features))
    if network.img_head is None:
        return features
    seen = (image.astype(np.float64) - 128) / 128
    for layer in (network.img_head[0], network.img_head[2]):
        seen = leaky_relu(convolution(layer, seen))
    return np.concatenate((seen.reshape(-1), features))


def naive_returns(network, features, elapsed, tau, *, multiplied, expected_reward_per_action):
    """The returns (A,) of one state at one tau."""
    cosines = np.array([math.cos(math.pi * i * tau) for i in range(1, 14)])
    factors = leaky_relu(linear(network.iqn_fc[0], cosines))
    if multiplied == "features":
        of_features, of_advantage, of_value = factors, 1.0, 1.0
    else:
        of_features, of_advantage, of_value = 1.0, factors[:11], factors[11:]
    mixed = features * of_features
    advantage = linear(network.A_head[2], of_advantage * leaky_relu(linear(network.A_head[0], mixed)))
    value = linear(network.V_head[2], of_value * leaky_relu(linear(network.V_head[0], mixed)))
    return value + advantage - advantage.mean() + expected_reward_per_action * (140 - elapsed)


@pytest.mark.parametrize("has_image", [False, True])
@pytest.mark.parametrize("multiplied", ["features", "hidden_layers"])
@pytest.mark.parametrize("tau_rows", [5, 1])
def test_returns_equal_loops(agent_settings, make_network, make_batch, has_image, multiplied, tau_rows):
    settings = agent_settings(expected_reward_per_action=-0.05, quantile_factors_multiply=multiplied)
    network = make_network(settings, has_image=has_image)
    draw_biases(network)
    batch = make_batch(has_image=has_image)
    tau = torch.rand(tau_rows, 4, generator=torch.Generator().manual_seed(0))
    returns = network(batch["state_img"], batch["state_float"], tau)
    assert returns.shape == (5, 4, 3)
    assert returns.dtype == torch.float32
    for b in range(5):
        floats = double(batch["state_float"][b])
        features = naive_features(network, batch["state_img"][b].numpy(), floats)
        for n in range(4):
            expected = naive_returns(
                network,
                features,
                floats[0],
                tau[b % tau_rows, n].item(),
                multiplied=multiplied,
                expected_reward_per_action=-0.05,
            )
            np.testing.assert_allclose(returns[b, n].detach().numpy(), expected, rtol=1e-4, atol=1e-4)


def test_microbatches_of_images_are_the_whole_batch(agent_settings, make_network, make_batch, monkeypatch):
    network, batch = make_network(agent_settings(), has_image=True), make_batch(has_image=True)

    def features_and_gradients():
        features = image_features(network.img_head, batch["state_img"])
        gradients = torch.autograd.grad(features.square().sum(), list(network.img_head.parameters()))
        return features, *gradients

    whole = features_and_gradients()
    monkeypatch.setattr(networks, "IMAGES_AT_ONCE", 2)
    for of_parts, of_whole in zip(features_and_gradients(), whole, strict=True):
        torch.testing.assert_close(of_parts, of_whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kernel_size", "stride"), [(4, 2), (4, 4), (6, 3), (5, 2), (3, 1)])
@pytest.mark.parametrize("size_px", [(17, 23), (16, 24), (18, 21)])
def test_a_convolution_of_pixels_as_channels_is_the_plain_one(kernel_size, stride, size_px):
    torch.manual_seed(0)
    ours, plain = SpaceToDepthConv2d(2, 3, kernel_size, stride), nn.Conv2d(2, 3, kernel_size, stride)
    ours.load_state_dict(plain.state_dict())
    images = torch.randn(5, 2, *size_px)
    of_both = []
    for layer in (ours, plain):
        output = layer(images)
        of_both.append((output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))))
    for of_ours, of_plain in zip(*of_both, strict=True):
        torch.testing.assert_close(of_ours, of_plain, rtol=1e-4, atol=1e-4)


def test_waves_of_floats_are_read_beside_the_floats(agent_settings, make_network, make_batch):
    network = make_network(agent_settings(), waves=[(2, 4.0)])
    batch = make_batch()
    assert network.float_feature_extractor[0].in_features == 7 + 2
    normalized = (batch["state_float"] - network.float_mean) / network.float_std
    angle = 2 * math.pi * batch["state_float"][:, 2:3] / 4.0
    expected = network.float_feature_extractor(torch.cat((normalized, angle.sin(), angle.cos()), dim=1))
    torch.testing.assert_close(network.features(batch["state_img"], batch["state_float"]), expected)


@pytest.mark.parametrize(("baseline", "last_gain"), [(0.0, 1.0), (-0.045, 0.05)])
def test_initial_weights_are_orthogonal_and_come_from_the_generator(agent_settings, make_network, baseline, last_gain):
    settings = agent_settings(expected_reward_per_action=baseline)
    network, same, other = (make_network(settings, seed=seed) for seed in (3, 3, 4))
    for a, b, c in zip(network.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not a.any() if a.ndim == 1 else not torch.equal(a, c)
    hidden_gain = 2 / (1 + 0.01**2)
    for layer, squared_gain in (
        (network.float_feature_extractor[2], hidden_gain),
        (network.iqn_fc[0], 2 * hidden_gain),
        (network.A_head[2], last_gain**2),
        (network.V_head[2], last_gain**2),
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
