"""Range and unit of a setting, in words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trackmania_rl.settings.groups import groups
from trackmania_rl.settings.values import IN_WORDS, Unit

_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "True or False", "null": "None"}
_LIMITS = {
    "exclusiveMinimum": "> {}",
    "minimum": ">= {}",
    "exclusiveMaximum": "< {}",
    "maximum": "<= {}",
    "multipleOf": "a multiple of {}",
    "maxLength": "at most {} characters",
}


def describe_range(name: str) -> str:
    """Say in words what values a setting accepts."""
    model, _ = _field(name)
    return _in_words(_properties(model)[name])


def describe_unit(name: str) -> str:
    """Give the symbol of a setting's unit, "" without one."""
    _, field = _field(name)
    return next((mark.symbol for mark in field.metadata if isinstance(mark, Unit)), "")


@cache
def _properties(model: type[BaseModel]) -> dict[str, Any]:
    """A group's JSON schema, setting by setting."""
    return model.model_json_schema(mode="validation")["properties"]


def _field(name: str) -> tuple[type[BaseModel], FieldInfo]:
    return next((model, model.model_fields[name]) for model in groups().values() if name in model.model_fields)


def _in_words(schema: Mapping[str, Any]) -> str:
    """Say a JSON schema, as pydantic makes it of a setting, in a few words."""
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
