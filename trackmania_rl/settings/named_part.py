"""Names of parts of a configuration, which can be compared, pickled and written."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

PART_NAME: Final = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*(\(\.\.\.\))?$")
"""module:attribute, or module:attribute(...)"""
BY_NAME_ONLY: Final = "(...)"
"""Ending of a part with arguments that TOML does not have."""
FIELDS: Final = {"name", "args", "keywords"}


@dataclass(frozen=True)
class NamedPart:
    """Name of an importable object, with the arguments of a `functools.partial`.

    Attributes:
        name: "module:attribute".
        args: positional arguments.
        keywords: keyword arguments. A function or class among the arguments is a `NamedPart` without arguments.
    """

    name: str
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.keywords.items()]
        return f"{self.name}({', '.join(given)})" if given else self.name


def as_part(value: Any) -> str | NamedPart:
    """Return the name of a part: a name, a function, a class or a `functools.partial`.

    Raises:
        ValueError: if it is anything else, or cannot be imported by other processes.
    """
    if isinstance(value, functools.partial):
        keywords = {name: _named(argument) for name, argument in value.keywords.items()}
        return NamedPart(_name_of(value.func), tuple(map(_named, value.args)), keywords)
    if isinstance(value, types.FunctionType | type):
        return _name_of(value)
    part = _of_plain_values(value)
    if isinstance(part, NamedPart) or (isinstance(part, str) and PART_NAME.match(part)):
        return part
    raise ValueError('write it as "module:attribute", or as a function, a class or a functools.partial of one of these')


def _named(argument: Any) -> Any:
    if isinstance(argument, types.FunctionType | type):
        return NamedPart(_name_of(argument))
    return as_part(argument) if isinstance(argument, functools.partial) else argument


def _name_of(part: Any) -> str:
    module, name = getattr(part, "__module__", ""), getattr(part, "__qualname__", "")
    if module.startswith("<"):  # defined in the configuration file itself
        raise ValueError(
            f"{name} is defined in the configuration file, where other processes cannot import it: move it to a module "
            f'beside that file, my_parts.py, and write "my_parts:{name}"'
        )
    if not name.isidentifier():
        raise ValueError(f"{name or part!r} has no name in its module, by which other processes could import it")
    return f"{module}:{name}"


def _of_plain_values(value: Any) -> Any:
    """Make parts of plain values, as `Settings.model_dump` returns them."""
    if not isinstance(value, Mapping) or value.keys() != FIELDS:
        return value
    name, args, keywords = value["name"], value["args"], value["keywords"]
    if not (isinstance(name, str) and PART_NAME.match(name)) or not isinstance(args, tuple | list):
        raise ValueError(f"{name!r} with the arguments {args!r} is no part")
    if not isinstance(keywords, Mapping):
        raise ValueError(f"{name!r} with the named arguments {keywords!r} is no part")
    return NamedPart(
        name, tuple(map(_of_plain_values, args)), {key: _of_plain_values(value) for key, value in keywords.items()}
    )


def names_in(part: str | NamedPart) -> list[str]:
    """List the imports of a part: its own name and those of its arguments."""
    if isinstance(part, str):
        return [part]
    arguments = (*part.args, *part.keywords.values())
    return [part.name, *(name for value in arguments if isinstance(value, NamedPart) for name in names_in(value))]
