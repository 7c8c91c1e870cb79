"""The layers of the network after its images: float layers and dueling heads."""

from __future__ import annotations

from torch import nn

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
    activation = nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True)
    return nn.Sequential(nn.Linear(input_dim, hidden_dim), activation, nn.Linear(hidden_dim, output_dim))
