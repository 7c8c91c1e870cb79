"""The layers that read the floats, with their derivative written out.

`IQN_Network.float_features` computes the same (tests compare it, and autograd through it). Written out, the large
products are those of `products`, and autograd records nothing.

Shapes: B batch, F floats, I inputs of the first layer, D width of the layers.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.network_layers import LEAKY_RELU_SLOPE
from trackmania_rl.agents.products import linear, product

Value = TypeVar("Value")


class _Layer(NamedTuple):
    module: nn.Linear
    weight: Tensor  # (D, inputs), in the precision of large products
    bias: Tensor  # (D,)
    normalization: nn.LayerNorm | None


class _Recorded(NamedTuple):
    """What a layer's derivative needs."""

    inputs: Tensor  # (B, inputs)
    sums: Tensor  # (B, D) before normalization and activation
    moments: list[Tensor] | None  # mean and 1 / deviation of the sums, (B, 1) each, where they are normalized
    outputs: Tensor  # (B, D)


class FloatPart:
    """Features from floats; and gradients, from those of the features.

    Args:
        network: its gradients must exist (`flatten_gradients`) for `backward`. When weights changed, call `prepare`.
        dtype: precision of the products.

    Attributes:
        width: D.
    """

    def __init__(self, network: IQN_Network, dtype: torch.dtype) -> None:
        self._network = network
        self._dtype = dtype
        modules = list(network.float_feature_extractor)
        self._modules = [
            (module, following if isinstance(following, nn.LayerNorm) else None)
            for module, following in itertools.pairwise(modules)
            if isinstance(module, nn.Linear)
        ]
        self.width = self._modules[-1][0].out_features
        self._recorded: list[_Recorded] = []
        self.prepare()

    def prepare(self) -> None:
        """Bring the weights, as they are now, into the precision of the products."""
        self._layers = [
            _Layer(module, module.weight.detach().to(self._dtype), module.bias.detach().to(self._dtype), normalization)
            for module, normalization in self._modules
        ]

    @torch.no_grad()
    def forward(self, floats: Tensor, *, recorded: bool) -> Tensor:
        """Features (B, D) of floats (B, F); `recorded` says whether `backward` follows."""
        outputs = self._network.float_inputs(floats)  # (B, I)
        records = []
        for layer in self._layers:
            inputs = outputs.to(self._dtype)
            normalized = sums = linear(inputs, layer.weight, layer.bias)
            moments: list[Tensor] | None = None
            if layer.normalization is not None:
                sums = sums.float()
                normalized, *moments = torch.native_layer_norm(sums, *_arguments(layer.normalization))
            outputs = F.leaky_relu(normalized, LEAKY_RELU_SLOPE)
            records.append(_Recorded(inputs, sums, moments, outputs))
        if recorded:
            self._recorded = records
        return outputs

    @torch.no_grad()
    def backward(self, grad_features: Tensor) -> None:
        """Add to the gradients of these layers' parameters those of the last recorded `forward`.

        Args:
            grad_features: (B, D), of the loss with respect to the features.
        """
        grad = grad_features
        recorded, self._recorded = self._recorded, []
        for number, (layer, record) in reversed(list(enumerate(zip(self._layers, recorded, strict=True)))):
            grad = torch.ops.aten.leaky_relu_backward(
                grad.to(record.outputs.dtype), record.outputs, LEAKY_RELU_SLOPE, True
            )
            if layer.normalization is not None:
                grad = _backward_normalization(grad, record, layer.normalization)
            grad = grad.to(self._dtype)
            present(layer.module.weight.grad).add_(product(grad.t(), record.inputs))
            present(layer.module.bias.grad).add_(grad.sum(dim=0))
            if number > 0:  # nobody asks for the gradient of the floats
                grad = product(grad, layer.weight)


def _arguments(normalization: nn.LayerNorm) -> tuple[list[int], Tensor, Tensor, float]:
    return list(normalization.normalized_shape), normalization.weight, normalization.bias, normalization.eps


def _backward_normalization(grad: Tensor, record: _Recorded, normalization: nn.LayerNorm) -> Tensor:
    """Add the gradients of scale and offset; return that of the sums (B, D)."""
    shape, weight, bias, _ = _arguments(normalization)
    grad, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
        grad, record.sums, shape, *present(record.moments), weight, bias, [True, True, True]
    )
    present(normalization.weight.grad).add_(of_weight)
    present(normalization.bias.grad).add_(of_bias)
    return grad


def present(value: Value | None) -> Value:
    """A value that is there by construction, such as a gradient once gradients are flat."""
    assert value is not None
    return value
