"""The races and figures of a run in its log."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from typing_extensions import override

from trackmania_rl.errors import UserError
from trackmania_rl.race.race import Race
from trackmania_rl.runs.log import CommandClock, RunLog
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


class WriteLog(Hook):
    """Writes each race to the run log, and the figures of `WriteFigures`, which closes the log."""

    def __init__(self, clock: CommandClock) -> None:
        self._clock = clock
        self._log: RunLog | None = None

    @override
    def begin(self) -> None:
        """Open the log. Races after the run's checkpoint are marked as undone."""
        file = self.run.folder.run_log
        try:
            self._log = RunLog(file, self._clock, self.run.session, self.run.statistics.frames_total)
        except OSError as error:
            raise UserError(
                f"{file} cannot be written to: {error.strerror}; free some space, or move it away"
            ) from error
        if self._log.n_undone > 0:
            log.info("%d races that came after the checkpoint are undone", self._log.n_undone)

    @override
    def on_race(self, race: Race) -> None:
        assert self._log is not None
        with self.run.surviving_disk():
            self._log.write(race.facts, self.run.statistics.frames_total)

    def write_figures(self, figures: Mapping[str, float]) -> None:
        """Write figures by name, unless the log could not be opened."""
        if self._log is not None:
            with self.run.surviving_disk():
                self._log.write_figures(figures, self.run.statistics.frames_total)

    def close(self) -> None:
        """Close the log, if it is open."""
        if self._log is not None:
            with self.run.surviving_disk():
                self._log.close()
