"""The learner's weights in memory that all processes see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from multiprocessing.context import BaseContext

import torch
from torch import nn

from trackmania_rl.agents.flat_parameters import flatten_parameters

LOCK_TIMEOUT_S = 10.0
"""A copy takes milliseconds: whoever holds the lock for longer was killed half-way."""


class SharedWeights:
    """A network's weights as one vector in shared memory, with a lock and a version number.

    One process publishes, any number pull. Hand the object to a process as an argument when it is spawned; copying
    weights in or out is then one copy of one vector, under the lock.

    Args:
        uncompiled_shared_network: its parameters are moved into the shared memory and are version 1.
        context: of the processes that will share it, e.g. `multiprocessing.get_context("spawn")`.
    """

    def __init__(self, uncompiled_shared_network: nn.Module, context: BaseContext) -> None:
        self._vector = flatten_parameters(uncompiled_shared_network).share_memory_()
        self._lock = context.Lock()
        self._version = context.Value("q", 1, lock=False)

    def publish(self, network: nn.Module) -> int:
        """Make the weights of `network` those that others pull, and return their version.

        Only one process may publish. If a reader was killed while it held the lock, its lock is taken over.
        """
        # A copy from a GPU waits for all that it has still to compute: better before the lock is taken than under it.
        weights = flatten_parameters(network).to(self._vector.device)
        with self._locked(take_over=True):
            self._vector.copy_(weights)
            self._version.value += 1
            return self._version.value

    def pull_if_newer(self, network: nn.Module, known_version: int) -> int:
        """Copy the shared weights into `network` if they are newer than those it has.

        Args:
            network: of the same sizes as the shared one, on any device.
            known_version: the version that `network` has; 0 for none.

        Returns:
            The version that `network` has now.
        """
        if self._version.value == known_version:
            return known_version
        weights = flatten_parameters(network)
        with self._locked(take_over=False) as is_mine:
            if not is_mine:  # another reader was killed; the publisher will free the lock
                return known_version
            weights.copy_(self._vector)
            return self._version.value

    @contextlib.contextmanager
    def _locked(self, *, take_over: bool) -> Iterator[bool]:
        is_mine = self._lock.acquire(timeout=LOCK_TIMEOUT_S) or take_over
        try:
            with torch.no_grad():
                yield is_mine
        finally:
            if is_mine:
                self._lock.release()
