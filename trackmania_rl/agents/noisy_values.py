"""Values with noise: how a network with noisy heads explores."""

from __future__ import annotations

import torch
from torch import Tensor

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.mean_values import MeanValues
from trackmania_rl.agents.network_layers import draw_noise
from trackmania_rl.agents.plain_twin import PlainTwin


class NoisyValues:
    """What `MeanValues` computes, with noise in the weights that is drawn again every so many calls.

    Within one draw the driver errs in one direction, which leads further than a new random choice at each action. All
    states of a batch share the noise: with a draw for each game, the batch would take as many passes.

    Args:
        network: with noisy heads. When its weights changed, call `weights_changed`.
        n_quantiles: as in `MeanValues`.
        dtype: precision of the large products.
        generator: source of the noise, on the network's device.
    """

    def __init__(self, network: IQN_Network, n_quantiles: int, dtype: torch.dtype, generator: torch.Generator) -> None:
        self._network = network
        self._generator = generator
        self._twin = PlainTwin(network)
        self._mean_values = MeanValues(self._twin.network, n_quantiles, dtype)
        self._calls_since_draw: int | None = None

    def weights_changed(self) -> None:
        """Take the network's weights and noise as they are now."""
        self._twin.refresh()
        self._mean_values.prepare()

    def __call__(self, img: Tensor, floats: Tensor, calls_per_draw: int) -> Tensor:
        """Mean returns of all actions (B, A), see `MeanValues`; new noise at the first of `calls_per_draw` calls."""
        if self._calls_since_draw is None or self._calls_since_draw >= calls_per_draw:
            self._calls_since_draw = 0
            draw_noise(self._network, self._generator)
            self.weights_changed()
        self._calls_since_draw += 1
        return self._mean_values(img, floats)
