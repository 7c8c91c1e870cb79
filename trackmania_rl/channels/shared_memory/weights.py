"""The learner's weights in memory that all processes see, without a lock that a killed process could hold."""

from __future__ import annotations

import time
from multiprocessing.context import BaseContext

import torch
from torch import nn

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.channels.protocols import ChannelError
from trackmania_rl.channels.shared_memory.slots import SHARED_MEMORY_FOLDER
from trackmania_rl.errors import one_line

MOST_LOOKS = 50
LOOK_AGAIN_AFTER_S = 0.002
"""A copy takes milliseconds: who has met the writer in so many looks goes on with the weights that it has."""


class SharedWeights:
    """A network's weights as one vector in shared memory, between two counters (a sequence lock).

    One process publishes, any number pull. Hand the object to a process as an argument when it is spawned. The writer
    counts a publication as begun, copies the vector, and counts it as whole; it waits for nobody. A reader copies what
    is whole into memory of its own and looks whether another publication has begun meanwhile: then its copy may be
    torn, and it looks again. So a reader that is killed or stopped in the midst of a copy holds up nobody, and one that
    meets a writer that was stopped keeps the weights that it has.

    Args:
        uncompiled_shared_network: its parameters are moved into the shared memory and are version 1.
        context: of the processes that will share it, e.g. `multiprocessing.get_context("spawn")`.

    Raises:
        ChannelError: if the machine does not have the memory.
    """

    def __init__(self, uncompiled_shared_network: nn.Module, context: BaseContext) -> None:
        weights = flatten_parameters(uncompiled_shared_network)
        try:
            self._vector = weights.share_memory_()
        except RuntimeError as error:  # as torch reports what the system says
            needed_mb = weights.numel() * weights.element_size() / 2**20
            raise ChannelError(
                f"{SHARED_MEMORY_FOLDER} has no room for the network's weights ({needed_mb:.1f} MB): "
                f"{one_line(error)}; free some, or give the machine more (docker run --shm-size=1g)"
            ) from error
        self._begun = context.Value("q", 1, lock=False)
        self._whole = context.Value("q", 1, lock=False)

    def publish(self, network: nn.Module) -> int:
        """Make the weights of `network` those that others pull, and return their version; one process publishes."""
        # A copy from a GPU waits for all that it has still to compute: better before the vector is written.
        weights = flatten_parameters(network).to(self._vector.device)
        version = self._whole.value + 1
        self._begun.value = version
        with torch.no_grad():
            self._vector.copy_(weights)
        self._whole.value = version
        return version

    def pull_if_newer(self, network: nn.Module, known_version: int) -> int:
        """Copy the shared weights into `network` if they are newer than those it has.

        Args:
            network: of the same sizes as the shared one, on any device.
            known_version: the version that `network` has; 0 for none.

        Returns:
            The version that `network` has now.
        """
        if self._whole.value == known_version:
            return known_version
        for _ in range(MOST_LOOKS):
            version = self._whole.value
            copied = self._vector.clone()
            if self._begun.value == version:  # so nobody has written since that version was whole
                with torch.no_grad():
                    flatten_parameters(network).copy_(copied)
                return version
            time.sleep(LOOK_AGAIN_AFTER_S)
        return known_version
