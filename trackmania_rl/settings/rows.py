"""All settings, with value, unit, range and description: for the live page, the documentation and the terminal."""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.editing import literals_of
from trackmania_rl.settings.groups import NEEDS_RESTART, Settings, UserSettings, groups
from trackmania_rl.settings.loading import (
    COMPANION_FILES,
    DEFAULTS_FILE,
    OTHER_WORDS,
    changed_settings,
    load_settings,
)
from trackmania_rl.settings.ranges import describe_range, describe_unit
from trackmania_rl.settings.syntax import ParsedText

INDENT: Final = "      "


def settings_rows(settings: Settings, config_text: str, has_private: bool = False) -> list[dict[str, Any]]:
    """List the settings.

    Args:
        settings: in force, or as the file has them.
        config_text: the run's config.py.
        has_private: whether the settings of this machine and its owner are listed, too.

    Returns:
        `name`, `group`, `value` as a Python literal, `text` (what an edit begins with), `unit`, `range`, `restart`
        (whether a change waits for the next start) and `about`, the comment in the configuration.
    """
    comments, literals = comments_of(config_text), literals_of(config_text)
    rows = []
    for group, model in groups().items():
        if model is UserSettings and not has_private:
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


def settings_list(settings: Settings, word: str = "", width: int = 80) -> str:
    """List the settings by group for the terminal, with the first sentence of each description.

    Args:
        settings: to list; those that differ from the configuration that ships are marked.
        word: restricts the list to settings with this word in their group, name or description.
        width: of a line.

    Raises:
        UserError: if no setting has the word.
    """
    rows = [
        row
        for row in settings_rows(settings, text_with_companions(DEFAULTS_FILE), has_private=True)
        if any(word.lower() in row[key].lower() for key in ("name", "group", "about"))
        or OTHER_WORDS.get(word) == row["name"]
    ]
    if not rows:
        raise UserError(f"--list-settings {word}: no setting has this word in its name or description")
    changed = changed_settings(load_settings(DEFAULTS_FILE), settings)
    lines = [f"* differs from {DEFAULTS_FILE.parent.name}/{DEFAULTS_FILE.name}"]
    for group, model in groups().items():
        of_group = [row for row in rows if row["group"] == group]
        if of_group:
            lines += ["", *textwrap.wrap(f"{group}: {model.__doc__}", width)]
        for row in of_group:
            mark = "*" if row["name"] in changed else " "
            unit = row["unit"] and f" {row['unit']}"
            lines += textwrap.wrap(f"{mark} {row['name']} = {row['value']}{unit}", width, subsequent_indent=INDENT)
            first_sentence = re.split(r"(?<=\.) ", row["about"], maxsplit=1)[0]
            lines.append(INDENT + textwrap.shorten(first_sentence, width - len(INDENT), placeholder=" ..."))
            allowed = f"Allowed: {row['range']}{'; a change waits for the next start' if row['restart'] else ''}."
            lines += textwrap.wrap(allowed, width, initial_indent=INDENT, subsequent_indent=INDENT)
    return "\n".join(lines)


def text_with_companions(config_file: Path) -> str:
    """Join the texts of a configuration file and its companions."""
    files = (*map(config_file.with_name, COMPANION_FILES), config_file)
    return "\n".join(file.read_text(encoding="utf-8-sig") for file in files)


def comments_of(config_text: str) -> dict[str, str]:
    """Collect the comment above each setting; settings that follow one another share the one above the first."""
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
