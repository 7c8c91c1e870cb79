"""A recurrent network over a view: a GRU (Cho et al. 2014, arXiv:1406.1078) reads the car's last velocities.

    python scripts/train.py --set run_name=gru --set network=examples.gru_network:GRUNetwork \
        --set "views={'past': {'column': 'velocity_m_s', 'shift': '-8:-1'}}"

The view's floats are the observation's last ones: ROWS rows of WIDTH floats, the oldest first. In place of the GRU,
attention over the rows would fit as well.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.networks import Sizes
from trackmania_rl.errors import UserError
from trackmania_rl.settings import AgentSettings

ROWS = 8
WIDTH = 3
HIDDEN = 32


class GRUNetwork(IQN_Network):
    """The default network with a GRU's last state in place of the view's floats."""

    def __init__(self, settings: AgentSettings, sizes: Sizes, generator: torch.Generator) -> None:
        super().__init__(settings, sizes, generator)
        first, *others = self.float_feature_extractor
        assert isinstance(first, nn.Linear)
        if len(sizes.float_mean) <= ROWS * WIDTH:
            raise UserError(f"network: GRUNetwork reads a view of {ROWS} rows of {WIDTH} floats, which is missing")
        self.gru = nn.GRU(WIDTH, HIDDEN, batch_first=True)
        reads_it = nn.Linear(first.in_features - ROWS * WIDTH + HIDDEN, first.out_features)
        self.float_feature_extractor = nn.Sequential(reads_it, *others)
        self.initialize(generator)
        for name, weight in self.gru.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(weight, generator=generator)
            else:
                nn.init.zeros_(weight)

    @override
    def features(self, img: Tensor, floats: Tensor) -> Tensor:
        normalized = self.normalized(floats)  # (B, F)
        rows = normalized[:, -ROWS * WIDTH :].unflatten(1, (ROWS, WIDTH))  # (B, ROWS, WIDTH)
        _, last = self.gru(rows)  # (1, B, HIDDEN)
        own = normalized[:, : -ROWS * WIDTH]
        features: Tensor = self.float_feature_extractor(
            torch.cat((own, last.squeeze(0), self.fourier_features(floats)), dim=1)
        )
        return features
