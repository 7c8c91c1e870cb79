"""Opens both channels of a run in shared memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing import resource_tracker

from torch import nn

from trackmania_rl.channels.protocols import ROLLOUT_SLOTS_PER_COLLECTOR, ChannelError, Channels, WeightsKind
from trackmania_rl.channels.shared_memory import slots
from trackmania_rl.channels.shared_memory.rollouts import SharedRolloutSource
from trackmania_rl.channels.shared_memory.run_state import SharedRunState
from trackmania_rl.channels.shared_memory.slots import RolloutBounds
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import Settings


def open_channels(
    settings: Settings, spaces: Spaces, uncompiled_shared_networks: Mapping[WeightsKind, nn.Module]
) -> Channels:
    """Open the channels of a run whose processes are spawned on this machine.

    Args:
        settings: in force at the beginning; they bound how large a race can be.
        spaces: of the games.
        uncompiled_shared_networks: their parameters are moved into shared memory; what they hold is pulled until
            something is published.

    Raises:
        ChannelError: if the machine has no shared memory, or not enough of it.
    """
    if sys.platform == "linux" and not os.access(slots.SHARED_MEMORY_FOLDER, os.W_OK):
        raise ChannelError(
            f"{slots.SHARED_MEMORY_FOLDER} cannot be written to, and processes share their memory there: mount it "
            "writable (mount -t tmpfs tmpfs /dev/shm; docker run --shm-size=1g)"
        )
    _start_resource_tracker()
    context = multiprocessing.get_context("spawn")
    run_state = SharedRunState(settings, uncompiled_shared_networks, context)
    rollouts = SharedRolloutSource(
        RolloutBounds.of_game(settings.game, spaces),
        ROLLOUT_SLOTS_PER_COLLECTOR,
        games_per_collector=settings.game.rollouts_at_a_time,
        stop=run_state.stop_flag,
    )
    return Channels(rollouts, run_state)


def _start_resource_tracker() -> None:
    """Start Python's own cleaner of shared memory where the end of the terminal does not end it.

    By itself it ignores Ctrl-C and SIGTERM only, and without it nobody knows any more what is to be cleaned up.
    """
    if not hasattr(signal, "SIGHUP"):
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which is inherited
    try:
        resource_tracker.ensure_running()
    finally:
        signal.signal(signal.SIGHUP, before)
