"""Settings that have changed since a run's last checkpoint, and those of them that change what its network means.

A network that learned with other rewards, other actions or on another map still fits, but its values are about
something else. Such a change is refused when a run is taken up again, unless it is asked for by name. An edit that was
applied while the run went on was asked for: what is in force is written down whenever it changes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import DRIVER_SETTINGS, Settings, groups

OPTION: Final = "--accept-change"
LONGEST_VALUE: Final = 120
PRIVATE_GROUP: Final = "user"
"""This machine's own paths and names, which a checkpoint that is handed over must not tell."""
MEANING_OF_NETWORK: Final = ("expected_reward_per_action", "quantile_factors_multiply")
"""Those of the agent's settings; the others that are a driver's shape its network, which then does not fit at all."""
MAPS: Final = "map_cycle"


@dataclass(frozen=True)
class SettingChange:
    """A setting that is another one than in a checkpoint.

    Attributes:
        name: of the setting.
        old, new: its values, as JSON has them.
        is_refused: whether it changes what the network means, and nobody asked for it.
    """

    name: str
    old: Any
    new: Any
    is_refused: bool

    def __str__(self) -> str:
        return f"{self.name} = {_short(self.new)} (was {_short(self.old)})"


def settings_of_meaning() -> frozenset[str]:
    """Name the settings that say what a network's values are about."""
    of_agent = groups()["agent"].model_fields.keys()
    of_driver = {name for name in DRIVER_SETTINGS if name not in of_agent or name in MEANING_OF_NETWORK}
    return frozenset(of_driver | groups()["reward"].model_fields.keys() | {MAPS})


def stored_settings(settings: Settings) -> dict[str, Any]:
    """Give the settings by name, as a checkpoint's manifest has them: JSON, without what is this machine's own."""
    values: dict[str, Any] = {}
    for name, group in settings:
        if name != PRIVATE_GROUP:
            try:
                values |= group.model_dump(mode="json", warnings=False)
            except ValueError:  # an argument of a part of a user's own that JSON does not have
                values |= {key: str(value) for key, value in group.model_dump(warnings=False).items()}
    return values


def changes_since(
    stored: Mapping[str, Any], settings: Settings, in_force: Mapping[str, Any], accepted: Collection[str] = ()
) -> list[SettingChange]:
    """List the settings that are others than in a checkpoint.

    Args:
        stored: in the checkpoint; what it does not name is no change.
        settings: with which the run is to go on.
        in_force: that were in force last, see `read_in_force`.
        accepted: names that were asked for.
    """
    changes = []
    meaning = settings_of_meaning()
    for name, new in stored_settings(settings).items():
        if name not in stored or stored[name] == new:
            continue
        is_other = name in meaning and not (name == MAPS and _tracks(stored[name]) == _tracks(new))
        was_asked_for = name in accepted or in_force.get(name, stored[name]) == new
        changes.append(SettingChange(name, stored[name], new, is_other and not was_asked_for))
    return changes


def require_accepted(changes: Sequence[SettingChange], run_folder: Path) -> None:
    """Refuse changes that give another meaning to what the network has learned.

    Raises:
        UserError: if there is one; the text has old value, new value and the two ways on.
    """
    refused = [change for change in changes if change.is_refused]
    if refused:
        raise UserError(
            f"{run_folder}: since its last checkpoint these were changed, and what the network has learned would mean "
            f"something else: {'; '.join(map(str, refused))}. Either take that back (in "
            f"{run_folder / 'settings.toml'}, or what the command line says), or go on all the same: "
            f"{OPTION} {' '.join(one.name for one in refused)}"
        )


def require_known(names: Collection[str]) -> None:
    """Refuse names that are no settings.

    Raises:
        UserError: naming them.
    """
    unknown = sorted(set(names) - {name for model in groups().values() for name in model.model_fields})
    if unknown:
        raise UserError(f"{OPTION} {' '.join(unknown)}: there is no such setting (train.py --list-settings)")


def in_force_text(settings: Settings) -> str:
    """Write the settings in force, for `read_in_force`."""
    return json.dumps(stored_settings(settings), indent=1) + "\n"


def _tracks(map_cycle: Any) -> set[str]:
    """Collect the tracks of a map cycle, however often and in which order they are driven."""
    files = ("map_path", "reference_line", "generator")
    entries = map_cycle if isinstance(map_cycle, list) else [map_cycle]
    return {json.dumps([entry.get(name) for name in files] if isinstance(entry, dict) else entry) for entry in entries}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
