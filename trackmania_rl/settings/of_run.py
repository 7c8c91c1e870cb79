"""Settings of a run that starts or resumes: those of the command, or its own settings.toml; and a checkpoint's.

Some settings shape the network, which does not fit another value. Others change the meaning of its values: rewards,
actions, maps. Such a change is refused when a run resumes, unless it is accepted by name. An edit that is applied while
the run trains needs no acceptance: a checkpoint follows it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import DRIVER_SETTINGS, NEEDS_RESTART, Settings, groups
from trackmania_rl.settings.live import Stamp, stamp_of
from trackmania_rl.settings.loading import (
    changed_settings,
    load_settings,
    parse_override,
    settings_from_values,
    stored_settings,
)
from trackmania_rl.settings.snapshot import (
    SETTINGS_FILE,
    already_stretched,
    bring_up_to_date,
    own_file,
    read_own,
    write_changes,
    write_settings,
)

log = logging.getLogger(__name__)

OPTION: Final = "--accept-change"
LONGEST_VALUE: Final = 120
MAPS: Final = "map_cycle"
_OF_GROUP: Final = {group: frozenset(model.model_fields) for group, model in groups().items()}
MEANING: Final = frozenset(
    DRIVER_SETTINGS - _OF_GROUP["agent"]
    | {"expected_reward_per_action", "quantile_factors_multiply", MAPS}
    | _OF_GROUP["reward"]
)
"""Settings that change the meaning of a network's values."""
SHAPING: Final = frozenset(
    (_OF_GROUP["observation"] | _OF_GROUP["replay"] | _OF_GROUP["agent"]) & NEEDS_RESTART
    | {"games", "actions", "inputs", "image_width_px", "image_height_px", "frames_per_state", "engine_ticks_per_action"}
)
"""Settings that shape networks and replay memory."""


@dataclass(frozen=True)
class AskedFor:
    """Settings that a command asks for.

    Attributes:
        source: configuration file, or settings.
        overrides: `name=value` texts that win over it.
        update: whether they replace the settings of a run that exists.
    """

    source: Path | Settings
    overrides: Sequence[str] = ()
    update: bool = False

    def settings(self, *, is_stretched: bool = True) -> Settings:
        """Return the settings asked for.

        Raises:
            SettingsError: if they cannot be used.
        """
        if isinstance(self.source, Path):
            return load_settings(self.source, self.overrides, is_stretched=is_stretched)
        values = already_stretched(self.source).flat()
        return settings_from_values(values, self.overrides, "the settings given", is_stretched)


class RunConfiguration:
    """The settings of a run that starts or resumes.

    Args:
        asked_for: by the command.
        run_folder: `save/{run_name}`.

    Attributes:
        file: the run's settings.toml.
        is_new: whether the settings asked for are taken.
        read_from: stamp of the file before `read`; None until then.
    """

    def __init__(self, asked_for: AskedFor, run_folder: Path) -> None:
        self._asked_for = asked_for
        self._folder = run_folder
        self.file = run_folder / SETTINGS_FILE
        self.is_new = asked_for.update or not own_file(run_folder).is_file()
        self.read_from: Stamp | None = None

    def read(self) -> Settings:
        """Return the settings that will be in force.

        Raises:
            SettingsError: if they cannot be used.
        """
        self.read_from = stamp_of(self.file)
        return self._asked_for.settings() if self.is_new else self._own()

    def write(self) -> None:
        """Write what `read` returned to the run's file."""
        if self.is_new:
            write_settings(self.file, self._asked_for.settings(is_stretched=False))
            return
        bring_up_to_date(self._folder)
        written = read_own(self._folder, (), self._asked_for.settings, is_stretched=False)
        changes = changed_settings(written, self._own(is_stretched=False))
        asked = dict(map(parse_override, self._asked_for.overrides)).keys()
        if overridden := {name: new for name, (_, new) in changes.items() if name in asked}:
            write_changes(self.file, overridden)
        if remark := self.remark():
            log.warning("going on with %s", remark)

    def remark(self) -> str:
        """Describe how the run's settings differ from those asked for; empty if they do not."""
        names = ", ".join(sorted(changed_settings(self._asked_for.settings(), self._own())))
        source = self._asked_for.source
        told = source if isinstance(source, Path) else "the settings given"
        return names and f"{own_file(self._folder)}, which differs from {told} in: {names} (--update-config takes that)"

    @contextlib.contextmanager
    def telling_which(self) -> Iterator[None]:
        """Name in an error the run's settings, if they are not those asked for."""
        try:
            yield
        except UserError as error:
            if self.is_new or not (remark := self.remark()):
                raise
            raise UserError(f"{error}; this run goes on with {remark}") from error

    def _own(self, *, is_stretched: bool = True) -> Settings:
        return read_own(self._folder, self._asked_for.overrides, self._asked_for.settings, is_stretched=is_stretched)


@dataclass(frozen=True)
class SettingChange:
    """A setting with another value than in a checkpoint.

    Attributes:
        name: of the setting.
        old, new: its values, as JSON.
    """

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} = {_short(self.new)} (was {_short(self.old)})"


def changes_since(stored: Mapping[str, Any], settings: Settings) -> list[SettingChange]:
    """List the settings that differ from those of a checkpoint's manifest. Names that it lacks have not changed."""
    return [
        SettingChange(name, stored[name], new)
        for name, new in stored_settings(settings).items()
        if name in stored and stored[name] != new
    ]


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
            f"{OPTION} {' '.join(one.name for one in refused)}"
        )


def require_known(names: Collection[str]) -> None:
    """Raise `UserError` for names that are no settings."""
    unknown = sorted(set(names).difference(*_OF_GROUP.values()))
    if unknown:
        raise UserError(f"{OPTION} {' '.join(unknown)}: there is no such setting (train.py --list-settings)")


def _tracks(map_cycle: Any) -> set[str]:
    """Return the tracks of a map cycle, whatever their order and repetitions."""
    files = ("map_path", "reference_line", "generator")
    entries = map_cycle if isinstance(map_cycle, list) else [map_cycle]
    return {json.dumps([entry.get(name) for name in files] if isinstance(entry, dict) else entry) for entry in entries}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
