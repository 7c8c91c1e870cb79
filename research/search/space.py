"""Space of a search: settings with ranges from a TOML file, validated against the typed settings.

"lr_schedule*" = { low = 0.3, high = 3.0, log = true }    # every value of the schedule, times this
batch_size = { low = 32, high = 256, log = true }
use_ddqn = { choices = [true, false] }
"""

from __future__ import annotations

import itertools
import math
import random
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError, model_validator

from benchmarks.driving.runs import OWN_TO_EACH_RUN
from trackmania_rl.errors import UserError
from trackmania_rl.settings import Settings, SettingsError, load_settings, settings_from_flat
from trackmania_rl.settings.groups import SHAPING_SETTINGS, groups

SCALED: Final = "*"
"""Ending of a name whose schedule is multiplied."""
PRIVATE_GROUP: Final = "user"
MOST_CHECKED: Final = 1024
"""Combinations of the ends of ranges that are validated; of more, so many are drawn."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Range(_Strict):
    """Numbers from `low` to `high`, both included; with `log` drawn evenly over their logarithms."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _ascends(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low = {self.low} is not below high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low}, but log = true is for numbers above 0")
        return self

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values to validate."""
        return self.low, self.high


class Choices(_Strict):
    """Values to choose from."""

    choices: list[Any] = Field(min_length=2)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values to validate."""
        return tuple(self.choices)


def _kind(entry: Any) -> str:
    return "choices" if isinstance(entry, dict) and "choices" in entry else "range"


_Entry = Annotated[Annotated[Range, Tag("range")] | Annotated[Choices, Tag("choices")], Discriminator(_kind)]
_ENTRIES: Final = TypeAdapter(dict[str, _Entry])


@dataclass(frozen=True)
class Space:
    """Space of a search."""

    entries: Mapping[str, Range | Choices]  # by setting; `SCALED` follows the name of a multiplied schedule
    base: Mapping[str, Any]  # every setting of the configuration, schedules not stretched

    def whole_numbers(self, name: str) -> bool:
        """Return whether an entry takes only whole numbers."""
        return not name.endswith(SCALED) and isinstance(self.base[name], int) and not isinstance(self.base[name], bool)

    def settings_of(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trial's settings from the values drawn for each entry: of a multiplied schedule, the factor."""
        values = {}
        for name, value in drawn.items():
            if name.endswith(SCALED):
                setting = name.removesuffix(SCALED)
                values[setting] = scaled(self.base[setting], value)
            else:
                values[name] = value
        return values

    def within(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Clip values to their ranges and round whole numbers."""
        return {name: self._within(name, value) for name, value in drawn.items()}

    def _within(self, name: str, value: Any) -> Any:
        entry = self.entries.get(name)
        if not isinstance(entry, Range):
            return value
        held = min(max(value, entry.low), entry.high)
        return round(held) if self.whole_numbers(name) else float(held)


def scaled(schedule: tuple[tuple[int, Any], ...], factor: float) -> tuple[tuple[int, Any], ...]:
    """Multiply each value of a schedule; whole numbers stay whole."""
    return tuple(
        (frames, round(value * factor) if isinstance(value, int) else value * factor) for frames, value in schedule
    )


def read_space(file: Path, config_file: Path, overrides: tuple[str, ...], *, clones: bool) -> Space:
    """Read and validate a space.

    Args:
        file: TOML, as above.
        config_file: the configuration to search around.
        overrides: `NAME=VALUE` texts of all trials.
        clones: trials continue from checkpoints of others (PBT), so network shapes cannot be searched.

    Raises:
        UserError: if a name is unknown or not to be searched, a value is out of its setting's range, or two do not
            fit together.
    """
    base = load_settings(config_file, (*overrides, "schedule_stretch=1.0"))
    entries = _read_entries(file)
    space = Space(entries, base.flat())
    problems = [problem for name in entries if (problem := _problem_of(name, space, base, clones))]
    if problems:
        raise UserError(f"{file}: {'; '.join(problems)}")
    for drawn in _corners(space):
        try:
            settings_from_flat({**space.base, **space.settings_of(drawn)}, str(file))
        except SettingsError as error:
            raise UserError(f"{error} (with {text_of(drawn)})") from error
    return space


def text_of(drawn: Mapping[str, Any]) -> str:
    """Return drawn values in one line."""
    return ", ".join(
        f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}" for name, value in drawn.items()
    )


def _read_entries(file: Path) -> dict[str, Range | Choices]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--space {file}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"--space {file}: {error}") from error
    if not content:
        raise UserError(f"--space {file}: names no setting; write, for example, batch_size = {{low = 32, high = 256}}")
    try:
        return _ENTRIES.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(
            f"--space {file}: {first['loc'][0]}: {message}; write {{low = 0.1, high = 10.0, log = true}} or "
            "{choices = [1, 3]}"
        ) from error


def _problem_of(name: str, space: Space, base: Settings, clones: bool) -> str | None:
    """Return the error of an entry's name or kind, if any."""
    setting, entry = name.removesuffix(SCALED), space.entries[name]
    if setting not in space.base:
        try:
            settings_from_flat({**space.base, setting: None})
        except SettingsError as error:  # which names the nearest one
            return str(error).removeprefix("these settings: ")
    if setting in OWN_TO_EACH_RUN or setting in groups()[PRIVATE_GROUP].model_fields:
        return f"{setting} is each trial's or each machine's own: leave it out"
    if clones and setting in SHAPING_SETTINGS:
        return (
            f"{setting} shapes networks or memory, which with pbt are copied from one trial to another: leave it out, "
            "or take --scheduler asha or random"
        )
    if name.endswith(SCALED):
        if not setting.endswith("_schedule"):
            return f"{name}: {setting} is no schedule: leave out the star"
        if setting in space.entries:
            return f"{setting} is there twice, with a star and without"
        return None if isinstance(entry, Range) else f"{name}: a schedule is multiplied by a range, low and high"
    if isinstance(entry, Range):
        value = space.base[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            schedule = f', or multiply it: "{name}*"' if name.endswith("_schedule") else ""
            return f"{name} = {value!r:.60} is no number: name its choices{schedule}"
        if space.whole_numbers(name) and any(isinstance(end, float) for end in entry.ends):
            return f"{name} is a whole number: write low and high without a decimal point"
    return None


def _corners(space: Space) -> Iterator[dict[str, Any]]:
    """Yield combinations of the entries' ends."""
    names, ends = list(space.entries), [entry.ends for entry in space.entries.values()]
    combinations: Iterable[tuple[Any, ...]] = itertools.product(*ends)
    if math.prod(map(len, ends)) > MOST_CHECKED:
        rng = random.Random(0)
        combinations = (tuple(map(rng.choice, ends)) for _ in range(MOST_CHECKED))
    for values in combinations:
        yield dict(zip(names, values, strict=True))
