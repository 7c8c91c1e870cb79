"""Learned Fourier features (Yang et al. 2022, arXiv:2206.04672) in front of the default network's floats.

    python scripts/train.py --set run_name=fourier --set network=examples.fourier_network:FourierNetwork

Plain layers learn slow changes of a value first; learned sines of many frequencies distinguish near states from the
start. BANDWIDTH sets the scale.
"""

import math

import torch
from torch import Tensor, nn

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.networks import Sizes
from trackmania_rl.settings import AgentSettings

FEATURES = 256
BANDWIDTH = 2.0


class LearnedFourierFeatures(nn.Module):
    """sin(W x + b) of x (B, F), with F' rows of W from N(0, (pi BANDWIDTH / F)^2) and b from U(-pi, pi)."""

    def __init__(self, n_inputs: int, n_features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.empty(n_features, n_inputs))
        self.phases = nn.Parameter(torch.empty(n_features))
        nn.init.normal_(self.frequencies, std=math.pi * BANDWIDTH / n_inputs, generator=generator)
        nn.init.uniform_(self.phases, -math.pi, math.pi, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Compute features (B, F') of x (B, F)."""
        return torch.sin(nn.functional.linear(x, self.frequencies, self.phases))


class FourierNetwork(IQN_Network):
    """The default network with Fourier features before its float head."""

    def __init__(self, settings: AgentSettings, sizes: Sizes, generator: torch.Generator) -> None:
        super().__init__(settings, sizes, generator)
        first, *others = self.float_feature_extractor
        assert isinstance(first, nn.Linear)
        fourier = LearnedFourierFeatures(first.in_features, FEATURES, generator)
        reads_them = nn.Linear(FEATURES, first.out_features)
        self.float_feature_extractor = nn.Sequential(fourier, reads_them, *others)
        self.initialize(generator)
