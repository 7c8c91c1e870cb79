"""The residual image head of IMPALA (Espeholt et al. 2018, arXiv:1802.01561, figure 3, "large") in the default network.

    python scripts/train.py --set run_name=impala --set image_width_px=64 --set image_height_px=48 \
        --set network=examples.impala_network:ImpalaNetwork

Slower and stronger than plain convolutions. Maximum pooling of the image's features to a fixed size keeps the heads
small (Clark et al. 2024, "Beyond The Rainbow", arXiv:2411.03820).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.settings import AgentSettings

CHANNELS = (16, 32, 32)
"""Of the stages; each halves both sides of the image."""
BLOCKS = 2
"""Residual blocks per stage."""
POOLED_SIZE = 6
"""Side of the pooled features."""


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), for x (B, channels, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual to x (B, channels, H, W)."""
        return x + self.second(F.relu(self.first(F.relu(x))))


class ImpalaNetwork(IQN_Network):
    """The default network with a residual image head."""

    def make_image_head(self, settings: AgentSettings, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """Make the head for images (S, H, W)."""
        layers: list[nn.Module] = []
        in_channels = image_shape[0]
        for channels in CHANNELS:
            layers += [nn.Conv2d(in_channels, channels, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [ResidualBlock(channels) for _ in range(BLOCKS)]
            in_channels = channels
        pooled = nn.AdaptiveMaxPool2d((POOLED_SIZE, POOLED_SIZE))
        return nn.Sequential(*layers, nn.ReLU(), pooled, nn.Flatten()), CHANNELS[-1] * POOLED_SIZE**2
