"""All parameters of a network as one vector (P,), of which they are views; clipping and optimizer of the vector.

An operation on the vector replaces some twenty small ones, one per parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

NORM_EPSILON = 1e-6
"""As in torch's `clip_grad_norm_`."""


def flatten_parameters(module: nn.Module) -> Tensor:
    """Return a vector (P,) without gradient that shares the memory of all parameters, in their order.

    The first call moves the parameters; later calls return the same vector. `module.to(...)` undoes it.

    Args:
        module: its parameters must be of one dtype and on one device.
    """
    parameters = list(module.parameters())
    if not _is_flat(parameters):
        vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        for parameter, view in zip(parameters, views_of(vector, parameters), strict=True):
            parameter.data = view
    first = parameters[0].detach()
    return first.as_strided((sum(parameter.numel() for parameter in parameters),), (1,), first.storage_offset())


def views_of(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Split a vector (P,) in the order of the parameters into views of their shapes."""
    pieces = vector.split([parameter.numel() for parameter in parameters])
    return [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)]


def _is_flat(tensors: Sequence[nn.Parameter]) -> bool:
    storage = tensors[0].untyped_storage().data_ptr()
    expected_address = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.untyped_storage().data_ptr() != storage or tensor.data_ptr() != expected_address:
            return False
        if not tensor.is_contiguous():
            return False
        expected_address += tensor.numel() * tensor.element_size()
    return True


def clip_gradient(gradient: Tensor, most_value: float, most_norm: float) -> Tensor:
    """Clip every entry of (P,) to `most_value`, then the norm to `most_norm`; return the norm () before its clip.

    The same as torch's `clip_grad_value_` and `clip_grad_norm_`. (Linesight clips the norm first.) A gradient with a
    NaN becomes 0. With a NaN or an infinity the returned norm is not finite.
    """
    total = gradient.sum()  # NaN or infinite if an entry is
    norm = torch.linalg.vector_norm(gradient.clamp_(-most_value, most_value))
    gradient.mul_((most_norm / (norm + NORM_EPSILON)).clamp_max(1))
    gradient.masked_fill_(torch.isnan(norm), 0.0)
    return torch.where(torch.isfinite(total), norm, total)


class RAdam(torch.optim.AdamW):
    """RAdam (Liu et al. 2020, arXiv:1908.03265) with decoupled weight decay, for one vector of weights.

    RAdam is Adam with a step size that depends on the number of steps. So this is torch's fused Adam, which takes a
    third of the time of `torch.optim.RAdam` and makes the same steps.

    `learning_rate`, `epsilon` and `decay` apply to the next steps. A step shrinks the weights (P,) by the share
    `learning_rate * decay`.
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__([weights], fused=True)
        self.state[weights] = {
            "step": torch.zeros((), device=weights.device),
            "exp_avg": torch.zeros_like(weights),
            "exp_avg_sq": torch.zeros_like(weights),
        }
        self.learning_rate, self.epsilon, self.decay = 0.0, 1e-8, 0.0
        self.n_steps = 0  # with those left out by `GradScaler`, which only the GPU knows

    @override
    def __getstate__(self) -> dict[str, Any]:
        return vars(self)  # torch's leaves out what a subclass adds

    @override
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.n_steps += 1
        beta2 = self.defaults["betas"][1]
        factor = rectification(self.n_steps, beta2)
        epsilon = self.epsilon / math.sqrt(1 - beta2**self.n_steps)
        if factor == 0:  # moves along the mean: the root of the mean square is nothing beside this epsilon
            factor = epsilon = 1e12
        rectified = {"lr": self.learning_rate * factor, "eps": epsilon, "weight_decay": self.decay / factor}
        self.param_groups[0].update(rectified)
        super().step()


def rectification(n_steps: int, beta2: float) -> float:
    """Return RAdam's factor on the step size of Adam; 0 in the first steps, where the mean square is not reliable.

    The length of the running mean (rho in the paper) must exceed 5 for its variance to be finite.
    """
    largest_length = 2 / (1 - beta2) - 1
    length = largest_length - 2 * n_steps * beta2**n_steps / (1 - beta2**n_steps)
    if length <= 5:
        return 0.0
    variance_ratio = (length - 4) * (length - 2) * largest_length
    return math.sqrt(variance_ratio / ((largest_length - 4) * (largest_length - 2) * length))
