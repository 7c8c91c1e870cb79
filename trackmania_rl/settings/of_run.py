"""Settings of a run that starts, resumes or trains, and their comparison with those of a checkpoint.

Some settings shape the network, which does not fit another value. Others change the meaning of its values: rewards,
actions, maps. Such a change is refused when a run resumes, unless it is accepted by name. An edit that is applied while
the run trains needs no acceptance: a checkpoint follows it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import DRIVER_SETTINGS, FIELDS, NEEDS_RESTART, Settings, groups
from trackmania_rl.settings.loading import (
    changed_settings,
    load_settings,
    settings_from_flat,
    settings_from_values,
    stored_settings,
)
from trackmania_rl.settings.run_folder import RunFolder
from trackmania_rl.settings.snapshot import (
    already_stretched,
    bring_up_to_date,
    own_file,
    read_own,
    write_changes,
    write_settings,
)

log = logging.getLogger(__name__)

OPTION: Final = "--accept-change"
MAPS: Final = "map_cycle"
_OF_GROUP: Final = {group: frozenset(model.model_fields) for group, model in groups().items()}
MEANING: Final = frozenset(
    DRIVER_SETTINGS - _OF_GROUP["agent"]
    | {"expected_reward_per_action", "quantile_factors_multiply", MAPS}
    | _OF_GROUP["reward"]
)
"""Settings that change the meaning of a network's values."""
SHAPING: Final = DRIVER_SETTINGS | _OF_GROUP["replay"] & NEEDS_RESTART
"""Settings that shape networks and replay memory."""

Stamp = tuple[int, int, int]
"""Time of the last change, size and number of a file."""


def stamp_of(file: Path) -> Stamp | None:
    """Return the stamp of a file; zeros if there is none, None if the disk fails."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class RunConfiguration:
    """The settings of a run that starts or resumes: those that a command asks for, or the run's own.

    Args:
        source: configuration file, or settings.
        output_folder: holds save/ and tensorboard/.
        overrides: `name=value` texts that win over the source.
        update: whether they replace the settings of a run that exists.

    Attributes:
        asked_for: the settings asked for.
        folder: files of the run.
        is_new: whether the settings asked for are taken.
        read_from: stamp of the run's settings.toml before `read`; None until then.

    Raises:
        SettingsError: if the settings asked for cannot be used.
    """

    def __init__(
        self, source: Path | Settings, output_folder: Path, overrides: Sequence[str] = (), update: bool = False
    ) -> None:
        self._source = source
        self._overrides = overrides
        self.asked_for = self._asked()
        self.folder = RunFolder.below(output_folder, self.asked_for.run.run_name)
        self.is_new = update or not own_file(self.folder.path).is_file()
        self.read_from: Stamp | None = None

    def read(self) -> Settings:
        """Return the settings that will be in force.

        Raises:
            SettingsError: if they cannot be used.
        """
        self.read_from = stamp_of(self.folder.settings)
        return self.asked_for if self.is_new else self._own()

    def write(self) -> None:
        """Write what `read` returned to the run's file."""
        if self.is_new:
            write_settings(self.folder.settings, self._asked(is_stretched=False))
            return
        bring_up_to_date(self.folder.path)
        written = read_own(self.folder.path, (), self.asked_for, is_stretched=False)
        if changes := changed_settings(written, self._own(is_stretched=False)):
            write_changes(self.folder.settings, {name: new for name, (_, new) in changes.items()})
        if names := ", ".join(sorted(changed_settings(self.asked_for, self._own()))):
            source = self._source if isinstance(self._source, Path) else "the settings given"
            text = "going on with %s, which differs from %s in: %s (--update-config takes that)"
            log.warning(text, self.folder.settings, source, names)

    def _asked(self, *, is_stretched: bool = True) -> Settings:
        if isinstance(self._source, Path):
            return load_settings(self._source, self._overrides, is_stretched=is_stretched)
        values = already_stretched(self._source).flat()
        return settings_from_values(values, self._overrides, "the settings given", is_stretched)

    def _own(self, *, is_stretched: bool = True) -> Settings:
        return read_own(self.folder.path, self._overrides, self.asked_for, is_stretched=is_stretched)


