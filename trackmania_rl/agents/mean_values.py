"""Values of states for playing: the mean over fixed taus, with all that only depends on weights computed once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trackmania_rl.agents.feature_part import FeaturePart
from trackmania_rl.agents.flat_parameters import as_one, flatten_parameters
from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.network_layers import LEAKY_RELU_SLOPE


class MeanValues:
    """What `IQN_Network.forward(...).mean(dim=1)` computes, faster where the same weights value many states.

    The taus are fixed, so what `iqn_fc` makes of them is a constant, as is the last layer with dueling folded into it;
    the heads' first layers are one matrix product. The last layers are linear, so the mean is taken before them.
    Products are computed transposed, which is faster for few rows. Where factors multiply the hidden layers, their mean
    goes into the last layer as well, and a state is one row, not K.

    Shapes as in `iqn`; K taus, U units of one head's hidden layer.

    Args:
        network: its parameters are flattened (`flatten_parameters`). When weights changed, call `prepare`.
        n_quantiles: K; they are the midpoints (i + 1/2) / K.
        dtype: precision of the large products; what is small stays in float32.
    """

    def __init__(self, network: IQN_Network, n_quantiles: int, dtype: torch.dtype = torch.float32) -> None:
        self._network = network
        self._dtype = dtype
        midpoints = (torch.arange(n_quantiles, device=network.float_mean.device) + 0.5) / n_quantiles
        self._cosines = network.cosines(midpoints)
        self._features = FeaturePart(network, dtype)
        flatten_parameters(network)
        of = network.get_parameter
        self._hidden = (
            as_one(of("A_head.0.weight"), of("V_head.0.weight")),  # (2U, D)
            as_one(of("A_head.0.bias"), of("V_head.0.bias")).unsqueeze(1),  # (2U, 1)
        )
        self.prepare()

    @torch.inference_mode()
    def prepare(self) -> None:
        """Take the weights as they are now."""
        of = self._network.get_parameter
        self._features.prepare()
        self._hidden_weight, self._hidden_bias = (tensor.to(self._dtype) for tensor in self._hidden)
        factors = self._network.iqn_fc(self._cosines)  # (K, D or 2U)
        weight, bias = of("A_head.2.weight"), of("A_head.2.bias")
        centered = weight - weight.mean(dim=0)
        self._last_weight = torch.cat((centered, of("V_head.2.weight").expand_as(centered)), dim=1)  # (A, 2U)
        self._last_bias = bias - bias.mean() + of("V_head.2.bias")  # (A,)
        if self._network.quantiles_multiply_hidden_layers:
            self._last_weight *= factors.mean(dim=0)
        else:
            self._factors = factors.to(self._dtype).t().contiguous().unsqueeze(1)  # (D, 1, K)

    @torch.inference_mode()
    def __call__(self, img: Tensor, floats: Tensor) -> Tensor:
        """The mean returns of all actions.

        Args:
            img: (B, S, H, W) uint8.
            floats: (B, F) float32.

        Returns:
            (B, A) float32.
        """
        features = self._features.forward(img, floats, recorded=False)
        rows = features.to(self._dtype).t()  # (D, B)
        if not self._network.quantiles_multiply_hidden_layers:
            rows = (rows.unsqueeze(2) * self._factors).flatten(1)  # (D, B K)
        hidden = F.leaky_relu_(torch.addmm(self._hidden_bias, self._hidden_weight, rows), LEAKY_RELU_SLOPE)
        mean_hidden = hidden.view(len(hidden), len(floats), -1).mean(dim=2, dtype=torch.float32)  # (2U, B)
        values = torch.addmm(self._last_bias, mean_hidden.t(), self._last_weight.t())
        return values + self._network.baseline(floats).unsqueeze(1)
