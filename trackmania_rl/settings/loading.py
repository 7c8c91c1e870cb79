"""Loading of configuration files as validated settings, and the settings that are stored with a driver."""

from __future__ import annotations

import ast
import contextlib
import difflib
import math
import runpy
import sys
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import ValidationError

from trackmania_rl.errors import UserError
from trackmania_rl.files import read_bounded
from trackmania_rl.settings.descriptions import describe_range
from trackmania_rl.settings.game import MapEntry
from trackmania_rl.settings.groups import (
    DEFAULTS,
    DRIVER_SETTINGS,
    NO_LONGER_READ,
    NOTHING,
    OTHER_WORDS,
    REMOVED,
    Settings,
    groups,
)
from trackmania_rl.settings.values import names_in

USER_FILE = "user_config.py"
"""Paths and names of this machine and its owner."""
COMPANION_FILES = ("inputs_list.py", "state_normalization.py", USER_FILE)
"""Files that are read from the folder of the configuration file, in this order, before it."""
BASED_ON = "based_on"
"""Name in a configuration file for the file beside it that it is based on."""
NONE: Final = "none"
"""None in TOML, which has no null."""
MAY_BE_NONE: Final = frozenset(
    name
    for model in groups().values()
    for name, field in model.model_fields.items()
    if type(None) in get_args(field.annotation)
)

LONGEST_EXAMPLE: Final = 100


class SettingsError(UserError, ValueError):
    """Unusable configuration. The text has the setting, its value and its range."""


def load_settings(
    config_file: Path, overrides: Iterable[str] | Mapping[str, Any] = (), *, is_stretched: bool = True
) -> Settings:
    """Load and validate a configuration file with its companions. Its folder is added to Python's search path.

    Args:
        config_file: Python file, or a run's settings.toml.
        overrides: win over the files: values by name, or `name=value` texts with Python literals or plain texts.
        is_stretched: whether schedules are multiplied by `schedule_stretch`.

    Raises:
        SettingsError: if a file is missing or fails to run, or a setting is missing, unknown or out of range.
    """
    return settings_from_values(values_in(config_file), overrides, str(config_file), is_stretched)


def settings_from_values(
    values: Mapping[str, Any], overrides: Iterable[str] | Mapping[str, Any], source: str, is_stretched: bool = True
) -> Settings:
    """Validate values and overrides, as in `load_settings`.

    Raises:
        SettingsError: if a setting is missing, unknown or out of range.
    """
    if isinstance(overrides, Mapping):
        source += " with overrides" if overrides else ""
    else:
        overrides = dict(map(parse_override, overrides))
    present = DEFAULTS | dict(values)
    overridden = {name: present[name] for name in overrides if name in present}
    values = {name: _none(name, value) for name, value in (dict(values) | dict(overrides)).items()}
    return settings_from_flat(with_stretched_schedules(values) if is_stretched else values, source, overridden)


def values_in(config_file: Path) -> dict[str, Any]:
    """Read the values of a configuration file, its companions and its bases, by name.

    Raises:
        SettingsError: if a file is missing or fails to run.
    """
    if not config_file.is_file():
        raise SettingsError(f"{config_file}: no such configuration file")
    if config_file.suffix == ".toml":
        try:
            return tomllib.loads(read_text(config_file))
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"{config_file}: {error}") from error
    make_importable(config_file.parent)
    values: dict[str, Any] = {}
    for name in COMPANION_FILES:
        values |= _names_set_by(config_file.parent / name, config_file)
    return values | _with_bases(config_file)


