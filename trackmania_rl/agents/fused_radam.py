"""Clipping and RAdam's step in two passes over the weights, for a processor.

Compiled, torch's own step computes its scalars again for every sixteen weights, which takes half of its time: a seventh
of a default update. Here they are computed once a step. The same step to rounding, on the same state (a test compares
the two), so that either can go on where the other stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trackmania_rl.agents.iqn import GradientStep


class FusedRAdamStep:
    """What `GradientStep.clip_and_step` does, for gradients that are not scaled.

    Args:
        step: gives clipping, settings, weights (P,), their gradient and the optimizer's state.
        compiled: compiles a function.
    """

    def __init__(self, step: GradientStep, compiled: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._step = step
        self._group, self._state = step.optimizer.param_groups[0], step.optimizer.state[step.weights]
        # Numbers in tensors, since new Python numbers would have the passes compiled again.
        self._root_factor, self._root_offset, self._kept_share = (torch.zeros(()) for _ in range(3))
        self._move = compiled(self._clip_and_move)

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """Make one step against the gradient; returns its norm (), from before that was clipped.

        The step is mean / (factor x root + offset): with the paper's step size and rectification, where the mean square
        may be trusted; a step along the mean alone, where not.
        """
        group = self._group
        self._state["step"] += 1
        learning_rate, n_steps, (beta1, beta2) = float(group["lr"]), int(self._state["step"]), group["betas"]
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
        norm: Tensor = self._move(beta1, beta2)
        return norm

    def _clip_and_move(self, beta1: float, beta2: float) -> Tensor:
        norm, gradient, state = self._step.clip_gradient(), self._step.weights.grad, self._state
        assert gradient is not None
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        mean_square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        divisor = mean_square.sqrt() * self._root_factor + self._root_offset
        self._step.weights.mul_(self._kept_share).addcdiv_(mean, divisor, value=-1)
        return norm


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
