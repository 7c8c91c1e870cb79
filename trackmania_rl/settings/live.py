"""Settings in force, renewed when a run's settings.toml is edited."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import NEEDS_RESTART, Settings
from trackmania_rl.settings.loading import settings_from_flat, stored_settings
from trackmania_rl.settings.snapshot import read_own

Stamp = tuple[int, int, int]
"""Time of the last change, size and number of a file."""

RETRY_AFTER_S: Final = 5.0
"""Time after which an edit that could not be read is tried again."""

log = logging.getLogger(__name__)


def stamp_of(file: Path) -> Stamp | None:
    """Return the stamp of a file; zeros if there is none, None if the disk fails."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class LiveSettings:
    """The settings in force.

    An invalid edit leaves the last good settings in force. A changed setting that needs a restart waits for it; if the
    rest of the edit is invalid without it, the whole edit waits.
    """

    def __init__(
        self,
        snapshot_file: Path,
        current: Settings,
        check: Callable[[Settings], object] = lambda _: None,
        seen: Stamp | None = None,
    ) -> None:
        """Set the settings in force.

        Args:
            snapshot_file: the run's settings.toml; it may have been edited since `current` was read.
            current: the settings.
            check: raises `UserError` for edited settings that cannot be used, such as a map that is not there.
            seen: stamp of the file when `current` was read; None to read it again.
        """
        self.current = current
        self._file = snapshot_file
        self._check = check
        self._seen = seen
        self._refused: Stamp | None = None
        self._retry_at_s = 0.0

    def refresh(self) -> bool:
        """Apply an edit of the file; return whether anything changed."""
        stamp = stamp_of(self._file)
        if stamp is None or stamp == self._seen:
            return False
        if stamp == self._refused and time.monotonic() < self._retry_at_s:
            return False
        try:
            edited = read_own(self._file.parent, configuration=lambda: self.current, is_complete=True)
            self._check(edited)
        except (UserError, OSError) as error:
            if stamp != self._refused:
                log.warning("the edited settings are not applied, the last good ones stay in force: %s", error)
            self._refused, self._retry_at_s = stamp, time.monotonic() + RETRY_AFTER_S
            if not _is_transient(error):
                self._seen = stamp
            return False
        self._seen = stamp
        return self._apply(edited)

    def _apply(self, edited: Settings) -> bool:
        before, after = self.current.flat(), edited.flat()
        stored_before, stored_after = stored_settings(self.current), stored_settings(edited)
        changes = {
            name: (before[name], after[name]) for name in stored_after if stored_before[name] != stored_after[name]
        }
        if waiting := sorted(changes.keys() & NEEDS_RESTART):
            log.warning("these settings wait for the next start: %s", ", ".join(waiting))
        applied = {name: change for name, change in changes.items() if name not in NEEDS_RESTART}
        if not applied:
            return False
        try:
            merged = settings_from_flat(self.current.flat() | {name: new for name, (_, new) in applied.items()})
            self._check(merged)
        except UserError as error:
            log.warning("the whole edit waits for the next start, as its parts do not go alone: %s", error)
            return False
        self.current = merged
        for name, (old, new) in applied.items():
            log.info("configuration: %s = %r (was %r)", name, new, old)
        return True


def _is_transient(error: Exception) -> bool:
    """Return whether the error is a transient I/O error: of the disk, or of a program that holds a file (Windows)."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
