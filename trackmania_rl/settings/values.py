"""Types and ranges of settings, names of parts, and the base class of the groups."""

from __future__ import annotations

import functools
import itertools
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    field_validator,
)

from trackmania_rl.files import MOST_LETTERS, NAME_PATTERN, RUN_NAME_PATTERN, check_file_name

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


@dataclass(frozen=True)
class Unit:
    """Unit of a setting."""

    symbol: str


@dataclass(frozen=True)
class RestartMark:
    """Mark of a setting that shapes networks, buffers or processes: a change waits for the run's next start."""


@dataclass(frozen=True)
class DriverMark:
    """Mark of a setting that defines a network's inputs and outputs: it is stored with the weights."""


RESTART: Final = RestartMark()
OF_DRIVER: Final = DriverMark()
T = TypeVar("T")
Restart = Annotated[T, RESTART]
Driver = Annotated[T, RESTART, OF_DRIVER]


IN_WORDS: Final = "inWords"
"""Key in a JSON schema: the text of what is allowed, in place of a regular expression."""
_PART_SCHEMA: Final = {"type": "string", IN_WORDS: '"module:attribute"'}

# What a value may be. The ranges are here once; the errors and `--list-settings` quote them.
PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[PositiveFloat, Unit("s")]
Milliseconds = Annotated[PositiveInt, Unit("ms")]
Meters = Annotated[PositiveFloat, Unit("m")]
Actions = Annotated[PositiveInt, Unit("actions")]
Fraction = Annotated[float, Field(ge=0, le=1)]
LAST_PORT = 65535
Device = Annotated[
    str,
    Field(
        pattern=r"^(auto|cpu|cuda(:\d+)?)$", json_schema_extra={IN_WORDS: "'auto', 'cpu', 'cuda' or 'cuda:N' (GPU N)"}
    ),
]
FileName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MOST_LETTERS), AfterValidator(check_file_name)]
"""Name of a map or driver, part of the names of files."""
RunName = Annotated[
    str,
    Field(
        pattern=RUN_NAME_PATTERN,
        max_length=MOST_LETTERS,
        json_schema_extra={IN_WORDS: f"at most {MOST_LETTERS} letters, digits, dots, - and _"},
    ),
    AfterValidator(check_file_name),
]
Port = Annotated[int, Field(ge=1024, le=LAST_PORT)]
Schedule = Annotated[tuple[tuple[NonNegativeInt, Finite], ...], Field(min_length=1)]
"""((frame count, value), ...). Each setting has its own rule of interpolation."""
Discount = Annotated[float, Field(gt=0, le=1)]
DiscountSchedule = Annotated[tuple[tuple[NonNegativeInt, Discount], ...], Field(min_length=1)]
LearningRateSchedule = Annotated[tuple[tuple[NonNegativeInt, NonNegativeFloat], ...], Field(min_length=1)]
Part = Annotated[str | NamedPart, PlainValidator(as_part), WithJsonSchema(_PART_SCHEMA)]
"""Part: "module:attribute", a function, a class or a `functools.partial`. `trackmania_rl.parts` imports it."""
Parts = Annotated[
    tuple[Part, ...], BeforeValidator(lambda parts: parts if isinstance(parts, tuple | list) else (parts,))
]
"""Any number of parts; a single one needs no tuple."""
Texts = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(lambda value: value if isinstance(value, tuple | list) else (value,) if value else ()),
]
"""Any number of texts; a single one needs no tuple."""
SHIPPED_LOGGERS: Final = ("tensorboard", "csv", "wandb", "mlflow", "trackio")


def _as_logger(value: Any) -> str | NamedPart:
    if isinstance(value, str) and ":" not in value and value not in SHIPPED_LOGGERS:
        raise ValueError(f'write {", ".join(SHIPPED_LOGGERS)}, or a logger of your own as "module:attribute"')
    return value if value in SHIPPED_LOGGERS else as_part(value)


_LOGGER_IN_WORDS: Final = f'{", ".join(map(repr, SHIPPED_LOGGERS))} or "module:attribute"'
Logger = Annotated[
    str | NamedPart, PlainValidator(_as_logger), WithJsonSchema({"type": "string", IN_WORDS: _LOGGER_IN_WORDS})
]
"""One that ships, or a `Part`."""
Loggers = Annotated[
    tuple[Logger, ...], BeforeValidator(lambda loggers: loggers if isinstance(loggers, tuple | list) else (loggers,))
]
BlockStatistics = tuple[tuple[Finite, ...], tuple[PositiveFloat, ...]]
"""(means, standard deviations) of one block of the observation."""


LARGEST_INT: Final = 2**63 - 1
"""Largest integer of tensors and loggers."""

FARTHEST_ROW = 1000
"""Largest shift of a view."""


def shifts_of(shift: int | str | tuple[int, ...]) -> tuple[int, ...]:
    """List the rows of a view's shift, ascending: 0 is the state's own row, -1 the one before.

    Args:
        shift: one row; or rows, each once; or "-3:0", from the first to the last, both included; or "-9:0:3", every
            third of them, the last one included.

    Raises:
        ValueError: if it is something else.
    """
    if isinstance(shift, int):
        shifts = [shift]
    elif isinstance(shift, tuple):
        shifts = sorted(shift) if len(set(shift)) == len(shift) <= 2 * FARTHEST_ROW else []
    elif (match := re.fullmatch(r"(-?\d{1,9}):(-?\d{1,9})(?::(\d{1,9}))?", shift)) and int(match[3] or 1) > 0:
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
        shifts = [] if last - first > 2 * FARTHEST_ROW else list(range(last, first - 1, -step))[::-1]
    else:
        shifts = []
    if not shifts or max(map(abs, shifts)) > FARTHEST_ROW:
        raise ValueError(
            f"a shift is a row from -{FARTHEST_ROW} to {FARTHEST_ROW} (-1 is the one before), a list of rows, each "
            'once: [-4, -1], or a range of rows: "-3:0", both ends included, or every third of them: "-9:0:3"'
        )
    return tuple(shifts)


def _has_large_int(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_large_int, value))
    return isinstance(value, int) and abs(value) > LARGEST_INT


class Group(BaseModel):
    """Group of settings: frozen, and without unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _number_is_a_constant_schedule(cls, value: Any, info: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return ((0, value),) if is_number and info.field_name.endswith("_schedule") else value

    @field_validator("*", mode="after")
    @classmethod
    def _whole_numbers_fit(cls, value: Any) -> Any:
        if _has_large_int(value):
            raise ValueError(f"a whole number is at most {LARGEST_INT}")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _schedules_ascend(cls, value: Any, info: Any) -> Any:
        if info.field_name.endswith("_schedule"):
            frame_counts = [frames for frames, _ in value]
            if frame_counts[0] != 0 or any(a >= b for a, b in itertools.pairwise(frame_counts)):
                raise ValueError("a schedule starts at frame 0 and its frame counts ascend")
        return value
