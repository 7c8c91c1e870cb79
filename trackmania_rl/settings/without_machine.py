"""A configuration's text as it may be handed on: without this machine's paths, names and logins."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from trackmania_rl.file_names import portable
from trackmania_rl.settings.groups import UserSettings
from trackmania_rl.settings.syntax import parse_python

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
    """
    tree = parse_python(text)
    instead: list[tuple[ast.expr, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id in UserSettings.model_fields for one in targets):
                instead.append((node.value, '""'))
    emptied = {id(part) for value, _ in instead for part in ast.walk(value)}
    in_fstrings = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in emptied | in_fstrings:
            path = node.value
            is_whole = path[:1] in ("/", "\\", HOME) or path[1:3] in (":/", ":\\")
            if is_whole and "\n" not in path:
                instead.append((node, repr(portable(path.replace(HOME, "/", 1) if path.startswith(HOME) else path))))
    lines = [line.encode() for line in text.splitlines(keepends=True)]  # columns are counted in bytes
    for node, new in sorted(instead, key=lambda one: (one[0].lineno, one[0].col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        whole = lines[first][: node.col_offset] + new.encode() + lines[last][node.end_col_offset :]
        lines[first : last + 1] = [whole]
    return _without_home(b"".join(lines).decode(), home or _home())


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
