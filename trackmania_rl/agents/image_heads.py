"""What reads the image: convolutions, as published with Linesight. Frames of a state are the input's channels."""

from __future__ import annotations

from torch import nn

from trackmania_rl.agents.network_layers import LEAKY_RELU_SLOPE
from trackmania_rl.settings import AgentSettings


def convolutions(
    settings: AgentSettings, frames_per_state: int, height_px: int, width_px: int
) -> tuple[nn.Sequential, int]:
    """The image head, and the number of features that it makes of an image.

    Raises:
        ValueError: if the image is too small for the convolutions.
    """
    layers: list[nn.Module] = []
    in_channels = frames_per_state
    for channels, kernel_size, stride in zip(
        settings.conv_channels, settings.conv_kernel_sizes, settings.conv_strides, strict=True
    ):
        layers += [nn.Conv2d(in_channels, channels, kernel_size, stride), nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True)]
        in_channels = channels
    return nn.Sequential(*layers, nn.Flatten()), _convolved_size(settings, height_px, width_px)


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
