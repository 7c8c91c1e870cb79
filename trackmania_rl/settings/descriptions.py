"""Setting descriptions, for the terminal, the documentation, the page and settings.toml."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

from pydantic import BaseModel

from trackmania_rl.errors import UserError
from trackmania_rl.settings.groups import FIELDS, NEEDS_RESTART, Settings, groups
from trackmania_rl.settings.values import IN_WORDS, LARGEST_INT, Unit

OTHER_WORDS: Final = {
    "learning_rate": "lr_schedule",
    "lr": "lr_schedule",
    "gamma": "gamma_schedule",
    "epsilon": "epsilon_schedule",
    "buffer_size": "memory_size_schedule",
    "learning_starts": "memory_size_start_learn_schedule",
    "tau": "soft_update_tau",
    "max_grad_norm": "clip_grad_norm",
    "n_step": "n_steps",
    "device": "torch_device",
    "total_timesteps": "--max-frames",
    "max_steps": "--max-frames N for the training, horizon for an episode",
    "train_freq": "number_times_single_memory_is_used_before_discard (uses of a transition)",
    "target_update": "number_memories_trained_on_between_target_network_updates (in transitions)",
    "n_envs": "n_collectors x games_per_collector",
    "num_envs": "n_collectors x games_per_collector",
}
"""Other libraries' words, and ours: a setting or option that takes the same value, or a hint."""
INDENT: Final = "      "
_WORDS: Final = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "True or False",
    "null": "None",
}
_LIMITS: Final = {
    "exclusiveMinimum": "> {}",
    "minimum": ">= {}",
    "exclusiveMaximum": "< {}",
    "maximum": "<= {}",
    "multipleOf": "a multiple of {}",
}


def describe(name: str) -> tuple[str, str, str]:
    """Return a setting's description, unit symbol ("" without one) and accepted values."""
    unit = next((mark.symbol for mark in FIELDS[name].metadata if isinstance(mark, Unit)), "")
    return " ".join((FIELDS[name].description or "").split()), unit, describe_range(name)


def hint(name: str, options: Iterable[str] = ()) -> str:
    """Return "; did you mean ...?" with our word for another library's or a misspelt one, or ""."""
    words = OTHER_WORDS | {option.strip("-").replace("-", "_"): option for option in options}
    match = difflib.get_close_matches(name, [*words, *FIELDS], n=1, cutoff=0.5)
    return f"; did you mean {words.get(match[0], match[0])}?" if match else ""


@cache
def describe_range(name: str) -> str:
    """Describe a setting's accepted values."""
    model = next(model for model in groups().values() if name in model.model_fields)
    return _in_words(_properties(model)[name])


def _literal(value: Any) -> str:
    """Write a value as a Python literal, which `--set` takes."""
    return repr(_dumped(value))


def _dumped(value: Any) -> Any:
    """Return a value whose `repr` is a literal; models become dicts."""
    if isinstance(value, BaseModel):
        return {key: entry for key, entry in value.model_dump().items() if entry not in ("", None)}
    if isinstance(value, tuple | list):
        return tuple(map(_dumped, value))
    return value if isinstance(value, bool | int | float | str | dict | None) else str(value)


def settings_rows(
    settings: Settings, has_private: bool = False, text_of: Callable[[Any], str] = _literal
) -> list[dict[str, Any]]:
    """List settings with values as texts; this machine's settings only with `has_private`."""
    return [
        {
            "name": name,
            "group": group,
            "value": text_of(value),
            "unit": unit,
            "range": allowed,
            "restart": name in NEEDS_RESTART,
            "default": "" if FIELDS[name].is_required() else text_of(FIELDS[name].default),
            "is_default": FIELDS[name].is_required() or value == FIELDS[name].default,
            "about": about,
        }
        for group, values in settings
        if has_private or group != "user"
        for name, value in values
        for about, unit, allowed in [describe(name)]
    ]


def settings_list(settings: Settings, word: str = "", width: int = 80) -> str:
    """List settings by group for the terminal, and mark those that differ from the defaults.

    Only settings with `word` in group, name or description are listed. Raise `UserError` if there are none.
    """
    lines = ["* differs from the default"]
    last_group = ""
    for row in settings_rows(settings, has_private=True):
        texts = f"{row['name']}\n{row['group']}\n{row['about']}".lower()
        if word.lower() not in texts and row["name"] not in re.findall(r"\w+", OTHER_WORDS.get(word, "")):
            continue
        if row["group"] != last_group:
            last_group = row["group"]
            lines += ["", *textwrap.wrap(f"{last_group}: {groups()[last_group].__doc__}", width)]
        setting = f"{' ' if row['is_default'] else '*'} {row['name']} = {row['value']} {row['unit']}".rstrip()
        first_sentence = re.split(r"(?<=\.) ", row["about"], maxsplit=1)[0]
        allowed = f"Allowed: {row['range']}{'; a change waits for the next start' if row['restart'] else ''}."
        lines += textwrap.wrap(setting, width, subsequent_indent=INDENT)
        lines.append(INDENT + textwrap.shorten(first_sentence, width - len(INDENT), placeholder=" ..."))
        lines += textwrap.wrap(allowed, width, initial_indent=INDENT, subsequent_indent=INDENT)
    if not last_group:
        raise UserError(f"--list-settings {word}: no setting has this word in its name or description")
    return "\n".join(lines)


@cache
def _properties(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(mode="validation")["properties"]


def _in_words(schema: Mapping[str, Any]) -> str:
    if IN_WORDS in schema:
        return str(schema[IN_WORDS])
    if "anyOf" in schema:
        return " or ".join(map(_in_words, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(repr(value) for value in schema.get("enum", [schema.get("const")]))
    if "prefixItems" in schema:
        return f"({', '.join(map(_in_words, schema['prefixItems']))})"
    if schema.get("type") == "array":
        return f"({_in_words(schema['items'])}, ...)"
    limits = [text.format(schema[key]) for key, text in _LIMITS.items() if schema.get(key, LARGEST_INT) != LARGEST_INT]
    return f"{_WORDS.get(schema.get('type', ''), 'as described')} {', '.join(limits)}".rstrip()
