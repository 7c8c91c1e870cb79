"""An exponential average of a network's weights, to drive with."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

from torch import Tensor, nn

from trackmania_rl.agents.flat_parameters import flatten_parameters

AVERAGE_SPANS_ONE_IN = 10
"""Early in a run averaged weights span about the last tenth of all publications."""

Network = TypeVar("Network", bound=nn.Module)


class AveragedWeights(Generic[Network]):
    """The average of what a network's weights were.

    Args:
        network: on its device; it is copied.

    Attributes:
        network: the copy that holds the average.
        n_averaged: how many weights went in.
    """

    def __init__(self, network: Network) -> None:
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.n_averaged = 0
        self._weights = flatten_parameters(self.network)

    def take(self, weights: Tensor, decay: float) -> None:
        """Take weights (P,) into the average.

        It spans about the last tenth of all that went in, until that is 1 / (1 - `decay`) of them: early on, while
        weights improve fast, it follows closely. (That beginning is polynomial-decay averaging, Shamir & Zhang 2013,
        arXiv:1212.1824.)
        """
        self.n_averaged += 1
        share_early_on = AVERAGE_SPANS_ONE_IN / (AVERAGE_SPANS_ONE_IN + self.n_averaged)
        self._weights.lerp_(weights.detach(), max(1 - decay, share_early_on))
