"""RAdam's step in one pass over the weights, for a processor.

Compiled, torch's own step computes its scalars again for every sixteen weights, which takes half of its time: a seventh
of a default update. Here they are computed once a step. The same step to rounding, on the same state (a test compares
the two), so that either can go on where the other stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


class FusedRAdamStep:
    """The step of a `torch.optim.RAdam` with decoupled weight decay and one parameter.

    Args:
        optimizer: gives settings, weights (P,), their gradient and state, and none of its options that are off.
        compiled: compiles a function.
    """

    def __init__(
        self, optimizer: torch.optim.RAdam, compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        self._optimizer = optimizer
        (self._weights,) = optimizer.param_groups[0]["params"]
        # Numbers in tensors, since new Python numbers would have the pass compiled again.
        self._root_factor, self._root_offset, self._kept_share = (torch.zeros(()) for _ in range(3))
        self._one_pass = compiled(self._move)

    @torch.no_grad()
    def __call__(self) -> None:
        """Make one step against the gradient.

        The step is mean / (factor x root + offset): with the paper's step size and rectification, where the mean square
        may be trusted; a step along the mean alone, where not.
        """
        group, state = self._optimizer.param_groups[0], self._optimizer.state[self._weights]
        state["step"] += 1
        learning_rate, n_steps, (beta1, beta2) = float(group["lr"]), int(state["step"]), group["betas"]
        step_size = learning_rate / (1 - beta1**n_steps)
        rectified_size = step_size * rectification(n_steps, beta2)
        factor, offset = 0.0, math.inf  # no step at all
        if rectified_size > 0:
            factor, offset = 1 / rectified_size, group["eps"] / rectified_size
        elif step_size > 0:
            offset = 1 / step_size
        self._root_factor.fill_(factor)
        self._root_offset.fill_(offset)
        self._kept_share.fill_(1 - learning_rate * group["weight_decay"])
        self._one_pass(beta1, beta2)

    def _move(self, beta1: float, beta2: float) -> None:
        weights, gradient, state = self._weights, self._weights.grad, self._optimizer.state[self._weights]
        assert gradient is not None
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        mean_square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        divisor = mean_square.sqrt() * self._root_factor + self._root_offset
        weights.mul_(self._kept_share).addcdiv_(mean, divisor, value=-1)


def rectification(n_steps: int, beta2: float) -> float:
    """Say how far the mean square is to be trusted, with its bias correction; 0 for not at all: after few steps.

    The length of the running mean (rho in the paper) must exceed 5 for its variance to be finite.
    """
    largest_length = 2 / (1 - beta2) - 1
    bias_correction = 1 - beta2**n_steps
    length = largest_length - 2 * n_steps * beta2**n_steps / bias_correction
    if length <= 5:
        return 0.0
    variance_ratio = ((length - 4) * (length - 2) * largest_length) / (
        (largest_length - 4) * (largest_length - 2) * length
    )
    return math.sqrt(variance_ratio * bias_correction)
