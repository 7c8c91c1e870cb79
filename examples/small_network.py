"""A network of your own: 128 hidden units over the floats.

    python scripts/train.py --set run_name=small --set network=examples.small_network:SmallNetwork

Like every network here, it computes returns (B, N, A) of A actions in B states at N quantiles tau.
"""

import math

import torch
from torch import Tensor, nn

from trackmania_rl.agents.networks import QuantileNetwork, Sizes
from trackmania_rl.settings import AgentSettings

HIDDEN, COSINES = 128, 32


class SmallNetwork(QuantileNetwork):
    """One hidden layer, multiplied by an embedding of the quantile; images are ignored."""

    def __init__(self, settings: AgentSettings, sizes: Sizes, generator: torch.Generator) -> None:
        """Draw the initial weights with the generator."""
        super().__init__(settings, sizes)
        self.of_state = nn.Sequential(nn.Linear(len(sizes.float_mean), HIDDEN), nn.LeakyReLU())
        self.of_quantile = nn.Sequential(nn.Linear(COSINES, HIDDEN), nn.LeakyReLU())
        self.returns = nn.Linear(HIDDEN, sizes.n_actions)
        self.initialize(generator)

    def forward(self, img: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Compute returns (B, N, A) of floats (B, F) at quantiles (B, N), or (1, N) for all states."""
        cosines = torch.cos(math.pi * tau.unsqueeze(2) * torch.arange(1, COSINES + 1, device=tau.device))
        hidden = self.of_state(self.normalized(floats)).unsqueeze(1) * self.of_quantile(cosines)
        return self.returns(hidden).float() + self.baseline(floats)[:, None, None]
