"""RAdam over one vector of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class FlatRAdam:
    """RAdam (Liu et al. 2020, arXiv:1908.03265), followed by a decay of the weights.

    The same steps as `torch.optim.RAdam` (tests compare them), in five passes over the vector instead of some fifteen
    calls; for networks of a hundred thousand weights the calls are what takes the time.

    Args:
        weights: (P,), changed in place by `finish_step`.
    """

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self._mean = torch.zeros_like(weights)
        self._mean_square = torch.zeros_like(weights)
        self._scratch = torch.empty_like(weights)
        self._steps = 0
        # The step's numbers lie on the device, where a compiled or recorded update reads them again each time.
        self._root_factor, self._root_offset, self._kept_share = (weights.new_zeros(()) for _ in range(3))

    def step(
        self,
        gradient: Tensor,
        learning_rate: float,
        *,
        betas: tuple[float, float],
        epsilon: float,
        decay: float,
    ) -> None:
        """One step against `gradient`.

        Args:
            gradient: (P,).
            learning_rate: of this step.
            betas: weights of the past in the running means of the gradient and of its square.
            epsilon: added to the root of the mean square.
            decay: the share of itself that every weight loses after the step.
        """
        self.begin_step(learning_rate, betas=betas, epsilon=epsilon, decay=decay)
        self.finish_step(gradient, betas=betas)

    def begin_step(self, learning_rate: float, *, betas: tuple[float, float], epsilon: float, decay: float) -> None:
        """Work out the numbers of the next step, without waiting for the device. Arguments as in `step`.

        The step is mean / (factor x root + offset): with the paper's step size and rectification, where the mean square
        may be trusted; a step along the mean alone, where not.
        """
        self._steps += 1
        beta1, beta2 = betas
        step_size = learning_rate / (1 - beta1**self._steps)
        rectification = self._rectification(beta2)
        factor, offset = 0.0, math.inf
        if step_size * rectification > 0:
            factor = 1 / (step_size * rectification)
            offset = epsilon * factor
        elif step_size > 0:
            offset = 1 / step_size
        self._root_factor.fill_(factor)
        self._root_offset.fill_(offset)
        self._kept_share.fill_(1 - decay)

    def finish_step(self, gradient: Tensor, *, betas: tuple[float, float]) -> None:
        """Make the step that was begun; nothing but operations on tensors."""
        beta1, beta2 = betas
        self._mean.lerp_(gradient, 1 - beta1)
        self._mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        divisor = torch.sqrt(self._mean_square, out=self._scratch).mul_(self._root_factor).add_(self._root_offset)
        self._weights.addcdiv_(self._mean, divisor, value=-1)
        self._weights.mul_(self._kept_share)

    def _rectification(self, beta2: float) -> float:
        """How far the mean square is to be trusted, with its bias correction; 0 for not at all: after few steps.

        The length of the running mean (rho in the paper) must exceed 5 for its variance to be finite.
        """
        largest_length = 2 / (1 - beta2) - 1
        bias_correction = 1 - beta2**self._steps
        length = largest_length - 2 * self._steps * beta2**self._steps / bias_correction
        if length <= 5:
            return 0.0
        variance_ratio = ((length - 4) * (length - 2) * largest_length) / (
            (largest_length - 4) * (largest_length - 2) * length
        )
        return math.sqrt(variance_ratio * bias_correction)

    def state_dict(self) -> dict[str, Any]:
        """The running means, and how many steps went in."""
        return {"mean": self._mean, "mean_square": self._mean_square, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; copies, so that the dictionary stays as it is.

        Raises:
            KeyError: if an entry is missing.
            RuntimeError: if the number of weights differs.
        """
        self._mean.copy_(state["mean"])
        self._mean_square.copy_(state["mean_square"])
        self._steps = state["steps"]
