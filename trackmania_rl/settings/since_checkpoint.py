"""Settings that differ from those of a run's last checkpoint.

Some shape the network, which does not fit another value. Others change the meaning of its values: rewards, actions,
maps. Such a change is refused when a run resumes, unless it is accepted by name. An edit that is applied while the run
trains needs no acceptance: a checkpoint follows it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import DRIVER_SETTINGS, NEEDS_RESTART, Settings, groups

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


def stored_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by name as JSON, for a checkpoint's manifest, without those of this machine and its user."""
    values: dict[str, Any] = {}
    for name, group in settings:
        if name != "user":
            try:
                values |= group.model_dump(mode="json", warnings=False)
            except ValueError:  # an argument of a user's part that JSON does not have
                values |= {key: str(value) for key, value in group.model_dump(warnings=False).items()}
    return values


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
