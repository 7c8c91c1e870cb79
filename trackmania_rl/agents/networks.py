"""Networks that return quantiles, and their layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trackmania_rl.errors import UserError
from trackmania_rl.race.actions import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.settings import AgentSettings

LEAKY_RELU_SLOPE = 0.01
MOST_STANDARD_DEVIATIONS = 10.0
ACTIONS_AHEAD = 50.0
"""Actions that a baseline counts without mini-races: the sum of 0.98^k."""
IMAGES_AT_ONCE = 64
"""Images per convolution microbatch on a processor; so many fit into its caches."""


@dataclass(frozen=True)
class Sizes:
    """A network's inputs and outputs."""

    float_mean: Sequence[float]  # F, for the state's floats
    float_std: Sequence[float]  # F
    n_actions: int
    image_shape: tuple[int, int, int]  # (S, H, W); H and W are 0 without an image
    mini_race_duration_actions: int | None  # None for no mini-races
    waves: Sequence[tuple[int, float]] = ()  # (float index, wavelength in the float's unit) pairs for `FourierFeatures`


def initialize_layer(layer: nn.Conv2d | nn.Linear, gain: float, generator: torch.Generator | None = None) -> None:
    """Draw orthogonal weights, from torch's global generator by default, and set the bias to 0."""
    nn.init.orthogonal_(layer.weight, gain, generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class QuantileNetwork(nn.Module):
    """Base class of networks that return quantiles of returns; subclasses implement `forward`.

    The setting `network = "module:Class"` names a class, which is called with settings, sizes and a generator for
    the initial weights. Constants are buffers outside `state_dict()`.
    """

    float_mean: Tensor
    float_std: Tensor

    def __init__(self, settings: AgentSettings, sizes: Sizes) -> None:
        super().__init__()
        self.n_actions = sizes.n_actions
        self.expected_reward_per_action = settings.expected_reward_per_action
        self.mini_race_duration_actions = sizes.mini_race_duration_actions
        self.register_buffer("float_mean", torch.tensor(sizes.float_mean, dtype=torch.float32), persistent=False)
        self.register_buffer("float_std", torch.tensor(sizes.float_std, dtype=torch.float32), persistent=False)

    def forward(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Compute all actions' returns at the taus.

        Args:
            img: (B, S, H, W) uint8; ignored without an image head.
            floats: (B, F) float32, not normalized.
            tau: (B, N) float32 in [0, 1]; or (1, N), the same for all states.

        Returns:
            (B, N, A) float32, `baseline` included.
        """
        raise NotImplementedError

    def initialize(self, generator: torch.Generator) -> None:
        """Draw all weights: orthogonal, with the gain that compensates the activation.

        A layer with no more outputs than inputs keeps the variance; a wider one lowers it by inputs / outputs.
        """
        gain = nn.init.calculate_gain("leaky_relu", LEAKY_RELU_SLOPE)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                initialize_layer(layer, gain * self.gain_of(layer), generator)
            if isinstance(layer, nn.LayerNorm):
                layer.reset_parameters()

    @property
    def last_layers(self) -> Sequence[nn.Module]:
        """Layers whose outputs make the returns: resets renew most of their weights."""
        return ()

    def gain_of(self, layer: nn.Module) -> float:
        """Return the factor for a layer's initial weights."""
        return 1.0

    def normalized(self, floats: Tensor) -> Tensor:
        """Normalize floats (B, F)."""
        return (floats - self.float_mean) / self.float_std

    def baseline(self, floats: Tensor) -> Tensor:
        """Return the expected return (B,): reward per action x actions left in the mini-race, or `ACTIONS_AHEAD`.

        The network learns the difference from it.
        """
        if self.mini_race_duration_actions is None:
            return torch.full_like(floats[:, 0], self.expected_reward_per_action * ACTIONS_AHEAD)
        return self.expected_reward_per_action * (self.mini_race_duration_actions - floats[:, ELAPSED_ACTIONS_FLOAT])


class RunningNormalization(nn.Module):
    """Normalization of floats (B, F) by the mean and standard deviation over all states in training batches.

    It is fixed in collectors, in evaluation and in drivers.
    """

    mean: Tensor  # (F,)
    var: Tensor  # (F,)
    n_states: Tensor  # (1,)

    def __init__(self, n_floats: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_floats))
        self.register_buffer("var", torch.ones(n_floats))  # a target network moves from here
        self.register_buffer("n_states", torch.zeros(1))

    @property
    def std(self) -> Tensor:
        """Standard deviations (F,), 1 for constant floats."""
        return torch.where(self.var > 0, self.var.sqrt(), 1.0)

    def forward(self, floats: Tensor) -> Tensor:
        """Normalize to at most `MOST_STANDARD_DEVIATIONS`."""
        return ((floats - self.mean) / self.std).clamp(-MOST_STANDARD_DEVIATIONS, MOST_STANDARD_DEVIATIONS)

    @torch.no_grad()
    def observe(self, floats: Tensor) -> None:
        """Add a batch's states (Chan et al. 1979)."""
        var, mean = torch.var_mean(floats, dim=0, correction=0)
        total = self.n_states + len(floats)
        share = len(floats) / total
        difference = mean - self.mean
        self.var.lerp_(var, share).add_(difference.square() * share * (1 - share))
        self.mean.add_(difference * share)
        self.n_states.copy_(total)


def float_layer(input_dim: int, settings: AgentSettings) -> list[nn.Module]:
    """Make one layer for the float head.

    Layer normalization (Ba et al. 2016, arXiv:1607.06450) bounds features, and with them values, in states unlike the
    training data (Ball et al. 2023, arXiv:2302.02948).
    """
    normalization = [nn.LayerNorm(settings.float_hidden_dim)] if settings.use_layer_norm else []
    return [
        nn.Linear(input_dim, settings.float_hidden_dim),
        *normalization,
        nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True),
    ]


