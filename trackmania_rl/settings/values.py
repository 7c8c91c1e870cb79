"""Setting types and ranges, parts, and the base class for groups."""

from __future__ import annotations

import functools
import itertools
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from trackmania_rl.files import MOST_LETTERS, NAME_PATTERN, RUN_NAME_PATTERN, check_file_name

PART_NAME: Final = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*(\(\.\.\.\))?$")
"""module:attribute, or module:attribute(...)"""
BY_NAME_ONLY: Final = "(...)"
"""Ending for a part with arguments that TOML does not have."""


@dataclass(frozen=True)
class NamedPart:
    """Importable object's name, "module:attribute", with `functools.partial` arguments.

    A function or class among the arguments is a `NamedPart` without arguments.
    """

    name: str
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.keywords.items()]
        return f"{self.name}({', '.join(given)})" if given else self.name


def as_part(value: Any) -> str | NamedPart:
    """Return the part for a name, a function, a class or a `functools.partial`. Raise `ValueError` for others."""
    part = _with_parts(value)
    if isinstance(part, NamedPart):
        return part if part.args or part.keywords else part.name
    if isinstance(part, str) and PART_NAME.match(part):
        return part
    raise ValueError('write it as "module:attribute", or as a function, a class or a functools.partial of one of these')


def _with_parts(value: Any) -> Any:
    """Make a `NamedPart` from a function, a class, a partial, or the plain values that `model_dump` makes."""
    if isinstance(value, types.FunctionType | type):
        return NamedPart(_name_of(value))
    if isinstance(value, functools.partial):
        name = _name_of(value.func)
        args = value.args
        keywords = value.keywords
    elif isinstance(value, Mapping) and value.keys() == {"name", "args", "keywords"}:
        name = value["name"]
        args = value["args"]
        keywords = value["keywords"]
        is_name = isinstance(name, str) and PART_NAME.match(name)
        if not is_name or not isinstance(args, tuple | list) or not isinstance(keywords, Mapping):
            raise ValueError(f"{name!r} with the arguments {args!r} and {keywords!r} is no part")
    else:
        return value
    return NamedPart(name, tuple(map(_with_parts, args)), {key: _with_parts(entry) for key, entry in keywords.items()})


def _name_of(part: Any) -> str:
    module = getattr(part, "__module__", "")
    name = getattr(part, "__qualname__", "")
    if module.startswith("<"):  # defined in the configuration file itself
        raise ValueError(
            f"{name} is defined in the configuration file, where other processes cannot import it: move it to a module "
            f'beside that file, my_parts.py, and write "my_parts:{name}"'
        )
    if not name.isidentifier():
        raise ValueError(f"{name or part!r} has no name in its module, by which other processes could import it")
    return f"{module}:{name}"


class Unit(NamedTuple):
    """A setting's unit."""

    symbol: str


RESTART: Final = "restart"
"""Mark for a setting that shapes networks, buffers or processes: a change waits for the run's next start."""
OF_DRIVER: Final = "driver"
"""Mark for a setting that shapes a network, its inputs and outputs: it is stored with the weights."""
OF_MEMORY: Final = "memory"
"""Mark for a setting that shapes the replay memory."""
MEANING: Final = "meaning"
"""Mark for a setting whose change gives another meaning to what a network has learned."""
OF_MACHINE: Final = "machine"
"""Mark for one machine's settings, such as a port or a folder. Other machines that play for a run have other values."""
OF_COLLECTOR: Final = "collector"
"""Mark for a setting that a running collector depends on, beside the driver's."""
T = TypeVar("T")
Restart = Annotated[T, RESTART]
Machine = Annotated[T, RESTART, OF_MACHINE]
Collector = Annotated[T, RESTART, OF_COLLECTOR]
Meaning = Annotated[T, MEANING]
Driver = Annotated[T, RESTART, OF_DRIVER, MEANING]
Shape = Annotated[T, RESTART, OF_DRIVER]
Stored = Annotated[T, RESTART, OF_MEMORY]

IN_WORDS: Final = "inWords"
"""Key in a JSON schema: the text on what is allowed, instead of a regular expression."""
LARGEST_INT: Final = 2**63 - 1
"""Largest integer in tensors and loggers."""
LAST_PORT: Final = 65535

NONE: Final = "none"
"""None in TOML, which has no null."""

OrNone = Annotated[T | None, BeforeValidator(lambda value: None if str(value).lower() == NONE else value)]

