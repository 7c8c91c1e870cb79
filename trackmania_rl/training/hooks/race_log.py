"""The races of a run in its log."""

from __future__ import annotations

import logging

from typing_extensions import override

from trackmania_rl.race.race import Race
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


class WriteRaces(Hook):
    """Writes each race to the run log."""

    @override
    def begin(self) -> None:
        """Mark races after the run's checkpoint as undone. Raise `UserError` if the log cannot be written."""
        n_undone = self.run.run_log.undo_after(self.run.statistics.frames_total)
        if n_undone > 0:
            log.info("%d races that came after the checkpoint are undone", n_undone)

    @override
    def on_race(self, race: Race) -> None:
        statistics = self.run.statistics
        with self.run.surviving_disk():
            self.run.run_log.write(race.facts, statistics.frames_total, statistics.training_s)
