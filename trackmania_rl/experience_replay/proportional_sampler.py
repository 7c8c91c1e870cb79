"""Sampler that draws transitions evenly, or in proportion to a power of their errors."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data.replay_buffers.samplers import RandomSampler

from trackmania_rl.experience_replay.transitions import TransitionStorage

IMPORTANCE_WEIGHT = "importance_weight"
"""Key of the weights in the info dictionary that `sample` returns; absent when all are 1."""


class ProportionalSampler(RandomSampler):
    """Proportional prioritized replay (Schaul et al. 2016, https://arxiv.org/abs/1511.05952), sections 3.3 and 3.4.

    Transition i is drawn with probability p_i / sum(p), p_i = (abs(error_i) + epsilon)^alpha. Its loss is multiplied by
    (1 / (N P(i)))^beta, divided by the largest of these weights in the batch. A new transition has the largest priority
    so far, at least 1.

    Drawing is one cumulative sum and one binary search over all priorities, on any device, which is short beside an
    update even for a million transitions. Attributes may be set at any time; a priority keeps its alpha until its
    transition is trained on again.

    Attributes:
        alpha: 0 draws evenly.
        beta: from 0, no correction of the bias of uneven drawing, to 1, full correction.
        epsilon: keeps transitions without error in play.
    """

    def __init__(self, alpha: float = 0.0, beta: float = 1.0, epsilon: float = 1e-3) -> None:
        super().__init__()
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon

    def sample(self, storage: TransitionStorage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw transitions.

        Returns:
            Their index, (batch_size,) int64, and when drawing by priority `IMPORTANCE_WEIGHT`: (batch_size,) float32.

        Raises:
            RuntimeError: if there is nothing to draw.
        """
        n_transitions = len(storage)
        if n_transitions == 0:
            raise RuntimeError("the replay buffer is empty: fill it with a race before sampling")
        if self.alpha == 0:
            place = torch.randint(n_transitions, (batch_size,), generator=self._rng, device=storage.device)
            return storage.index.take(place), {}
        # float64: in single precision a running sum over many transitions would lose the small priorities.
        cumulative = storage.priorities.cumsum(0, dtype=torch.float64)
        total = cumulative[-1]
        draw = torch.rand(batch_size, generator=self._rng, device=storage.device, dtype=torch.float64) * total
        place = torch.searchsorted(cumulative, draw, right=True).clamp_(max=n_transitions - 1)
        weight = (n_transitions * storage.priorities[place] / total).pow(-self.beta)
        return storage.index[place], {IMPORTANCE_WEIGHT: (weight / weight.max()).float()}

    def update_priority(
        self, index: Any, priority: torch.Tensor, *, storage: TransitionStorage | None = None
    ) -> dict[str, Any] | None:
        """Set priorities by errors.

        Args:
            index: (B,) int64. Overwritten transitions are ignored. The larger error of a transition drawn twice counts.
            priority: (B,) absolute errors.
            storage: required; the replay buffer passes it.

        Raises:
            TypeError: if called without a storage.
        """
        if storage is None:
            raise TypeError("update_priority of the sampler needs the storage; call the replay buffer's instead")
        if self.alpha == 0 or len(storage) == 0:
            return None
        index = torch.as_tensor(index, device=storage.device)
        errors = priority.detach().to(storage.device, torch.float32).abs()
        priorities = (errors.nan_to_num(0.0, posinf=0.0) + self.epsilon).pow(self.alpha)
        places = torch.searchsorted(storage.index, index).clamp_(max=len(storage) - 1)
        still_there = storage.index[places] == index
        storage.priorities.scatter_reduce_(0, places[still_there], priorities[still_there], "amax", include_self=False)
        torch.maximum(storage.new_priority, priorities.max(), out=storage.new_priority)
        return None
