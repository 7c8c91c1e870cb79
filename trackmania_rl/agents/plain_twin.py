"""A network with noisy or spectral heads, written as one with plain linear layers.

What makes updates and play fast (`quantile_part`, `mean_values`) knows plain linear layers only. The effective weights
of other layers are functions of their parameters, the same for all states of a batch: so they are computed once, the
plain twin does the work, and the gradient of its weights is led back through those functions.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from trackmania_rl.agents.flat_parameters import flatten_gradients, flatten_parameters
from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.network_layers import NoisyLinear, SpectralLinear


class PlainTwin:
    """The twin of a network. Of a network that is plain already, it is that network, and all here costs nothing.

    Args:
        source: the network whose parameters are learned. When they or its noise changed, call `refresh`. If it has
            gradients (`flatten_gradients`), so does the twin.
        with_noise: False for a twin that leaves the noise out.

    Attributes:
        network: computes what `source` computes, as of the last `refresh`.
    """

    def __init__(self, source: IQN_Network, *, with_noise: bool = True) -> None:
        self._source = source
        self._with_noise = with_noise
        self.is_source = not any(isinstance(layer, NoisyLinear | SpectralLinear) for layer in source.modules())
        self.network = source if self.is_source else _with_plain_heads(source)
        self._effective: list[Tensor] = []
        if not self.is_source:
            flatten_parameters(self.network)
            if all(parameter.grad is not None for parameter in source.parameters()):
                flatten_gradients(self.network)
        self.refresh()

    def refresh(self) -> None:
        """Compute the effective weights again; the twin's gradients begin at zero."""
        if self.is_source:
            return
        self._effective = self._effective_weights()
        with torch.no_grad():
            for weight, effective in zip(self.network.parameters(), self._effective, strict=True):
                weight.copy_(effective)
                if weight.grad is not None:
                    weight.grad.zero_()

    def return_gradient(self) -> None:
        """Add to the gradients of the source's parameters what the gradients of the twin's weights make of them."""
        if not self.is_source:
            gradients = [parameter.grad for parameter in self.network.parameters()]
            torch.autograd.backward(self._effective, gradients)  # type: ignore[arg-type]  # all were given one

    def _effective_weights(self) -> list[Tensor]:
        """Of the source, in the order of the twin's parameters."""
        by_name: dict[str, Tensor] = dict(self._source.named_parameters())
        for name, layer in self._source.named_modules():
            if isinstance(layer, SpectralLinear) or (isinstance(layer, NoisyLinear) and self._with_noise):
                by_name[f"{name}.weight"], by_name[f"{name}.bias"] = layer.effective()
        return [by_name[name] for name, _ in self.network.named_parameters()]


def _with_plain_heads(source: IQN_Network) -> IQN_Network:
    twin = copy.deepcopy(source)
    for head in (twin.A_head, twin.V_head):
        for index, layer in enumerate(head):
            if isinstance(layer, NoisyLinear | SpectralLinear):
                head[index] = nn.Linear(layer.in_features, layer.out_features, device=layer.weight.device)
    return twin
