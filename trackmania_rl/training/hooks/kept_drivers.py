"""The networks on the way: a policy's history."""

from __future__ import annotations

import logging

from trackmania_rl.checkpoints import CheckpointError, save_driver
from trackmania_rl.training.hooks.checkpoints import DRIVING_NETWORKS, SaveCheckpoints
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


class KeepDrivers(Hook):
    """Keeps the networks in drivers/, for `scripts/evaluate.py --checkpoint`.

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
        run, state, statistics = self.run.settings.run, self.run.agent.state_dict(), self.run.statistics
        networks = {kind: state[kind] for kind in DRIVING_NETWORKS}
        drivers = self.run.folder.drivers
        try:
            save_driver(drivers, networks, statistics.frames_total, statistics.training_s, run.minimum_free_disk_mb)
        except CheckpointError as error:
            log.error("%s", error)
        if run.keep_drivers_at_most is not None:
            for oldest in sorted(drivers.glob("*.pt"))[: -run.keep_drivers_at_most]:
                oldest.unlink(missing_ok=True)

    def _is_due(self) -> bool:
        """Whether a multiple of an interval was passed since the last look."""
        run, now_s, updates = self.run.settings.run, self.run.statistics.training_s, self.run.agent.updates
        every_s, every_n = run.keep_driver_every_s, run.keep_driver_every_n_batches
        is_due = every_s > 0 and now_s // every_s != self._seen_s // every_s
        is_due |= every_n > 0 and updates // every_n != self._seen_updates // every_n
        self._seen_s, self._seen_updates = now_s, updates
        return is_due
