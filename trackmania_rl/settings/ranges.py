"""What values a setting accepts, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trackmania_rl.settings.groups import groups

_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "True or False", "null": "None"}
_LIMITS = {
    "exclusiveMinimum": "> {}",
    "minimum": ">= {}",
    "exclusiveMaximum": "< {}",
    "maximum": "<= {}",
    "multipleOf": "a multiple of {}",
    "maxLength": "at most {} characters",
    "pattern": "matching {}",
}


def describe_range(name: str) -> str:
    """What values a setting accepts, in words; for `train.py --list-settings`."""
    for model in groups().values():
        if name in model.model_fields:
            return _in_words(model.model_json_schema(mode="validation")["properties"][name])
    raise KeyError(name)


def _in_words(schema: Mapping[str, Any]) -> str:
    """A JSON schema, as pydantic makes it of a setting, in a few words."""
    if "anyOf" in schema:
        return " or ".join(_in_words(choice) for choice in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(repr(value) for value in schema.get("enum", [schema.get("const")]))
    if "prefixItems" in schema:
        return "(" + ", ".join(_in_words(item) for item in schema["prefixItems"]) + ")"
    if schema.get("type") == "array":
        return f"({_in_words(schema['items'])}, ...)"
    word = _WORDS.get(schema.get("type", ""), "see the file")
    limits = ", ".join(text.format(schema[key]) for key, text in _LIMITS.items() if key in schema)
    return f"{word} {limits}".rstrip()
