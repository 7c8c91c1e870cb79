"""Adding maps to a configuration file's `map_cycle`, as its owner would with an editor: nothing else in it changes.

The file is taken apart with `ast` to find the place, its text is changed there, and what came out is loaded and
compared before it takes the old file's place. The old one is kept beside it.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.game import MapEntry
from trackmania_rl.settings.groups import Settings
from trackmania_rl.settings.loading import changed_settings, load_settings
from trackmania_rl.settings.syntax import ParsedText

NAME: Final = "map_cycle"
INDENT: Final = "    "


class MapCycleError(UserError):
    """The map cycle of a configuration file cannot be changed by a program; the text says what to do by hand."""


def entry_text(entry: Mapping[str, Any]) -> str:
    """Write one entry as it is in a configuration file, without the comma after it."""
    lines = [f"{INDENT * 2}{literal_text(name)}: {literal_text(value)}," for name, value in entry.items()]
    return "\n".join((f"{INDENT}{{", *lines, f"{INDENT}}}"))


def literal_text(value: Any) -> str:
    """Write a literal with double quotes, as the configuration files have them."""
    if not isinstance(value, str):
        return repr(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def add_to_map_cycle(config_file: Path, entries: Sequence[Mapping[str, Any]], replace: bool = False) -> Path:
    """Write entries after those of a configuration file's map cycle, or in their place.

    Args:
        config_file: the Python file; the companions in its folder are read as well.
        entries: what `MapEntry` takes, at least one.
        replace: whether the new entries are all that is left.

    Returns:
        The copy of the file as it was.

    Raises:
        SettingsError: if the file is no usable configuration to begin with.
        MapCycleError: if its map cycle is not written out in it, or has one of the new names; the file is as it was.
    """
    before = load_settings(config_file)
    new = tuple(MapEntry.model_validate(entry) for entry in entries)
    old = () if replace else before.game.map_cycle
    taken = {entry.map_name for entry in old} & {entry.map_name for entry in new}
    if taken:
        raise MapCycleError(f"{config_file}: its map_cycle has a map {min(taken)!r} already; choose another name")
    text = with_entries(config_file.read_bytes(), entries, replace, config_file)
    trial = config_file.with_name(f".{config_file.stem}_new.py")
    backup = _free_name(config_file)
    try:
        trial.write_bytes(text)
        _compare(before, load_settings(trial), old + new, config_file)
        shutil.copy2(config_file, backup)
        shutil.copymode(config_file, trial)
        os.replace(trial, config_file)
    except OSError as error:
        raise MapCycleError(f"{config_file}: cannot be changed: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
    return backup


def with_entries(text: bytes, entries: Sequence[Mapping[str, Any]], replace: bool, config_file: Path) -> bytes:
    """Add entries to the map cycle in a configuration file's text, or put them in its place.

    Raises:
        MapCycleError: if it does not set `map_cycle`, the last time that it does, to entries written out one by one.
    """
    try:
        parsed = ParsedText(text.decode("utf-8-sig"))
    except (SyntaxError, ValueError) as error:
        raise MapCycleError(f"{config_file}: is not valid Python: {error}") from error
    cycle, text = _map_cycle_node(parsed.tree, config_file), parsed.content
    newline = b"\r\n" if b"\r\n" in text else b"\n"
    written = newline.join(
        newline.join(line.encode() for line in entry_text(entry).split("\n")) + b"," for entry in entries
    ).removesuffix(b",")
    begin, end = parsed.span(cycle.elts[0]).start, parsed.span(cycle.elts[-1]).stop
    if replace:
        return text[:begin] + written.lstrip() + text[end:]
    return text[:end] + b"," + newline + written + text[end:]  # a comma that was after the last entry still is


def _map_cycle_node(tree: ast.Module, config_file: Path) -> ast.Tuple | ast.List:
    values = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        and any(isinstance(target, ast.Name) and target.id == NAME for target in _targets(node))
    ]
    last = max((value for value in values if value is not None), key=lambda value: value.lineno, default=None)
    if not isinstance(last, ast.Tuple | ast.List) or not last.elts or NAME in _names_in(last):
        raise MapCycleError(
            f"{config_file}: its map_cycle is not one tuple of entries written out in it; add the entry by hand"
        )
    return last


def _names_in(node: ast.expr) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _compare(before: Settings, after: Settings, cycle: tuple[MapEntry, ...], config_file: Path) -> None:
    others = set(changed_settings(before, after)) - {NAME}
    if others or after.game.map_cycle != cycle:
        raise MapCycleError(f"{config_file}: its map_cycle could not be changed safely; add the entry by hand")


def _free_name(config_file: Path) -> Path:
    """Find a name for a backup that no file has yet."""
    backup, number = config_file.with_name(f"{config_file.name}.bak"), 1
    while backup.exists():
        number += 1
        backup = config_file.with_name(f"{config_file.name}.bak{number}")
    return backup
