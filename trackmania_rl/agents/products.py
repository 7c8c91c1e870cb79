"""Matrix products of an update, by the library that is fastest on a processor.

torch's own products on a processor are MKL's, which uses the widest instructions (AVX-512) on Intel's processors alone.
oneDNN, which torch brings as well, uses what the processor has: on an AMD EPYC with AVX-512, the products of a default
update take little more than half of the time that MKL takes. On an older one, without AVX-512, MKL is the faster one.

Shapes: R rows, I inputs of a layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trackmania_rl.agents.network_layers import LEAKY_RELU_SLOPE


def is_wide_amd(capabilities: Mapping[str, Any]) -> bool:
    """Whether these, of `torch.cpu.get_capabilities()`, are an AMD processor's with AVX-512."""
    return "AMD" in str(capabilities.get("cpu_name")) and bool(capabilities.get("avx512_f"))


_IS_ONEDNN_THERE = torch.backends.mkldnn.is_available()
_IS_ONEDNN_FASTER = _IS_ONEDNN_THERE and is_wide_amd(torch.cpu.get_capabilities())
_HAS_ONEDNN_BFLOAT16 = _IS_ONEDNN_THERE and torch.ops.mkldnn._is_mkldnn_bf16_supported()
_library = torch.library.Library("trackmania_rl", "DEF")
# An operator of our own, because torch.compile takes oneDNN's for one whose weight never changes, and refuses it.
_library.define("onednn_linear(Tensor inputs, Tensor weight, Tensor? bias, str activation) -> Tensor")


def _onednn_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    scalars = [LEAKY_RELU_SLOPE] if activation == "leaky_relu" else []
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, activation, scalars, "")  # type: ignore[no-any-return]


@torch.library.register_fake("trackmania_rl::onednn_linear", lib=_library)
def _(inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return inputs.new_empty((*inputs.shape[:-1], len(weight)))


_library.impl("onednn_linear", _onednn_linear, "CPU")


def has_onednn(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN computes on this device in this precision."""
    supported = _HAS_ONEDNN_BFLOAT16 if dtype == torch.bfloat16 else dtype == torch.float32
    return device.type == "cpu" and _IS_ONEDNN_THERE and supported


def uses_onednn(inputs: Tensor) -> bool:
    """Whether products of these are oneDNN's."""
    return has_onednn(inputs.device, inputs.dtype) and (_IS_ONEDNN_FASTER or inputs.dtype == torch.bfloat16)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer without gradient: inputs (R, I), weight (O, I) and bias (O,) to (R, O)."""
    if uses_onednn(inputs):
        return torch.ops.trackmania_rl.onednn_linear(inputs, weight, bias, "none")  # type: ignore[no-any-return]
    return F.linear(inputs, weight, bias)


def linear_leaky_relu(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`linear` and its activation."""
    if uses_onednn(inputs):
        return torch.ops.trackmania_rl.onednn_linear(inputs, weight, bias, "leaky_relu")  # type: ignore[no-any-return]
    return F.leaky_relu_(F.linear(inputs, weight, bias), LEAKY_RELU_SLOPE)


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product of (R, I) and (I, O), without gradient; of sizes that are worth oneDNN's ten microseconds a call."""
    if uses_onednn(left):
        return torch.ops.trackmania_rl.onednn_linear(left, right.t(), None, "none")  # type: ignore[no-any-return]
    return torch.mm(left, right)
