"""Descriptions of settings, for the terminal, the documentation, the page and settings.toml."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import NEEDS_RESTART, OTHER_WORDS, Settings, UserSettings, groups
from trackmania_rl.settings.values import IN_WORDS, Unit

INDENT: Final = "      "
_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "True or False", "null": "None"}
_LIMITS = {
    "exclusiveMinimum": "> {}",
    "minimum": ">= {}",
    "exclusiveMaximum": "< {}",
    "maximum": "<= {}",
    "multipleOf": "a multiple of {}",
    "maxLength": "at most {} characters",
}


def describe(name: str) -> str:
    """Return the description of a setting."""
    return " ".join((_field(name)[1].description or "").split())


@cache
def describe_range(name: str) -> str:
    """Describe the accepted values of a setting."""
    return _in_words(_properties(_field(name)[0])[name])


def describe_unit(name: str) -> str:
    """Return the symbol of a setting's unit, "" without one."""
    return next((mark.symbol for mark in _field(name)[1].metadata if isinstance(mark, Unit)), "")


def settings_rows(settings: Settings, has_private: bool = False) -> list[dict[str, Any]]:
    """List settings, those of this machine and its user only with `has_private`.

    Returns:
        `name`, `group`, `value` as a Python literal, `unit`, `range`, `restart` (whether a change needs one),
        `is_default`, and `about`, the description.
    """
    return [
        {
            "name": name,
            "group": group,
            "value": repr(_dumped(value)),
            "unit": describe_unit(name),
            "range": describe_range(name),
            "restart": name in NEEDS_RESTART,
            "is_default": field.is_required() or value == field.default,
            "about": describe(name),
        }
        for group, model in groups().items()
        if has_private or model is not UserSettings
        for name, field in model.model_fields.items()
        for value in [getattr(getattr(settings, group), name)]
    ]


def settings_list(settings: Settings, word: str = "", width: int = 80) -> str:
    """List settings by group for the terminal, and mark those that differ from their defaults.

    Args:
        settings: to list.
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
def _properties(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a group by setting."""
    return model.model_json_schema(mode="validation")["properties"]


def _field(name: str) -> tuple[type[BaseModel], FieldInfo]:
    return next((model, model.model_fields[name]) for model in groups().values() if name in model.model_fields)


def _in_words(schema: Mapping[str, Any]) -> str:
    """Describe the JSON schema of a setting."""
    if IN_WORDS in schema:
        return str(schema[IN_WORDS])
    if "anyOf" in schema:
        return " or ".join(_in_words(choice) for choice in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(repr(value) for value in schema.get("enum", [schema.get("const")]))
    if "prefixItems" in schema:
        return "(" + ", ".join(_in_words(item) for item in schema["prefixItems"]) + ")"
    if schema.get("type") == "array":
        return f"({_in_words(schema['items'])}, ...)"
    word = _WORDS.get(schema.get("type", ""), "as described")
    limits = ", ".join(text.format(schema[key]) for key, text in _LIMITS.items() if key in schema)
    return f"{word} {limits}".rstrip()


def _dumped(value: Any) -> Any:
    """Return a value whose `repr` is a literal; models become dicts."""
    if isinstance(value, BaseModel):
        return {key: entry for key, entry in value.model_dump().items() if entry not in ("", None)}
    if isinstance(value, tuple | list):
        return tuple(map(_dumped, value))
    return value if isinstance(value, bool | int | float | str | dict | None) else str(value)