def _with_bases(config_file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    names = _names_set_by(config_file, config_file)
    if not names:
        raise SettingsError(f"{config_file}: sets nothing: restore the file")
    based_on = names.pop(BASED_ON, None)
    if based_on is None:
        return names
    told = f"{config_file}: {BASED_ON} = {based_on!r}"
    if not isinstance(based_on, str):
        raise SettingsError(f'{told}: name a file beside it, such as "config.py"')
    base, own = (config_file.parent / based_on).resolve(), config_file.resolve()
    if not base.is_file():
        raise SettingsError(f"{told}: there is no such file beside it")
    if base in (*above, own):
        raise SettingsError(f"{told}: that file is based on this one")
    return _with_bases(base, (*above, own)) | names


def _none(name: str, value: Any) -> Any:
    """Return None for "none" in a setting that may be None."""
    return None if name in MAY_BE_NONE and isinstance(value, str) and value.lower() == NONE else value


def make_importable(*folders: Path) -> None:
    """Append folders to Python's search path."""
    for folder in folders:
        if str(folder.resolve()) not in sys.path:
            sys.path.append(str(folder.resolve()))


def parse_override(text: str) -> tuple[str, Any]:
    """Split `name=value`; the value is a Python literal or else a text.

    Raises:
        SettingsError: if there is no name or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise SettingsError(f"--set {text!r}: write it as name=value, for example --set batch_size=128")
    try:
        return name.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        return name.strip(), value.strip()


def settings_from_flat(
    values: Mapping[str, Any], source: str = "these settings", present: Mapping[str, Any] | None = None
) -> Settings:
    """Validate flat `name: value` pairs and sort them into their groups.

    Args:
        values: by name.
        source: named in error messages.
        present: values that `values` changes, for examples in error messages.

    Raises:
        SettingsError: naming every missing, unknown or wrong setting.
    """
    known = {name: group for group, model in groups().items() for name in model.model_fields}
    values, problems = without_removed(values)
    problems += [_unknown_name(name, known, DEFAULTS | values) for name in values if name not in known]
    missing = [
        name
        for model in groups().values()
        for name, field in model.model_fields.items()
        if field.is_required() and name not in values
    ]
    if missing:
        problems.append(
            f"{', '.join(missing)} missing: restore the file, or copy inputs_list.py and state_normalization.py from "
            "config_files/"
        )
    if problems:
        raise SettingsError(f"{source}: " + "; ".join(problems))
    grouped: dict[str, dict[str, Any]] = {group: {} for group in groups()}
    for name, value in values.items():
        grouped[known[name]][name] = value
    try:
        return Settings.model_validate(grouped)
    except ValidationError as error:
        raise SettingsError(
            f"{source}: " + "; ".join(_one_line(entry, present or {}) for entry in error.errors())
        ) from None


def without_removed(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Remove settings of earlier versions; list those whose value is not the constant that they have become."""
    problems = [
        f"{name} = {value!r}: there is no such setting any more; it is always {REMOVED[name]!r}"
        for name, value in values.items()
        if name in REMOVED and name not in NO_LONGER_READ and value not in (REMOVED[name], _as_list(REMOVED[name]))
    ]
    return {name: value for name, value in values.items() if name not in REMOVED}, problems


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def changed_settings(old: Settings, new: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, as `name: (old value, new value)`."""
    before, after = old.flat(), new.flat()
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def stored_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by name as JSON, for a checkpoint's manifest, without those of this machine and its user."""
    values: dict[str, Any] = {}
    for name, group in settings:
        if name != "user":
            try:
                values |= group.model_dump(mode="json", warnings=False)
            except ValueError:  # an argument of a user's part that JSON does not have
                values |= {key: str(value) for key, value in group.model_dump(warnings=False).items()}
    return values


def read_text(file: Path) -> str:
    """Read a file of a configuration.

    Raises:
        SettingsError: if it is no regular file, larger than 1 MiB, or not UTF-8.
    """
    try:
        text = read_bounded(file, 1 << 20, SettingsError).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{file}: line {line} is not UTF-8: save the file with the encoding UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _names_set_by(file: Path, config_file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise SettingsError(f"{config_file}: {file.name} is missing beside it; copy it from config_files/")
    text = read_text(file)
    try:
        names = runpy.run_path(str(file))
    except SystemExit as error:
        raise SettingsError(f"{file}: ends the program (SystemExit: {error}): take that out") from error
    except Exception as error:  # a user's file can fail in any way
        raise SettingsError(f"{file}: {type(error).__name__}: {error}") from error
    known = {name for model in groups().values() for name in model.model_fields}
    imported = _names_imported_by(text)
    is_setting = {
        name: name in known  # a part may be a function or a class
        or not (
            name.startswith("_") or name in imported or isinstance(value, types.ModuleType | types.FunctionType | type)
        )
        for name, value in names.items()
    }
    return {name: value for name, value in names.items() if is_setting[name]}


def _names_imported_by(text: str) -> set[str]:
    """Return the imported names of a text, which are no misspelt settings."""
    aliases = [
        alias
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    return {alias.asname or alias.name for alias in aliases}


def with_stretched_schedules(values: dict[str, Any]) -> dict[str, Any]:
    """Multiply the frame counts of all schedules by `schedule_stretch`; invalid ones stay for validation."""
    stretch = values.get("schedule_stretch")
    if not isinstance(stretch, int | float) or not 0 < stretch < math.inf:
        return values
    stretched = dict(values)
    for name, value in values.items():
        if name.endswith("_schedule"):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                stretched[name] = tuple((round(frames * stretch), entry) for frames, entry in value)
    return stretched


def _unknown_name(name: str, known: Iterable[str], values: Mapping[str, Any]) -> str:
    nearest = OTHER_WORDS.get(name) or next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)
    hint = "" if nearest is None else f"; did you mean {nearest}?{_example(nearest, values)}"
    return f"{name} is no known setting{hint}"


def _example(name: str, values: Mapping[str, Any]) -> str:
    """Return the value of a setting for an error, unless it is long."""
    text = f"{name} = {values.get(name)!r}"
    if name not in values or len(text) > LONGEST_EXAMPLE:
        return ""
    constant = "; a number alone is a constant schedule" if name.endswith("_schedule") else ""
    return f" (at present {text}{constant})"


def _one_line(error: Any, present: Mapping[str, Any]) -> str:
    """Write one pydantic error as `name = value: what is allowed`."""
    location = error["loc"][1:] if error["loc"] and error["loc"][0] in groups() else error["loc"]
    name = ".".join(str(part) for part in location)
    message = error["msg"].removeprefix("Value error, ")
    if not name:
        return message
    value = repr(error["input"])
    value = value if len(value) <= 80 else value[:77] + "..."
    setting = str(location[0])
    allowed = f"; allowed: {describe_range(setting)}" if setting in DEFAULTS else ""
    return f"{name} = {value}: {message[0].lower() + message[1:]}{_example(setting, present)}{allowed}"


_WITHOUT_LEARNING: Final[Mapping[str, Any]] = {
    "n_collectors": 1,
    "demonstrations": (),
    "offline": (),
    "oversample_long_term_steps": 0,
    "gamma_schedule": ((0, 1.0),),
    "final_speed_reward_per_m_per_s": 0.0,
    "engineered_speedslide_reward_schedule": NOTHING,
    "engineered_neoslide_reward_schedule": NOTHING,
    "engineered_kamikaze_reward_schedule": NOTHING,
    "engineered_close_to_vcp_reward_schedule": NOTHING,
    "shaped_reward_dist_to_cur_vcp": 0.0,
    "shaped_reward_point_to_vcp_ahead": 0.0,
}
"""Settings of learning, with values that fit any driver."""
STATISTICS: Final = "state_normalization"
"""May lack a block that is not observed."""
DRIVER_PARTS: Final = ("games", "agent", "network")
"""Settings of a driver that name code."""


def driver_values(settings: Settings) -> dict[str, Any]:
    """Return a driver's settings by name, in JSON's types.

    Raises:
        SettingsError: if an argument of one of its parts cannot be written.
    """
    values: dict[str, Any] = {}
    for name, group in settings:
        try:
            dumped = group.model_dump(mode="json", include=set(DRIVER_SETTINGS), warnings=False)
        except ValueError as error:  # pydantic's PydanticSerializationError
            raise SettingsError(f"a driver's settings are written as JSON, but in {name}: {error}") from None
        values |= dumped
    return values


def settings_of_driver(values: Mapping[str, Any], map_cycle: Sequence[MapEntry], around: Settings) -> Settings:
    """Merge a driver's settings into this machine's configuration.

    Args:
        values: as `driver_values` returns them, of an untrusted file.
        map_cycle: of the driver.
        around: this machine's configuration.

    Raises:
        SettingsError: if a setting is missing, unknown or wrong.
    """
    values, problems = without_removed(values)
    if problems:
        raise SettingsError(f"its settings: {'; '.join(problems)}")
    if values.keys() != DRIVER_SETTINGS:
        lacking, unknown = sorted(DRIVER_SETTINGS - values.keys()), sorted(values.keys() - DRIVER_SETTINGS)
        raise SettingsError(
            "another version of this program packed it: of its settings this one misses "
            f"{', '.join(lacking) or 'none'}, and does not know {', '.join(unknown)[:200]!r}"
        )
    others = {**around.flat(), **_WITHOUT_LEARNING, "map_cycle": tuple(map_cycle)}
    return settings_from_flat({**others, **values}, "its settings")


def differences_of_driver(values: Mapping[str, Any], settings: Settings) -> list[str]:
    """List a driver's settings (`driver_values`) that differ from a configuration's.

    Statistics that only one of them has do not count.
    """
    theirs, ours = values, driver_values(settings)
    differ = [name for name, value in ours.items() if theirs.get(name) != value]
    statistics = theirs.get(STATISTICS)
    if STATISTICS in differ and isinstance(statistics, Mapping):
        in_both = statistics.keys() & ours[STATISTICS].keys()
        if all(statistics[block] == ours[STATISTICS][block] for block in in_both):
            differ.remove(STATISTICS)
    return sorted(differ)


def code_of_driver(settings: Settings) -> list[tuple[str, str]]:
    """List the imports of a driver's settings, as (setting, "module:attribute") pairs."""
    flat = settings.flat()
    return [(setting, name) for setting in DRIVER_PARTS for name in names_in(flat[setting])]