def head(input_dim: int, output_dim: int, settings: AgentSettings) -> nn.Sequential:
    """Make one of the two dueling heads: a hidden layer of half the dense width, and a linear layer."""
    hidden_dim = settings.dense_hidden_dimension // 2
    return nn.Sequential(
        nn.Linear(input_dim, hidden_dim),
        nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True),
        nn.Linear(hidden_dim, output_dim),
    )


def weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Return a linear layer's weight (out, in) and bias (out,); the bias is 0 without one."""
    weight = layer.get_parameter("weight")
    return weight, weight.new_zeros(len(weight)) if layer.bias is None else layer.get_parameter("bias")


class SpaceToDepthConv2d(nn.Conv2d):
    """A strided convolution over few channels, computed without stride over pixels rearranged into channels.

    Libraries convolve several channels faster than one: it saves a tenth of a full-size update.
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
    """Make Linesight's image head; a state's frames are the input channels.

    Returns:
        The head and the feature count.

    Raises:
        UserError: if the image is too small for the convolutions.
    """
    layers: list[nn.Module] = []
    channels, height, width = n_frames, height_px, width_px
    for out_channels, kernel_size, stride in zip(
        settings.conv_channels, settings.conv_kernel_sizes, settings.conv_strides, strict=True
    ):
        kind = nn.Conv2d if layers else SpaceToDepthConv2d
        layers += [kind(channels, out_channels, kernel_size, stride), nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True)]
        channels = out_channels
        height = (height - kernel_size) // stride + 1
        width = (width - kernel_size) // stride + 1
        if height < 1 or width < 1:
            raise UserError(
                f"an image of {width_px} x {height_px} pixels is too small for conv_kernel_sizes = "
                f"{settings.conv_kernel_sizes} with conv_strides = {settings.conv_strides}; enlarge image_width_px and "
                "image_height_px, or use fewer or smaller convolutions"
            )
    return nn.Sequential(*layers, nn.Flatten()), channels * height * width


def image_features(img_head: nn.Module, img: Tensor) -> Tensor:
    """Compute the features (B, ...) from the image (B, S, H, W) uint8 by an image head for values from -1 to 1."""
    # Convolutions are fastest in this memory format, by a fifth on processors.
    normalized = img.float().sub(128).div(128).to(memory_format=torch.channels_last)
    if img.device.type != "cpu" or torch.compiler.is_exporting():  # an exported number of images is free
        return img_head(normalized)  # type: ignore[no-any-return]
    return torch.cat([img_head(microbatch) for microbatch in normalized.split(IMAGES_AT_ONCE)])


class FourierFeatures(nn.Module):
    """Floats as sin(2 pi x / wavelength) and cos(2 pi x / wavelength) for some wavelengths.

    A network learns a function's sharp variations late (Rahaman et al. 2019, arXiv:1806.08734), and returns have
    sharp ones: 20 cm decide between a corner and a wall, and are a fortieth of the normalized unit. Wavelengths of some
    metres resolve them (Tancik et al. 2020, arXiv:2006.10739; Yang et al. 2022, arXiv:2206.04672).
    """

    float_indices: Tensor
    angular_frequencies: Tensor

    def __init__(self, waves: Sequence[tuple[int, float]]) -> None:
        super().__init__()
        self.n_features = 2 * len(waves)  # 2 W
        indices = torch.tensor([index for index, _ in waves], dtype=torch.int64)
        frequencies = torch.tensor([2 * math.pi / wavelength for _, wavelength in waves])
        self.register_buffer("float_indices", indices, persistent=False)
        self.register_buffer("angular_frequencies", frequencies, persistent=False)

    def forward(self, floats: Tensor) -> Tensor:
        """Turn floats (B, F), not normalized, into (B, 2 W): all sines, then all cosines."""
        angles = floats[:, self.float_indices] * self.angular_frequencies  # (B, W)
        return torch.cat((angles.sin(), angles.cos()), dim=1)
