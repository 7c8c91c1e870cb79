"""Values of states for playing: the mean over fixed taus."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from trackmania_rl.agents.iqn import IQN_Network, QuantileNetwork, midpoints
from trackmania_rl.agents.networks import LEAKY_RELU_SLOPE


class MeanValues(Protocol):
    """The mean returns of all actions over K fixed taus, the midpoints (i + 1/2) / K."""

    def prepare(self) -> None:
        """Take the network's weights as they are now."""

    def __call__(self, img: Tensor, floats: Tensor) -> Tensor:
        """Value states: img (B, S, H, W) uint8 and floats (B, F) float32 to (B, A) float32."""


def mean_values(network: QuantileNetwork, n_quantiles: int, dtype: torch.dtype = torch.float32) -> MeanValues:
    """Make the mean values of a network: the faster form where it computes as `IQN_Network` does, else the plain one.

    Args:
        network: on the device where it shall compute.
        n_quantiles: K.
        dtype: precision of the large products; what is small stays in float32.
    """
    if isinstance(network, IQN_Network) and type(network).forward is IQN_Network.forward:
        return PreparedMeanValues(network, n_quantiles, dtype)
    return PlainMeanValues(network, n_quantiles, dtype)


class PlainMeanValues:
    """`network(...).mean(dim=1)`. Arguments as of `mean_values`."""

    def __init__(self, network: QuantileNetwork, n_quantiles: int, dtype: torch.dtype = torch.float32) -> None:
        self._network = network
        self._dtype = dtype
        self._tau = midpoints(n_quantiles, network.float_mean.device)

    def prepare(self) -> None:
        """Nothing is kept that depends on the weights."""

    @torch.inference_mode()
    def __call__(self, img: Tensor, floats: Tensor) -> Tensor:
        """See `MeanValues`."""
        with _autocast(floats.device, self._dtype):
            return self._network(img, floats, self._tau).mean(dim=1)  # type: ignore[no-any-return]


class PreparedMeanValues:
    """The same of an `IQN_Network`, with all that only depends on weights computed once: several times as fast.

    The taus are fixed, so what `iqn_fc` makes of them is a constant, as is the last layer with dueling folded into it;
    the heads' first layers are one matrix product. The last layers are linear, so the mean is taken before them.
    Products are computed transposed, which is faster for few rows. Where factors multiply the hidden layers, their mean
    goes into the last layer as well, and a state is one row, not K.

    Shapes as in `iqn`; K taus, U units of one head's hidden layer. Arguments as of `mean_values`.
    """

    def __init__(self, network: IQN_Network, n_quantiles: int, dtype: torch.dtype = torch.float32) -> None:
        self._network = network
        self._dtype = dtype
        self._tau = midpoints(n_quantiles, network.float_mean.device)
        self.prepare()

    @torch.inference_mode()
    def prepare(self) -> None:
        """See `MeanValues`."""
        network, of = self._network, self._network.get_parameter
        hidden_weight = torch.cat((of("A_head.0.weight"), of("V_head.0.weight")))
        hidden_bias = torch.cat((of("A_head.0.bias"), of("V_head.0.bias")))
        self._hidden_weight = hidden_weight.to(self._dtype)  # (2U, D)
        self._hidden_bias = hidden_bias.to(self._dtype).unsqueeze(1)  # (2U, 1)
        self._last_weight, self._last_bias = network.last_layer()  # (A, 2U), (A,)
        factors = network.factors(self._tau).squeeze(0)  # (K, D or 2U)
        if network.quantiles_multiply_hidden_layers:
            self._last_weight = self._last_weight * factors.mean(dim=0)
        else:
            self._factors = factors.to(self._dtype).t().contiguous().unsqueeze(1)  # (D, 1, K)

    @torch.inference_mode()
    def __call__(self, img: Tensor, floats: Tensor) -> Tensor:
        """See `MeanValues`."""
        with _autocast(floats.device, self._dtype):
            features = self._network.features(img, floats)
        rows = features.to(self._dtype).t()  # (D, B)
        if not self._network.quantiles_multiply_hidden_layers:
            rows = (rows.unsqueeze(2) * self._factors).flatten(1)  # (D, B K)
        hidden = F.leaky_relu_(torch.addmm(self._hidden_bias, self._hidden_weight, rows), LEAKY_RELU_SLOPE)
        mean_hidden = hidden.view(len(hidden), len(floats), -1).mean(dim=2, dtype=torch.float32)  # (2U, B)
        values = torch.addmm(self._last_bias, mean_hidden.t(), self._last_weight.t())
        return values + self._network.baseline(floats).unsqueeze(1)


def _autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)
