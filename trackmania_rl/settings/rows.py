"""The settings of a run as the page lists them, each with what its configuration says about it."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

from trackmania_rl.settings import NEEDS_RESTART, Settings, UserSettings, describe_range, describe_unit
from trackmania_rl.settings.editing import literals_of
from trackmania_rl.settings.groups import groups
from trackmania_rl.settings.syntax import ParsedText


def settings_rows(settings: Settings, config_text: str) -> list[dict[str, Any]]:
    """A row for each setting, but for those of this machine and its owner.

    Args:
        settings: in force, or as the file has them.
        config_text: the run's config.py.

    Returns:
        `name`, `group`, `value` as a Python literal, `text` (what an edit begins with), `unit`, `range`, `restart`
        (whether a change waits for the next start) and `about`, the comment in the configuration.
    """
    comments, literals = comments_of(config_text), literals_of(config_text)
    rows = []
    for group, model in groups().items():
        if model is UserSettings:
            continue
        values = getattr(settings, group)
        for name in model.model_fields:
            value = _plain(getattr(values, name))
            rows.append(
                {
                    "name": name,
                    "group": group,
                    "value": value,
                    "text": literals.get(name, value),
                    "unit": _described(name)[0],
                    "range": _described(name)[1],
                    "restart": name in NEEDS_RESTART,
                    "about": comments.get(name, ""),
                }
            )
    return rows


def comments_of(config_text: str) -> dict[str, str]:
    """The comment above each setting; settings that follow one another share the one above the first."""
    try:
        parsed = ParsedText(config_text)
    except (SyntaxError, ValueError):
        return {}
    lines, comments, ends_before = [line.decode() for line in parsed.lines], dict[str, str](), dict[int, str]()
    for node in parsed.tree.body:
        if isinstance(node, ast.Assign):
            found: list[str] = []
            at = node.lineno - 2
            while at >= 0 and lines[at].startswith("#"):
                found.insert(0, lines[at].lstrip("#").strip())
                at -= 1
            about = " ".join(line for line in found if not line.startswith(("---", "===")))
            about = about or ends_before.get(node.lineno - 1, "")
            name = ast.unparse(node.targets[0])
            comments[name] = about or comments.get(name, "")
            ends_before[node.end_lineno or node.lineno] = about
    return comments


@cache
def _described(name: str) -> tuple[str, str]:
    return describe_unit(name), describe_range(name)


def _plain(value: Any) -> str:
    """A value as a literal; models as dicts."""
    return repr(_dumped(value))


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return {key: entry for key, entry in value.model_dump().items() if entry not in ("", None)}
    if isinstance(value, tuple | list):
        return tuple(map(_dumped, value))
    return value if isinstance(value, bool | int | float | str | dict | None) else str(value)
