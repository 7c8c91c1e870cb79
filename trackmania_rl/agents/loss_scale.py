"""What lets gradients pass through float16, whose smallest number is too large for many of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FIRST_FACTOR = 2.0**16
UPDATES_BETWEEN_GROWTHS = 2000


class LossScale:
    """The factor of the loss, as large as gradients allow: halved when one overflows, doubled after a time without.

    `torch.amp.GradScaler` lets the processor ask after each batch whether the gradient is finite, and wait for the
    answer, and skips the step where it is not. Here all stays on the device: such a gradient becomes zero, and the step
    is made all the same, along the running mean of the gradients before.

    Args:
        device: of the gradients.
        enabled: False for a factor that is 1 and stays so.
    """

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self._enabled = enabled
        self.factor = torch.full((), FIRST_FACTOR if enabled else 1.0, device=device)
        self._updates_since_growth = torch.zeros((), device=device)

    def unscale_(self, gradient: Tensor) -> None:
        """Divide the gradient (P,) of a scaled loss by the factor, and adapt the factor to what was found in it."""
        if not self._enabled:
            return
        gradient.div_(self.factor)
        overflowed = ~torch.isfinite(gradient.sum())
        gradient.masked_fill_(overflowed, 0.0)
        self._updates_since_growth.add_(1).masked_fill_(overflowed, 0.0)
        grows = self._updates_since_growth >= UPDATES_BETWEEN_GROWTHS
        self._updates_since_growth.masked_fill_(grows, 0.0)
        self.factor.mul_(torch.where(overflowed, 0.5, torch.where(grows, 2.0, 1.0)))

    def state_dict(self) -> dict[str, Any]:
        """The factor, and how long it has stood; a factor of 1 says that the run is not in float16."""
        return {"factor": self.factor, "updates_since_growth": self._updates_since_growth}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; without effect where the factor is fixed, here or there.

        Raises:
            KeyError: if an entry is missing.
        """
        factor, updates_since_growth = state["factor"], state["updates_since_growth"]
        if self._enabled and factor != 1.0:
            self.factor.copy_(factor)
            self._updates_since_growth.copy_(updates_since_growth)
