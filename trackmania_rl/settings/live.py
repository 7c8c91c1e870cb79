"""The run's own copy of its configuration, and edits to it while the run goes on.

`save/{run_name}/config/` holds the configuration file under the name `config.py`, and its companions. That folder *is*
the run's configuration: resuming reads it, and the learner looks at it several times a second and publishes it.
"""

from __future__ import annotations

import logging
import pprint
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.files import write_durably
from trackmania_rl.settings import (
    COMPANION_FILES,
    NEEDS_RESTART,
    Settings,
    changed_settings,
    parse_override,
    settings_from_flat,
    whole_text,
    with_marks,
)
from trackmania_rl.settings.reading import ReadHere, Reading, StartReading

SNAPSHOT_FILE = "config.py"

Stamp = tuple[tuple[int, int], ...]
"""When each file of a snapshot was last written, and its size."""

log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 5.0
"""When an edit that could not be read is tried again."""


def write_snapshot(config_file: Path, snapshot_folder: Path, overrides: Iterable[str] = ()) -> Path:
    """Copy a configuration with its companions into the run's folder and append the command line's overrides.

    Returns:
        The snapshot's configuration file. It is plain Python like its model, for the user to edit during the run, and
        holds what its model is based on.
    """
    snapshot_folder.mkdir(parents=True, exist_ok=True)
    for name in COMPANION_FILES:
        write_durably(snapshot_folder / name, (config_file.parent / name).read_bytes())
    snapshot_file = snapshot_folder / SNAPSHOT_FILE
    overrides = list(overrides)
    set_below = dict(map(parse_override, overrides))
    write_durably(snapshot_file, with_marks(whole_text(config_file), set_below) + _set_on_command_line(overrides))
    return snapshot_file


def write_values(settings: Settings, snapshot_folder: Path) -> Path:
    """Write settings that come from no file as a snapshot: one assignment each, and empty companions.

    Returns:
        The snapshot's configuration file.
    """
    snapshot_folder.mkdir(parents=True, exist_ok=True)
    for name in COMPANION_FILES:
        write_durably(snapshot_folder / name, "")
    values = {name: value for group in settings.model_dump(warnings=False).values() for name, value in group.items()}
    values["schedule_stretch"] = 1.0  # the schedules are stretched already
    snapshot_file = snapshot_folder / SNAPSHOT_FILE
    write_durably(snapshot_file, "".join(f"{name} = {value!r}\n" for name, value in values.items()))
    return snapshot_file


def append_overrides(snapshot_file: Path, overrides: Iterable[str]) -> None:
    """Write `name=value` overrides after the snapshot's own lines, where they win and can be edited."""
    if added := _set_on_command_line(overrides):
        write_durably(snapshot_file, snapshot_file.read_bytes() + added.encode())


def _set_on_command_line(overrides: Iterable[str]) -> str:
    assignments = [_assignment(name, value) for name, value in map(parse_override, overrides)]
    return "\n# Set on the command line.\n" + "".join(assignments) if assignments else ""


def _assignment(name: str, value: object) -> str:
    begin = f"{name} = "
    lines = pprint.pformat(value, width=120 - len(begin), sort_dicts=False).splitlines()
    return begin + f"\n{' ' * len(begin)}".join(lines) + "\n"


