"""Image heads: the residual one against a plain form, any image size, several frames."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trackmania_rl.agents.image_heads import ResidualBlock, image_head
from trackmania_rl.agents.iqn import IQN_Network

IMPALA = {"image_head": "impala", "impala_channels": (3, 5), "impala_pooled_size": 2}


def make_network(settings, height, width, frames_per_state=1, seed=1):
    return IQN_Network(
        settings,
        float_mean=[0.0] * 7,
        float_std=[1.0] * 7,
        n_actions=3,
        image_height_px=height,
        image_width_px=width,
        mini_race_duration_actions=140,
        generator=torch.Generator().manual_seed(seed),
        frames_per_state=frames_per_state,
    )


def test_the_residual_head_is_the_papers(agent_settings):
    network = make_network(agent_settings(**IMPALA), 17, 23, frames_per_state=4)
    convolutions = iter([layer for layer in network.img_head.modules() if isinstance(layer, nn.Conv2d)])

    def convolved(x):
        layer = next(convolutions)
        return F.conv2d(x, layer.weight, layer.bias, padding=1)

    x = torch.randn(5, 4, 17, 23)
    features = network.img_head(x)
    for _ in range(2):
        x = F.max_pool2d(convolved(x), kernel_size=3, stride=2, padding=1)
        for _ in range(2):
            x = x + convolved(F.relu(convolved(F.relu(x))))
    assert next(convolutions, None) is None
    assert x.shape == (5, 5, 5, 6)  # 17 x 23, halved twice, rounded up
    x = F.relu(x)
    halves = [(slice(0, 3), slice(2, 5)), (slice(0, 3), slice(3, 6))]  # adaptive pooling lets odd windows overlap
    pooled = [x[:, :, rows, columns].amax(dim=(2, 3)) for rows in halves[0] for columns in halves[1]]
    torch.testing.assert_close(features, torch.stack(pooled, dim=2).flatten(1))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 9), (60, 80)])
def test_the_residual_head_takes_any_image(agent_settings, height, width):
    settings = agent_settings(**IMPALA)
    head, n_features = image_head(settings, 1, height, width)
    assert n_features == 5 * 2 * 2
    assert head(torch.zeros(2, 1, height, width)).shape == (2, n_features)


@pytest.mark.parametrize("kind", ["classic", "impala"])
def test_each_frame_of_a_state_counts(agent_settings, kind):
    settings = agent_settings(**IMPALA | {"image_head": kind})
    network = make_network(settings, 17, 23, frames_per_state=3)
    img = torch.randint(256, (2, 3, 17, 23), dtype=torch.uint8)
    features = network.features(img, torch.zeros(2, 7))
    for frame in range(3):
        changed = img.clone()
        changed[:, frame] = 255 - changed[:, frame]
        assert not torch.allclose(features, network.features(changed, torch.zeros(2, 7)))


def test_weights_come_from_the_generator_and_load(agent_settings):
    settings = agent_settings(**IMPALA)
    network, same, other = (make_network(settings, 17, 23, seed=seed) for seed in (1, 1, 2))
    for name, value in network.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    other.load_state_dict(network.state_dict())
    img = torch.randint(256, (2, 1, 17, 23), dtype=torch.uint8)
    assert torch.equal(network.features(img, torch.zeros(2, 7)), other.features(img, torch.zeros(2, 7)))
    assert {"img_head.2.first.weight", "img_head.7.second.bias"} <= network.state_dict().keys()


def test_a_residual_block_keeps_the_shape():
    assert ResidualBlock(3)(torch.zeros(2, 3, 5, 7)).shape == (2, 3, 5, 7)
