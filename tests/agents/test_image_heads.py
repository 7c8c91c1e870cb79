"""The image head with several frames."""

import torch

from trackmania_rl.agents.iqn import IQN_Network


def test_each_frame_of_a_state_counts(agent_settings):
    network = IQN_Network(
        agent_settings(),
        float_mean=[0.0] * 7,
        float_std=[1.0] * 7,
        n_actions=3,
        image_height_px=17,
        image_width_px=23,
        mini_race_duration_actions=140,
        generator=torch.Generator().manual_seed(1),
        frames_per_state=3,
    )
    img = torch.randint(256, (2, 3, 17, 23), dtype=torch.uint8)
    features = network.features(img, torch.zeros(2, 7))
    for frame in range(3):
        changed = img.clone()
        changed[:, frame] = 255 - changed[:, frame]
        assert not torch.allclose(features, network.features(changed, torch.zeros(2, 7)))