class SnapshotKeeper:
    """A context in which a command writes the run's configuration, and which takes that back if the command fails.

    Until `keep` is called, an exception restores the Python files of the folder as they were; there may have been none.
    """

    def __init__(self, snapshot_folder: Path) -> None:
        """Remember what is in `snapshot_folder`."""
        self._folder = snapshot_folder
        self._content = {file: file.read_bytes() for file in snapshot_folder.glob("*.py")}
        self._is_kept = False

    def keep(self) -> None:
        """Let what the command wrote be the run's configuration from now on, whatever happens."""
        self._is_kept = True

    def __enter__(self) -> SnapshotKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore, if there was an error too early."""
        if error is None or self._is_kept:
            return
        for file in set(self._folder.glob("*.py")) - set(self._content):
            file.unlink()
        for file, content in self._content.items():
            write_durably(file, content)


def stamp_of(snapshot_file: Path) -> Stamp | None:
    """Tell when each file of a snapshot was last written; one caught between two writes counts as absent.

    Returns:
        None where the disk fails.
    """
    stamps = []
    for name in (SNAPSHOT_FILE, *COMPANION_FILES):
        try:
            status = (snapshot_file.parent / name).stat()
            stamps.append((status.st_mtime_ns, status.st_size))
        except FileNotFoundError:
            stamps.append((0, 0))
        except OSError:
            return None
    return tuple(stamps)


class LiveSettings:
    """The settings in force, renewed from the snapshot; the one reader of it.

    It is read where `start_reading` says, while whoever calls `refresh` goes on: the edit counts some calls later.

    A snapshot that does not load leaves the last good settings in force. A changed setting that shapes networks,
    buffers or processes waits for the next start; if the rest of the edit is invalid without it, the whole edit waits.
    """

    def __init__(
        self,
        snapshot_file: Path,
        current: Settings,
        check: Callable[[Settings], object] = lambda _: None,
        start_reading: StartReading = ReadHere,
        seen: Stamp | None = None,
    ) -> None:
        """Begin with settings that are in force.

        Args:
            snapshot_file: the run's own configuration; it may have been edited since `current` was read.
            current: the settings.
            check: raises `UserError` for edited settings that cannot be used, such as a map that is not there.
            start_reading: begins to read the snapshot.
            seen: the stamp of what `current` was read from; None to read it again.
        """
        self.current = current
        self._snapshot_file = snapshot_file
        self._check = check
        self._start_reading = start_reading
        self._reading: Reading | None = None
        self._read_from: Stamp = ()
        self._seen: Stamp = () if seen is None else seen
        self._refused: Stamp = ()
        self._retry_at_s = 0.0

    def refresh(self) -> bool:
        """Begin to read an edit, or apply it once it is read; return whether anything changed."""
        if self._reading is None and not self._begin():
            return False
        stamp = self._read_from
        try:
            edited = None if self._reading is None else self._reading.poll()
            if edited is None:
                return False
            self._reading = None
            self._check(edited)
        except (UserError, OSError) as error:  # the latter where the disk fails
            self._reading = None
            if stamp != self._refused:
                log.warning("the edited configuration is not applied, the last good one stays: %s", error)
            self._refused, self._retry_at_s = stamp, time.monotonic() + RETRY_AFTER_S
            if not _may_pass(error):
                self._seen = stamp
            return False
        self._seen = stamp
        changes = changed_settings(_as_told(self.current), _as_told(edited))
        waiting = sorted(changes.keys() & NEEDS_RESTART)
        if waiting:
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

    def close(self) -> None:
        """Give up an edit that is being read."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _begin(self) -> bool:
        """Begin to read the snapshot if there is an edit; return whether there is."""
        stamp = stamp_of(self._snapshot_file)
        if stamp is None or stamp == self._seen:  # as long as nothing can be seen, nothing has changed
            return False
        if stamp == self._refused and time.monotonic() < self._retry_at_s:
            return False
        self._read_from = stamp
        try:
            self._reading = self._start_reading(self._snapshot_file)
        except OSError as error:  # there is no memory or place for another process
            if stamp != self._refused:
                log.warning("the edited configuration is not applied, the last good one stays: %s", error)
            self._refused, self._retry_at_s = stamp, time.monotonic() + RETRY_AFTER_S
            return False
        return True


def _as_told(settings: Settings) -> Settings:
    """Give settings as another process hears of them, whose lists are alike; so that only what differs counts."""
    return Settings.model_validate(settings.model_dump(mode="json", warnings=False))


def _may_pass(error: Exception) -> bool:
    """Tell whether not the edit is to blame, but the disk, or a program that holds a file for a moment (Windows)."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
