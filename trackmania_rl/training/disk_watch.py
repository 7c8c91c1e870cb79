"""Lines and figures wait while the disk is short of space, which belongs to the checkpoints."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from typing import Final

from trackmania_rl.runs import CheckpointStore, RunFolder
from trackmania_rl.training.hooks.hook import Interval

log = logging.getLogger(__name__)

DISK_IS_TRIED_EVERY_S: Final = 60.0
"""Shortest time between two messages about a disk that fails."""


class DiskWatch:
    """Tells those that write whether there is space, and survives a disk that has none.

    Args:
        folder: of the run.
        checkpoints: of the run.
        minimum_free_disk_mb: gives the setting in force.

    Attributes:
        is_short: whether lines and figures are to wait.
    """

    def __init__(
        self, folder: RunFolder, checkpoints: CheckpointStore, minimum_free_disk_mb: Callable[[], int]
    ) -> None:
        self._folder = folder
        self._checkpoints = checkpoints
        self._minimum_free_disk_mb = minimum_free_disk_mb
        self._complaint_due = Interval(is_due_at_first=True)
        self.is_short = False

    def look(self) -> None:
        """Look at the disk; it is told when it becomes short, and when that is over."""
        was_short, self.is_short = self.is_short, not self.has_space()
        if self.is_short and not was_short:
            log.error(
                "races.jsonl and the loggers wait for space: the disk has less free than a checkpoint and "
                "minimum_free_disk_mb = %d MB take; the run goes on without their lines",
                self._minimum_free_disk_mb(),
            )
        if was_short and not self.is_short:
            log.warning("races.jsonl and the loggers are written again; the races in between are missing")

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Continue without the lines or files that cannot be written, and log that now and then."""
        try:
            yield
        except OSError as error:
            if self._complaint_due.is_due(DISK_IS_TRIED_EVERY_S):
                log.error("races.jsonl or another file cannot be written: %s; the run goes on", error.strerror)

    def has_space(self) -> bool:
        """Tell whether another checkpoint, as large as the last one, would leave `minimum_free_disk_mb` free."""
        needed_bytes = (self._minimum_free_disk_mb() << 20) + self._checkpoints.written_bytes
        try:
            # Older checkpoints go first, where there is no room for all.
            return shutil.disk_usage(self._folder.path).free + self._checkpoints.spare_bytes >= needed_bytes
        except OSError:  # the disk is gone
            return False
