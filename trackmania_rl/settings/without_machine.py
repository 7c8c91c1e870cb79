"""A configuration's text as it may be handed on: without this machine's paths, names and logins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trackmania_rl.files import portable
from trackmania_rl.settings.groups import UserSettings
from trackmania_rl.settings.syntax import ParsedText

HOME: Final = "~"


def without_machine(text: str, home: Path | None = None) -> str:
    """Take out of a configuration file what belongs to its owner.

    What `user_config.py` sets becomes empty, wherever it is set; of a whole path its last part stays; and the home
    folder, in comments too, becomes ~. The rest is as it was.

    Args:
        text: of a Python file.
        home: the user's folder; None for that of whoever runs this.

    Raises:
        SyntaxError: if it is no Python.
        ValueError: if it holds null bytes.
    """
    parsed = ParsedText(text)
    tree = parsed.tree
    instead: list[tuple[ast.expr, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            private = {id(value): value for target in targets for value in _private_values(target, node.value)}
            instead += [(value, '""') for value in private.values()]
    emptied = {id(part) for value, _ in instead for part in ast.walk(value)}
    in_fstrings = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in emptied | in_fstrings:
            continue
        if (cut := paths_cut(node.value)) != node.value:
            instead.append((node, repr(cut)))
    return _without_home(parsed.with_replaced(instead), home or _home())


def paths_cut(value: Any) -> Any:
    """Return a JSON value in which only the last part of each whole path is left."""
    if isinstance(value, dict):
        return {name: paths_cut(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [paths_cut(entry) for entry in value]
    if not isinstance(value, str) or "\n" in value:
        return value
    is_whole = value[:1] in ("/", "\\", HOME) or value[1:3] in (":/", ":\\")
    return portable(value.replace(HOME, "/", 1) if value.startswith(HOME) else value) if is_whole else value


def _private_values(target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    """Find the values that one assignment gives to settings of `user_config.py`."""
    if isinstance(target, ast.Name) and target.id in UserSettings.model_fields:
        yield value
    elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for one, its_value in zip(target.elts, value.elts, strict=False):
            yield from _private_values(one, its_value)


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # there is none
        return None


def _without_home(text: str, home: Path | None) -> str:
    if home is None or len(home.parts) < 2:
        return text
    for written in (repr(str(home))[1:-1], str(home), home.as_posix()):
        text = text.replace(written, HOME)
    return text
