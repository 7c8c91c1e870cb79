"""IQN with floats normalized by their running mean and standard deviation, for an environment without bounds.

    python scripts/train.py --config config_files/config_cartpole.py --set run_name=normalized \
        --set network=examples.running_normalization:NormalizedNetwork

The statistics are part of the weights: collectors, evaluation and drivers have them.
"""

import torch
from torch import Tensor

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.networks import RunningNormalization, Sizes
from trackmania_rl.settings import AgentSettings


class NormalizedNetwork(IQN_Network):
    """Network whose statistics move with each batch that it learns from."""

    def __init__(self, settings: AgentSettings, sizes: Sizes, generator: torch.Generator) -> None:
        """Begin without statistics."""
        super().__init__(settings, sizes, generator)
        self.normalization = RunningNormalization(len(sizes.float_mean))

    def normalized(self, floats: Tensor) -> Tensor:
        """Normalize floats (B, F)."""
        if self.training and torch.is_grad_enabled():
            self.normalization.observe(floats)
        return self.normalization(floats)
