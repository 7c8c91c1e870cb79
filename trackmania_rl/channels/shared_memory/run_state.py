"""`RunState` in shared memory: nothing in it has a lock that a killed process could hold."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from multiprocessing.context import BaseContext
from typing import Any

from torch import nn

from trackmania_rl.channels.protocols import ChannelError, WeightsKind
from trackmania_rl.channels.shared_memory.settings_board import SettingsBoard
from trackmania_rl.channels.shared_memory.stop_flag import StopFlag
from trackmania_rl.channels.shared_memory.weights import SharedWeights
from trackmania_rl.settings import Settings

log = logging.getLogger(__name__)


class SharedRunState:
    """The learner's end; see `RunStatePublisher`.

    Args:
        settings: those in force.
        uncompiled_shared_networks: by kind; their parameters are moved into shared memory.
        context: of the processes that will share it.
    """

    def __init__(
        self, settings: Settings, uncompiled_shared_networks: Mapping[WeightsKind, nn.Module], context: BaseContext
    ) -> None:
        self.stop_flag = StopFlag(context)
        self._settings = settings
        self._board = SettingsBoard(settings, context)
        self._weights = {kind: SharedWeights(n, context) for kind, n in uncompiled_shared_networks.items()}
        self._frames_total = context.Value("q", 0, lock=False)  # one writer; a lock could die with a killed reader

    def publish(
        self,
        *,
        weights: Mapping[WeightsKind, nn.Module] | None = None,
        settings: Settings | None = None,
        frames_total: int | None = None,
        stop: bool = False,
    ) -> None:
        """Publish what is given; see `RunStatePublisher`."""
        for kind, network in (weights or {}).items():
            self._weights[kind].publish(network)
        if frames_total is not None:
            self._frames_total.value = frames_total
        if stop:
            self.stop_flag.set()
        if settings is not None and settings is not self._settings:
            self._settings = settings
            try:
                self._board.write(settings)
            except ChannelError as error:  # an edit never ends a run
                log.error("%s", error)

    def view(self) -> SharedRunStateView:
        """Make what a collector is handed when it is spawned."""
        return SharedRunStateView(self._settings, self._board, self._weights, self._frames_total, self.stop_flag)


class SharedRunStateView:
    """A collector's end; see `RunStateView`. `SharedRunState.view` makes it."""

    def __init__(
        self,
        settings: Settings,
        board: SettingsBoard,
        weights: Mapping[WeightsKind, SharedWeights],
        frames_total: Any,  # multiprocessing.Value of a 64-bit integer
        stop_flag: StopFlag,
    ) -> None:
        self._board = board
        self._weights = weights
        self._frames_total = frames_total
        self._stop_flag = stop_flag
        self._seen = 0, settings  # together, for any thread
        self.pull()

    @property
    def settings(self) -> Settings:
        """Those in force; see `RunStateView`."""
        return self._seen[1]

    @property
    def frames_total(self) -> int:
        """The whole run's; see `RunStateView`."""
        return int(self._frames_total.value)

    @property
    def stop_requested(self) -> bool:
        """Whether the run is to end; see `RunStateView`."""
        return self._stop_flag.is_set()

    def pull(self) -> bool:
        """Take over settings that were published since the last look; see `RunStateView`."""
        if self._board.version == self._seen[0] or (read := self._board.read()) is None:
            return False
        self._seen = read
        return True

    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        """Copy newer weights; see `RunStateView`."""
        return self._weights[kind].pull_if_newer(network, known_version)
