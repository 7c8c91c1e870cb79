"""Comparison of settings with those of a checkpoint.

Some settings shape the network, which does not fit another value. Others change the meaning of its values; such a
change is refused at a resume, unless it is accepted by name. A live edit needs no acceptance: a checkpoint follows it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from trackmania_rl.errors import UserError
from trackmania_rl.runs.folder import SETTINGS_FILE
from trackmania_rl.settings import Settings
from trackmania_rl.settings.groups import FIELDS, MEANING_SETTINGS, SHAPING_SETTINGS
from trackmania_rl.settings.loading import stored_settings

MAPS: Final = "map_cycle"


class SettingChange(NamedTuple):
    """A setting with another value than in a checkpoint; both values are JSON."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} = {json.dumps(self.new):.120} (was {json.dumps(self.old):.120})"


def changes_since(stored: Mapping[str, Any], settings: Settings) -> list[SettingChange]:
    """List the settings that differ from those of a checkpoint's manifest. Names that it lacks have not changed."""
    new = stored_settings(settings)
    changes = (SettingChange(name, stored.get(name, value), value) for name, value in new.items())
    return [change for change in changes if change.old != change.new]


def differences(changes: Sequence[SettingChange]) -> str:
    """Describe the changes that make a checkpoint unusable; empty if there are none."""
    return ", ".join(str(change) for change in changes if change.name in SHAPING_SETTINGS)


def changes_of_meaning(changes: Sequence[SettingChange]) -> list[SettingChange]:
    """List the changes that give another meaning to what the network has learned."""
    return [
        change
        for change in changes
        if change.name in MEANING_SETTINGS and not (change.name == MAPS and _tracks(change.old) == _tracks(change.new))
    ]


def _tracks(map_cycle: Any) -> set[str]:
    files = ("map_path", "reference_line", "generator")
    return {json.dumps([entry.get(name) for name in files]) for entry in map_cycle}


def require_accepted(changes: Sequence[SettingChange], accepted: Collection[str], run_folder: Path) -> None:
    """Raise `UserError` for changes of meaning that are not accepted."""
    refused = [change for change in changes_of_meaning(changes) if change.name not in accepted]
    if refused:
        raise UserError(
            f"{run_folder}: since its last checkpoint these were changed, and what the network has learned would mean "
            f"something else: {'; '.join(map(str, refused))}. Undo this (in {run_folder / SETTINGS_FILE}, or on the "
            "command line), or accept it: "
            f"--accept-change {' '.join(change.name for change in refused)}"
        )


def require_known(names: Collection[str]) -> None:
    """Raise `UserError` for names that are no settings."""
    if unknown := sorted(set(names) - FIELDS.keys()):
        raise UserError(f"--accept-change {' '.join(unknown)}: there is no such setting (train.py --list-settings)")