# The ranges are here once; the errors and `--list-settings` quote them.
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST_INT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST_INT)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
ShareBelow1 = Annotated[float, Field(ge=0, lt=1)]
Discount = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[PositiveFloat, Unit("s")]
Milliseconds = Annotated[PositiveInt, Unit("ms")]
Actions = Annotated[PositiveInt, Unit("actions")]
Pixels = Annotated[int, Field(ge=0, le=4096), Unit("px")]
Port = Annotated[int, Field(ge=1024, le=LAST_PORT)]
_DEVICES: Final = {IN_WORDS: "'auto', 'cpu', 'cuda' or 'cuda:N' (GPU N)"}
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$", json_schema_extra=_DEVICES)]
_RUN_NAMES: Final = {IN_WORDS: f"at most {MOST_LETTERS} letters, digits, dots, - and _"}
RunName = Annotated[
    str,
    Field(pattern=RUN_NAME_PATTERN, max_length=MOST_LETTERS, json_schema_extra=_RUN_NAMES),
    AfterValidator(check_file_name),
]
FileName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MOST_LETTERS), AfterValidator(check_file_name)]
"""Map or driver name, part of file names."""
BlockStatistics = tuple[tuple[Finite, ...], tuple[PositiveFloat, ...]]
"""One observation block's (means, standard deviations)."""


def _as_schedule(value: Any) -> Any:
    return ((0, value),) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _ascending(schedule: tuple[tuple[int, T], ...]) -> tuple[tuple[int, T], ...]:
    if schedule[0][0] != 0 or any(before >= after for (before, _), (after, _) in itertools.pairwise(schedule)):
        raise ValueError("a schedule starts at frame 0 and its frame counts ascend")
    return schedule


Schedule = Annotated[
    tuple[tuple[NonNegativeInt, T], ...],
    Field(min_length=1),
    BeforeValidator(_as_schedule),
    AfterValidator(_ascending),
]
"""((frame count, value), ...), or a number. Each setting has an interpolation rule."""

_SEVERAL: Final = BeforeValidator(lambda value: value if isinstance(value, tuple | list) else (value,))
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], _SEVERAL]
"""Any number of texts; a single one needs no tuple."""
_PART_SCHEMA: Final = {"type": "string", IN_WORDS: '"module:attribute"'}
Part = Annotated[str | NamedPart, PlainValidator(as_part), WithJsonSchema(_PART_SCHEMA)]
"""Part: "module:attribute", a function, a class or a `functools.partial`. `trackmania_rl.parts` imports it."""
Parts = Annotated[tuple[Part, ...], _SEVERAL]
Loggers = Annotated[tuple[Literal["tensorboard", "csv", "wandb", "mlflow", "trackio"] | Part, ...], _SEVERAL]

FARTHEST_ROW: Final = 1000
"""Largest view shift."""


def shifts_of(shift: int | str | tuple[int, ...]) -> tuple[int, ...]:
    """List the rows in a view's shift, ascending: 0 is the state's row, -1 the one before.

    A shift is a row; rows; a range with both ends, "-3:0"; or every third row of it, "-9:0:3". Raise `ValueError` for
    others.
    """
    shifts: list[int] = []
    if isinstance(shift, int):
        shifts = [shift]
    elif isinstance(shift, tuple) and len(set(shift)) == len(shift) <= 2 * FARTHEST_ROW:
        shifts = sorted(shift)
    elif isinstance(shift, str) and (match := re.fullmatch(r"(-?\d{1,9}):(-?\d{1,9})(?::([1-9]\d{0,8}))?", shift)):
        first = int(match[1])
        last = int(match[2])
        step = int(match[3] or 1)
        if last - first <= 2 * FARTHEST_ROW:
            shifts = list(range(last, first - 1, -step))[::-1]
    if not shifts or max(map(abs, shifts)) > FARTHEST_ROW:
        raise ValueError(
            f"a shift is a row from -{FARTHEST_ROW} to {FARTHEST_ROW} (-1 is the one before), a list of rows, each "
            'once: [-4, -1], or a range of rows: "-3:0", both ends included, or every third of them: "-9:0:3"'
        )
    return tuple(shifts)


Shift = Annotated[int | str | tuple[int, ...], AfterValidator(lambda shift: shifts_of(shift) and shift)]


class Group(BaseModel):
    """Settings group: frozen, and without unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)
