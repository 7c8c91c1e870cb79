"""The layers of the network after its images: float layers, dueling heads, and heads with other weights.

A head's layer may compute with other weights than those that are learned, its *effective* weights: with noise added
(`NoisyLinear`), or of limited norm (`SpectralLinear`). Both are functions of the parameters alone, so a network with
such layers can be written as a plain one (`plain_twin`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trackmania_rl.settings import AgentSettings

LEAKY_RELU_SLOPE = 0.01


def float_layer(input_dim: int, settings: AgentSettings) -> list[nn.Module]:
    """One layer of the float head.

    Normalized (Ba et al. 2016, arXiv:1607.06450), features keep their size in states unlike any that were learned from,
    so that values there stay sane (Ball et al. 2023, arXiv:2302.02948).
    """
    normalization = [nn.LayerNorm(settings.float_hidden_dim)] if settings.use_layer_norm else []
    activation = nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True)
    return [nn.Linear(input_dim, settings.float_hidden_dim), *normalization, activation]


def head_width(settings: AgentSettings) -> int:
    """Width of one head's hidden layer: half the dense width."""
    return settings.dense_hidden_dimension // 2


def head(input_dim: int, output_dim: int, settings: AgentSettings) -> nn.Sequential:
    """One of the two dueling heads: a hidden layer, and a linear one."""
    hidden_dim = head_width(settings)
    first, last = nn.Linear(input_dim, hidden_dim), nn.Linear(hidden_dim, output_dim)
    if settings.noisy_heads_sigma > 0:
        first, last = (NoisyLinear(layer, settings.noisy_heads_sigma) for layer in (first, last))
    if settings.use_spectral_norm_on_heads:
        first = SpectralLinear(first)
    return nn.Sequential(first, nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True), last)


class NoisyLinear(nn.Linear):
    """A linear layer whose weights carry learned noise (Fortunato et al. 2018, arXiv:1706.10295), factorised.

    The effective weight is weight + weight_sigma * f(eps_out) f(eps_in)^T and the effective bias is
    bias + bias_sigma * f(eps_out) (equations 9 to 11), with f(x) = sign(x) sqrt|x| and standard normal eps: one number
    for each input and each output. The noise stays until the next `draw_noise`, so a driver that explores by it is
    consistent for a while. A new layer has none.

    The paper begins with sigma = sigma_0 / sqrt(inputs) beside weights of that size; here both are multiplied by the
    gain with which the layer's weights are drawn, so that the noise is the same share of them.

    Args:
        like: a linear layer of this one's sizes.
        initial_sigma: sigma_0, the share of noise in a fresh layer.
    """

    def __init__(self, like: nn.Linear, initial_sigma: float) -> None:
        super().__init__(like.in_features, like.out_features)
        self.initial_sigma = initial_sigma
        self.weight_sigma = nn.Parameter(torch.empty_like(self.weight))
        self.bias_sigma = nn.Parameter(torch.empty_like(self.bias))
        self.noise_in: Tensor
        self.noise_out: Tensor
        self.register_buffer("noise_in", torch.zeros(like.in_features), persistent=False)
        self.register_buffer("noise_out", torch.zeros(like.out_features), persistent=False)

    def initialize_noise(self, gain: float) -> None:
        """Set the size of the noise for weights that were drawn with this gain."""
        sigma = self.initial_sigma * gain / self.in_features**0.5
        nn.init.constant_(self.weight_sigma, sigma)
        nn.init.constant_(self.bias_sigma, sigma)

    def draw_noise(self, generator: torch.Generator) -> None:
        """Replace the noise; the generator is on the layer's device."""
        for noise in (self.noise_in, self.noise_out):
            normal = torch.randn(noise.shape, generator=generator, device=noise.device)
            noise.copy_(normal.sign() * normal.abs().sqrt())

    def effective(self) -> tuple[Tensor, Tensor]:
        """Weight and bias with noise."""
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return weight, self.bias + self.bias_sigma * self.noise_out

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (R, inputs) to (R, outputs)."""
        return F.linear(rows, *self.effective())


class SpectralLinear(nn.Linear):
    """A linear layer whose weight is divided by its largest singular value (Miyato et al. 2018, arXiv:1802.05957).

    On the last hidden layer of a value network it steadies the size of the optimizer's steps (Gogianu et al. 2021,
    arXiv:2105.05246, who recommend that layer and leave the last one free, so that returns may have any size).

    The largest singular value is sigma = u^T W v with its left and right singular vectors. The left one is estimated by
    power iteration, one round at each update, since weights move little; the right one is W^T u, made a unit vector.
    The gradient takes both as constants, as in the paper.

    The estimate is a parameter without gradient: so it travels wherever weights do (collectors, averages, checkpoints).

    Args:
        like: a linear layer of this one's sizes.
    """

    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like.in_features, like.out_features)
        self.left_singular_vector = nn.Parameter(torch.empty(like.out_features), requires_grad=False)

    def initialize_singular_vector(self, generator: torch.Generator) -> None:
        """Guess; freshly drawn orthogonal weights have singular values all alike, and one round finds them."""
        nn.init.normal_(self.left_singular_vector, generator=generator)
        self.iterate()

    @torch.no_grad()
    def iterate(self) -> None:
        """One round of power iteration: u becomes the unit vector of W W^T u."""
        right = self.weight.t() @ self.left_singular_vector
        self.left_singular_vector.copy_(F.normalize(self.weight @ right, dim=0))

    def effective(self) -> tuple[Tensor, Tensor]:
        """Weight of largest singular value 1, and bias."""
        with torch.no_grad():
            left = F.normalize(self.left_singular_vector, dim=0)
            right = F.normalize(self.weight.t() @ left, dim=0)
        return self.weight / torch.dot(left, self.weight @ right), self.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (R, inputs) to (R, outputs)."""
        return F.linear(rows, *self.effective())


def has_noise(network: nn.Module) -> bool:
    """Whether any layer is noisy."""
    return any(isinstance(layer, NoisyLinear) for layer in network.modules())


def draw_noise(network: nn.Module, generator: torch.Generator) -> None:
    """Replace the noise of all noisy layers; draws nothing where there are none."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.draw_noise(generator)


def silence_noise(network: nn.Module) -> None:
    """Let noisy layers compute without noise until it is drawn again."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.noise_in.zero_()
            layer.noise_out.zero_()


def follow_singular_vectors(network: nn.Module) -> None:
    """One round of power iteration in all layers of limited norm; call it once for each update."""
    for layer in network.modules():
        if isinstance(layer, SpectralLinear):
            layer.iterate()
