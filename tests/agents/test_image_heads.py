"""The image head with several frames."""

import torch

from trackmania_rl.agents.iqn import IQN_Network, Sizes


def test_each_frame_of_a_state_counts(agent_settings):
    sizes = Sizes([0.0] * 7, [1.0] * 7, n_actions=3, image_shape=(3, 17, 23), mini_race_duration_actions=140)
    network = IQN_Network(agent_settings(), sizes, torch.Generator().manual_seed(1))
    img = torch.randint(256, (2, 3, 17, 23), dtype=torch.uint8)
    features = network.features(img, torch.zeros(2, 7))
    for frame in range(3):
        changed = img.clone()
        changed[:, frame] = 255 - changed[:, frame]
        assert not torch.allclose(features, network.features(changed, torch.zeros(2, 7)))