class LiveSettings:
    """The settings in force, renewed when a run's settings.toml is edited.

    An invalid edit leaves the last good settings in force. A changed setting that needs a restart waits for it; if the
    rest of the edit is invalid without it, the whole edit waits.

    Args:
        file: the run's settings.toml; it may have been edited since `current` was read.
        current: the settings.
        check: raises `UserError` for edited settings that cannot be used, such as a map that is not there.
        seen: stamp of the file when `current` was read; None to read it again.
    """

    def __init__(
        self,
        file: Path,
        current: Settings,
        check: Callable[[Settings], object] = lambda _: None,
        seen: Stamp | None = None,
    ) -> None:
        self.current = current
        self._file = file
        self._check = check
        self._seen = seen
        self._refused: Stamp | None = None

    def refresh(self) -> bool:
        """Apply an edit of the file; return whether anything changed."""
        stamp = stamp_of(self._file)
        if stamp is None or stamp == self._seen:
            return False
        try:
            edited = read_own(self._file.parent, (), self.current, is_complete=True)
            self._check(edited)
        except (UserError, OSError) as error:
            if stamp != self._refused:
                log.warning("the edited settings are not applied, the last good ones stay in force: %s", error)
            self._refused = stamp
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError):  # of the disk, or a program holds the file (Windows): it is tried again
                self._seen = stamp
            return False
        self._seen = stamp
        return self._apply(edited)

    def _apply(self, edited: Settings) -> bool:
        changed, after = {change.name for change in changes_since(stored_settings(self.current), edited)}, edited.flat()
        if waiting := sorted(changed & NEEDS_RESTART):
            log.warning("these settings wait for the next start: %s", ", ".join(waiting))
        before, applied = self.current.flat(), {name: after[name] for name in changed - NEEDS_RESTART}
        if not applied:
            return False
        try:
            merged = settings_from_flat(before | applied)
            self._check(merged)
        except UserError as error:
            log.warning("the whole edit waits for the next start, as its parts do not go alone: %s", error)
            return False
        self.current = merged
        for name, new in applied.items():
            log.info("configuration: %s = %r (was %r)", name, new, before[name])
        return True


class SettingChange(NamedTuple):
    """A setting with another value than in a checkpoint; both values are JSON."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} = {json.dumps(self.new):.120} (was {json.dumps(self.old):.120})"


def changes_since(stored: Mapping[str, Any], settings: Settings) -> list[SettingChange]:
    """List the settings that differ from those of a checkpoint's manifest. Names that it lacks have not changed."""
    changes = (SettingChange(name, stored.get(name, new), new) for name, new in stored_settings(settings).items())
    return [change for change in changes if change.old != change.new]


def differences(changes: Sequence[SettingChange]) -> str:
    """Describe the changes that make a checkpoint unusable; empty if there are none."""
    return ", ".join(str(change) for change in changes if change.name in SHAPING)


def changes_of_meaning(changes: Sequence[SettingChange]) -> list[SettingChange]:
    """List the changes that give another meaning to what the network has learned."""
    return [
        change
        for change in changes
        if change.name in MEANING and not (change.name == MAPS and _tracks(change.old) == _tracks(change.new))
    ]


def require_accepted(changes: Sequence[SettingChange], accepted: Collection[str], run_folder: Path) -> None:
    """Refuse changes that give another meaning to what the network has learned.

    Raises:
        UserError: if there is one that is not accepted.
    """
    refused = [change for change in changes_of_meaning(changes) if change.name not in accepted]
    if refused:
        raise UserError(
            f"{run_folder}: since its last checkpoint these were changed, and what the network has learned would mean "
            f"something else: {'; '.join(map(str, refused))}. Either take that back (in "
            f"{run_folder / 'settings.toml'}, or what the command line says), or go on all the same: "
            f"{OPTION} {' '.join(change.name for change in refused)}"
        )


def require_known(names: Collection[str]) -> None:
    """Raise `UserError` for names that are no settings."""
    if unknown := sorted(set(names) - FIELDS.keys()):
        raise UserError(f"{OPTION} {' '.join(unknown)}: there is no such setting (train.py --list-settings)")


def _tracks(map_cycle: Any) -> set[str]:
    """Return the tracks of a map cycle, whatever their order and repetitions."""
    files = ("map_path", "reference_line", "generator")
    return {json.dumps([entry.get(name) for name in files]) for entry in map_cycle}
