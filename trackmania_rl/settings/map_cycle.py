"""Adding maps to a configuration file: an assignment of `map_cycle` at its end, where it wins."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.game import MapEntry
from trackmania_rl.settings.loading import changed_settings, load_settings

HEADING: Final = "# Written by scripts/tools/maps.py add."


class MapCycleError(UserError):
    """A configuration file whose map cycle cannot be changed."""


def entry_text(entry: Mapping[str, Any]) -> str:
    """Write one entry as in a configuration file, without the comma after it."""
    lines = [f"        {_literal(name)}: {_literal(value)}," for name, value in entry.items()]
    return "\n".join(("    {", *lines, "    }"))


def add_to_map_cycle(config_file: Path, entries: Sequence[Mapping[str, Any]], replace: bool = False) -> Path:
    """Add entries to a configuration file's map cycle. The changed file is loaded before it replaces the old one.

    Args:
        config_file: Python file.
        entries: as `MapEntry` takes them, at least one.
        replace: whether the new entries replace the old ones.

    Returns:
        A copy of the file as it was.

    Raises:
        SettingsError: if the file is no usable configuration.
        MapCycleError: if it has one of the new names or cannot be written; the file is unchanged.
    """
    before = load_settings(config_file)
    new = tuple(MapEntry.model_validate(entry) for entry in entries)
    old = () if replace else before.game.map_cycle
    taken = {entry.map_name for entry in old} & {entry.map_name for entry in new}
    if taken:
        raise MapCycleError(f"{config_file}: its map_cycle has a map {min(taken)!r} already; choose another name")
    text = config_file.read_bytes().decode()
    newline = "\r\n" if "\r\n" in text else "\n"
    replaced = _assignment(before.game.map_cycle).replace("\n", newline)
    text = text.removesuffix(replaced).rstrip() + newline * 2  # that of an earlier call
    text += _assignment((*old, *new)).replace("\n", newline)
    trial, backup = config_file.with_name(f".{config_file.stem}_new.py"), _free_name(config_file)
    try:
        trial.write_bytes(text.encode())
        if changed_settings(before, load_settings(trial)).keys() - {"map_cycle"}:
            raise MapCycleError(f"{config_file}: other settings follow from its map_cycle; add the entry by hand")
        shutil.copy2(config_file, backup)
        shutil.copymode(config_file, trial)
        os.replace(trial, config_file)
    except OSError as error:
        raise MapCycleError(f"{config_file}: cannot be changed: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
    return backup


def _assignment(cycle: Sequence[MapEntry]) -> str:
    entries = [entry_text(entry.model_dump(exclude_defaults=True)) for entry in cycle]
    return f"{HEADING}\nmap_cycle = (\n" + "".join(f"{entry},\n" for entry in entries) + ")\n"


def _literal(value: Any) -> str:
    """Write a literal, texts with double quotes."""
    if not isinstance(value, str):
        return repr(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _free_name(config_file: Path) -> Path:
    backup, number = config_file.with_name(f"{config_file.name}.bak"), 1
    while backup.exists():
        number += 1
        backup = config_file.with_name(f"{config_file.name}.bak{number}")
    return backup
