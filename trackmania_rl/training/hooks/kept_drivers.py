"""The driver on the way: a policy's history."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import nn

from trackmania_rl.agents.finite_numbers import in_few_words, not_finite_tensors
from trackmania_rl.errors import UserError
from trackmania_rl.runs.driver_file import ENDING, DriverFile, DriverTrack, write_driver
from trackmania_rl.training.context import RunContext
from trackmania_rl.training.driver_loading import tracks_of
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


def driver_now(name: str, run: RunContext, network: nn.Module, tracks: Sequence[DriverTrack]) -> DriverFile:
    """Make a driver of one of a run's networks as it is now.

    Args:
        name: of the driver.
        run: the run.
        network: one of its agent's.
        tracks: that it drives.

    Raises:
        UserError: if a setting cannot be written, or a weight is not finite.
    """
    statistics, weights = run.statistics, network.state_dict()
    if names := not_finite_tensors(weights):
        raise UserError(f"the driver {name} is not kept: its weights {in_few_words(names)} are not finite numbers")
    return DriverFile.of_network(
        name,
        run.settings,
        run.spaces,
        weights,
        tracks,
        frames_total=statistics.frames_total,
        training_s=statistics.training_s,
    )


class KeepDrivers(Hook):
    """Keeps the network that evaluates in drivers/, as a driver's file.

    One is kept whenever another full `keep_driver_every_s` of training is over, or `keep_driver_every_n_batches` more
    updates; of all only the newest `keep_drivers_at_most` stay.

    Args:
        checkpoints: tells whether the weights are sound.
    """

    def __init__(self, checkpoints: SaveCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._seen_s = 0.0  # training time when it was looked at last
        self._seen_updates = 0

    def begin(self) -> None:
        """Count from where the run is."""
        self._seen_s, self._seen_updates = self.run.statistics.training_s, self.run.agent.updates

    def tick(self) -> None:
        """Keep a driver, if it is time; a disk that fails is told.

        Raises:
            UserError: if it is, and the weights are no longer finite numbers.
        """
        if not self._is_due():
            return
        self._checkpoints.require_finite_weights()
        settings, statistics, folder = self.run.settings.run, self.run.statistics, self.run.folder.drivers
        tracks = tracks_of(self.run.settings, {name: of.best_time_ms for name, of in statistics.maps.items()})
        try:
            driver = driver_now(settings.run_name, self.run, self.run.agent.evaluation_network, tracks)
            write_driver(folder / f"{statistics.frames_total:012d}{ENDING}", driver, settings.minimum_free_disk_mb)
        except UserError as error:
            log.error("%s", error)
        if settings.keep_drivers_at_most is not None:
            for oldest in sorted(folder.glob(f"*{ENDING}"))[: -settings.keep_drivers_at_most]:
                oldest.unlink(missing_ok=True)

    def _is_due(self) -> bool:
        """Whether a multiple of an interval was passed since the last look."""
        run, now_s, updates = self.run.settings.run, self.run.statistics.training_s, self.run.agent.updates
        every_s, every_n = run.keep_driver_every_s, run.keep_driver_every_n_batches
        is_due = every_s > 0 and now_s // every_s != self._seen_s // every_s
        is_due |= every_n > 0 and updates // every_n != self._seen_updates // every_n
        self._seen_s, self._seen_updates = now_s, updates
        return is_due
