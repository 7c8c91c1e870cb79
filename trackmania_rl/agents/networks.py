"""The layers that the networks are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trackmania_rl.settings import AgentSettings

LEAKY_RELU_SLOPE = 0.01


def float_layer(input_dim: int, settings: AgentSettings) -> list[nn.Module]:
    """Make one layer of the float head.

    Normalized (Ba et al. 2016, arXiv:1607.06450), features keep their size in states unlike any that were learned from,
    so that values there stay sane (Ball et al. 2023, arXiv:2302.02948).
    """
    normalization = [nn.LayerNorm(settings.float_hidden_dim)] if settings.use_layer_norm else []
    return [
        nn.Linear(input_dim, settings.float_hidden_dim),
        *normalization,
        nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True),
    ]


def head(input_dim: int, output_dim: int, settings: AgentSettings) -> nn.Sequential:
    """Make one of the two dueling heads: a hidden layer of half the dense width, and a linear one."""
    hidden_dim = settings.dense_hidden_dimension // 2
    return nn.Sequential(
        nn.Linear(input_dim, hidden_dim),
        nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True),
        nn.Linear(hidden_dim, output_dim),
    )


class SpaceToDepthConv2d(nn.Conv2d):
    """A convolution of few channels with a stride: the same as one without, over pixels that became channels.

    Libraries have their fast paths for several channels: a gray image's own one is copied from one order in memory to
    another, which costs a tenth of a full-size update.
    """

    def forward(self, img: Tensor) -> Tensor:
        """Convolve (B, channels in, H, W) to (B, channels out, ...)."""
        (stride, _), (kernel_size, _), (height, width) = self.stride, self.kernel_size, img.shape[2:]
        if kernel_size % stride != 0:
            return super().forward(img)
        img = img[:, :, : height // stride * stride, : width // stride * stride]
        by_depth = F.pixel_unshuffle(img, stride).contiguous(memory_format=torch.channels_last)
        return F.conv2d(by_depth, F.pixel_unshuffle(self.weight, stride), self.bias)


def convolutions(settings: AgentSettings, n_frames: int, height_px: int, width_px: int) -> tuple[nn.Sequential, int]:
    """Make the image head published with Linesight; the frames of a state are its input's channels.

    Returns:
        The head, and how many features it makes of an image.

    Raises:
        ValueError: if the image is too small for the convolutions.
    """
    layers: list[nn.Module] = []
    channels, height, width = n_frames, height_px, width_px
    for out_channels, kernel_size, stride in zip(
        settings.conv_channels, settings.conv_kernel_sizes, settings.conv_strides, strict=True
    ):
        kind = nn.Conv2d if layers else SpaceToDepthConv2d
        layers += [kind(channels, out_channels, kernel_size, stride), nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True)]
        channels, height, width = (
            out_channels,
            (height - kernel_size) // stride + 1,
            (width - kernel_size) // stride + 1,
        )
        if height < 1 or width < 1:
            raise ValueError(
                f"an image of {width_px} x {height_px} pixels is too small for conv_kernel_sizes = "
                f"{settings.conv_kernel_sizes} with conv_strides = {settings.conv_strides}; enlarge image_width_px and "
                "image_height_px, or use fewer or smaller convolutions"
            )
    return nn.Sequential(*layers, nn.Flatten()), channels * height * width


class FourierFeatures(nn.Module):
    """Floats as sines and cosines of some wavelengths: sin(2 pi x / wavelength) and cos(2 pi x / wavelength).

    A network learns the slow variations of a function long before its sharp ones (Rahaman et al. 2019,
    arXiv:1806.08734). The return of a race has sharp ones: a corner taken 20 cm further inside ends at a wall, and
    20 cm are a fortieth of the standard deviation by which that distance is normalized. Wavelengths of some metres show
    them (Tancik et al. 2020, arXiv:2006.10739; for values of actions Yang et al. 2022, arXiv:2206.04672). Those papers
    draw the frequencies at random over all inputs. Here each float has its own ones, in its own unit.

    Args:
        waves: W pairs of a float's index and a wavelength; a float may have several, or none.

    Attributes:
        n_features: 2 W.
    """

    float_indices: Tensor
    angular_frequencies: Tensor

    def __init__(self, waves: Sequence[tuple[int, float]]) -> None:
        super().__init__()
        self.n_features = 2 * len(waves)
        indices = torch.tensor([index for index, _ in waves], dtype=torch.int64)
        frequencies = torch.tensor([2 * math.pi / wavelength for _, wavelength in waves])
        self.register_buffer("float_indices", indices, persistent=False)
        self.register_buffer("angular_frequencies", frequencies, persistent=False)

    def forward(self, floats: Tensor) -> Tensor:
        """Turn floats (B, F), as observed, into (B, 2 W): all sines, then all cosines."""
        angles = floats[:, self.float_indices] * self.angular_frequencies  # (B, W)
        return torch.cat((angles.sin(), angles.cos()), dim=1)
