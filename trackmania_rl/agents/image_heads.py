"""What reads the image: the published convolutions, or residual blocks. Frames of a state are the input's channels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from trackmania_rl.agents.network_layers import LEAKY_RELU_SLOPE
from trackmania_rl.settings import AgentSettings

IMPALA_BLOCKS = 2
"""Residual blocks after each pooling."""


def image_head(
    settings: AgentSettings, frames_per_state: int, height_px: int, width_px: int
) -> tuple[nn.Sequential, int]:
    """The head that the settings ask for, and the number of features that it makes of an image.

    Raises:
        ValueError: if the image is too small for the convolutions.
    """
    if settings.image_head == "impala":
        side = settings.impala_pooled_size
        n_features = settings.impala_channels[-1] * side * side
        return impala(settings, frames_per_state), n_features
    return convolutions(settings, frames_per_state), _convolved_size(settings, height_px, width_px)


def convolutions(settings: AgentSettings, frames_per_state: int) -> nn.Sequential:
    """Plain convolutions, as published with Linesight."""
    layers: list[nn.Module] = []
    in_channels = frames_per_state
    for channels, kernel_size, stride in zip(
        settings.conv_channels, settings.conv_kernel_sizes, settings.conv_strides, strict=True
    ):
        layers += [nn.Conv2d(in_channels, channels, kernel_size, stride), nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True)]
        in_channels = channels
    return nn.Sequential(*layers, nn.Flatten())


def impala(settings: AgentSettings, frames_per_state: int) -> nn.Sequential:
    """The residual head of IMPALA (Espeholt et al. 2018, arXiv:1802.01561, figure 3, "large").

    Each stage is a convolution, a pooling that halves both sides, and two residual blocks. What is left of the image is
    pooled to one fixed size by maximum, whatever its size was: so the heads after it stay small (as in Clark et al.
    2024, "Beyond The Rainbow", arXiv:2411.03820).
    """
    layers: list[nn.Module] = []
    in_channels = frames_per_state
    for channels in settings.impala_channels:
        layers += [nn.Conv2d(in_channels, channels, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [ResidualBlock(channels) for _ in range(IMPALA_BLOCKS)]
        in_channels = channels
    side = settings.impala_pooled_size
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveMaxPool2d((side, side)), nn.Flatten())


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), for x (B, channels, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The sum; (B, channels, H, W)."""
        return x + self.second(F.relu(self.first(F.relu(x))))


def _convolved_size(settings: AgentSettings, height_px: int, width_px: int) -> int:
    """Number of features that the convolutions make of an image."""
    height, width = height_px, width_px
    for kernel_size, stride in zip(settings.conv_kernel_sizes, settings.conv_strides, strict=True):
        height = (height - kernel_size) // stride + 1
        width = (width - kernel_size) // stride + 1
        if height < 1 or width < 1:
            raise ValueError(
                f"an image of {width_px} x {height_px} pixels is too small for conv_kernel_sizes = "
                f"{settings.conv_kernel_sizes} with conv_strides = {settings.conv_strides}; enlarge image_width_px and "
                "image_height_px, or use fewer or smaller convolutions"
            )
    return settings.conv_channels[-1] * height * width
