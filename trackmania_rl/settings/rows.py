"""All settings, with value, unit, range and description: for the live page, the documentation and the terminal."""

from __future__ import annotations

import re
import textwrap
from functools import cache
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import NEEDS_RESTART, Settings, UserSettings, groups
from trackmania_rl.settings.loading import OTHER_WORDS
from trackmania_rl.settings.ranges import describe_range, describe_unit

INDENT: Final = "      "


def settings_rows(settings: Settings, has_private: bool = False) -> list[dict[str, Any]]:
    """List the settings.

    Args:
        settings: the settings.
        has_private: whether the settings of this machine and its owner are listed, too.

    Returns:
        `name`, `group`, `value` as a Python literal, `unit`, `range`, `restart`
        (whether a change waits for the next start), `is_default`, and `about`, the description.
    """
    rows = []
    for group, model in groups().items():
        if model is UserSettings and not has_private:
            continue
        values = getattr(settings, group)
        for name, field in model.model_fields.items():
            value = _plain(getattr(values, name))
            rows.append(
                {
                    "name": name,
                    "group": group,
                    "value": value,
                    "unit": _described(name)[0],
                    "range": _described(name)[1],
                    "restart": name in NEEDS_RESTART,
                    "is_default": field.is_required() or getattr(values, name) == field.default,
                    "about": " ".join((field.description or "").split()),
                }
            )
    return rows


def settings_list(settings: Settings, word: str = "", width: int = 80) -> str:
    """List the settings by group for the terminal, with the first sentence of each description.

    Args:
        settings: to list; those that differ from their defaults are marked.
        word: restricts the list to settings with this word in their group, name or description.
        width: of a line.

    Raises:
        UserError: if no setting has the word.
    """
    rows = [
        row
        for row in settings_rows(settings, has_private=True)
        if any(word.lower() in row[key].lower() for key in ("name", "group", "about"))
        or OTHER_WORDS.get(word) == row["name"]
    ]
    if not rows:
        raise UserError(f"--list-settings {word}: no setting has this word in its name or description")
    lines = ["* differs from the default"]
    for group, model in groups().items():
        of_group = [row for row in rows if row["group"] == group]
        if of_group:
            lines += ["", *textwrap.wrap(f"{group}: {model.__doc__}", width)]
        for row in of_group:
            mark = " " if row["is_default"] else "*"
            unit = row["unit"] and f" {row['unit']}"
            lines += textwrap.wrap(f"{mark} {row['name']} = {row['value']}{unit}", width, subsequent_indent=INDENT)
            first_sentence = re.split(r"(?<=\.) ", row["about"], maxsplit=1)[0]
            lines.append(INDENT + textwrap.shorten(first_sentence, width - len(INDENT), placeholder=" ..."))
            allowed = f"Allowed: {row['range']}{'; a change waits for the next start' if row['restart'] else ''}."
            lines += textwrap.wrap(allowed, width, initial_indent=INDENT, subsequent_indent=INDENT)
    return "\n".join(lines)


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
