"""Loading configuration files as validated settings."""

from __future__ import annotations

import ast
import contextlib
import math
import runpy
import sys
import tomllib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from trackmania_rl.errors import UserError
from trackmania_rl.files import read_bounded_text
from trackmania_rl.paths import CONFIG_FILES, PROJECT_FOLDER
from trackmania_rl.settings.descriptions import describe_range, hint
from trackmania_rl.settings.groups import FIELDS, Settings, groups

COMPANION_FILES = ("inputs_list.py", "state_normalization.py", "user_config.py")
"""Files read before the configuration file, in this order, from its folder or else as shipped."""
BASED_ON: Final = "based_on"
SHIPPED: Final = PROJECT_FOLDER / CONFIG_FILES
"""Folder with the shipped configurations, or the user's copies."""
LARGEST_FILE_BYTES: Final = 1 << 20


class SettingsError(UserError, ValueError):
    """Unusable configuration. The text has the setting, value and range."""


def load_settings(
    config_file: Path, overrides: Iterable[str] | Mapping[str, Any] = (), *, is_stretched: bool = True
) -> Settings:
    """Load and validate a configuration file with companion files. The folder is added to Python's search path.

    Args:
        config_file: Python or TOML file, such as a run's settings.toml.
        overrides: win over the files: values by name, or `name=value` texts with Python literals or plain texts.
        is_stretched: whether schedules are multiplied by `schedule_stretch`.

    Raises:
        SettingsError: if a file is missing or fails to run, or a setting is missing, unknown or out of range.
    """
    return settings_from_values(values_in(config_file), overrides, str(config_file), is_stretched)


def settings_from_values(
    values: Mapping[str, Any], overrides: Iterable[str] | Mapping[str, Any], source: str, is_stretched: bool = True
) -> Settings:
    """Validate values and overrides, as in `load_settings`."""
    overrides = overrides if isinstance(overrides, Mapping) else dict(map(parse_override, overrides))
    values = {**values, **overrides}
    return settings_from_flat(with_stretched_schedules(values) if is_stretched else values, source)


def values_in(config_file: Path) -> dict[str, Any]:
    """Read a configuration file's values, companions and bases included, by name.

    Raises:
        SettingsError: if a file is missing, fails to run, is neither Python nor TOML, or sets nothing.
    """
    if not config_file.is_file():
        raise SettingsError(f"{config_file}: no such configuration file")
    make_importable(config_file.parent)
    values: dict[str, Any] = {}
    for companion in COMPANION_FILES:
        values |= _names_set_by(_beside_or_shipped(config_file.parent, companion))
    files = [config_file.resolve()]
    layers = [_names_set_by(config_file)]
    if not layers[0]:
        raise SettingsError(f"{config_file} sets nothing: write name = value, as in {SHIPPED / 'config.py'}")
    while (based_on := layers[-1].pop(BASED_ON, None)) is not None:
        where = f"{files[-1]}: {BASED_ON} = {based_on!r}"
        base = _beside_or_shipped(files[-1].parent, str(based_on))
        if not base.is_file():
            raise SettingsError(f"{where}: there is no such file beside it or in {SHIPPED}")
        if base in files:
            raise SettingsError(f"{where}: that file is based on this one")
        files.append(base)
        layers.append(_names_set_by(base))
    for layer in reversed(layers):
        values |= layer
    return values


def values_in_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file's values alone. Raise `SettingsError` if it is missing or damaged."""
    return values_of_toml(read_bounded_text(file, LARGEST_FILE_BYTES, SettingsError), file)


def values_of_toml(text: str, file: Path) -> dict[str, Any]:
    """Parse TOML; errors name the file. Raise `SettingsError` if it is none."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: {error}") from error


def _beside_or_shipped(folder: Path, name: str) -> Path:
    file = (folder / name).resolve()
    return file if file.is_file() else (SHIPPED / name).resolve()


def _names_set_by(file: Path) -> dict[str, Any]:
    if file.suffix == ".toml":
        return values_in_toml(file)
    if file.suffix != ".py":
        raise SettingsError(f"{file}: a configuration is a Python file, NAME.py, or a TOML file, NAME.toml")
    text = read_bounded_text(file, LARGEST_FILE_BYTES, SettingsError)
    try:
        names = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:  # a user's file can fail in any way
        raise SettingsError(f"{file}: {type(error).__name__}: {error}") from error
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    code = types.ModuleType | types.FunctionType | type
    return {
        name: value
        for name, value in names.items()
        if name in FIELDS or not (name.startswith("_") or name in imported or isinstance(value, code))
    }


def make_importable(*folders: Path) -> None:
    """Append folders to Python's search path."""
    for folder in folders:
        if str(folder.resolve()) not in sys.path:
            sys.path.append(str(folder.resolve()))


def parse_override(text: str) -> tuple[str, Any]:
    """Split `name=value`; the value is a Python literal or else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise SettingsError(f"--set {text!r}: write it as name=value, for example --set batch_size=128")
    try:
        return name.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        return name.strip(), value.strip()


def with_stretched_schedules(values: dict[str, Any]) -> dict[str, Any]:
    """Multiply all schedules' frame counts by `schedule_stretch`; invalid ones stay for validation."""
    stretch = values.get("schedule_stretch")
    if not isinstance(stretch, int | float) or not 0 < stretch < math.inf:
        return values
    stretched = dict(values)
    for name, value in values.items():
        if name.endswith("_schedule"):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                stretched[name] = tuple((round(frames * stretch), entry) for frames, entry in value)
    return stretched


def settings_from_flat(values: Mapping[str, Any], source: str = "these settings") -> Settings:
    """Validate flat `name: value` pairs and sort them into groups. Errors name the source.

    Raises:
        SettingsError: naming every missing, unknown or wrong setting.
    """
    problems = [f"{name} is no known setting{hint(name)}" for name in values if name not in FIELDS]
    if problems:
        raise SettingsError(f"{source}: {'; '.join(problems)}")
    grouped = {
        group: {name: values[name] for name in model.model_fields if name in values}
        for group, model in groups().items()
    }
    try:
        return Settings.model_validate(grouped)
    except ValidationError as error:
        raise SettingsError(f"{source}: {'; '.join(map(_one_line, error.errors()))}") from None


def _one_line(error: Any) -> str:
    """Write one pydantic error as `name = value: what is allowed`."""
    location = error["loc"][1:]
    message = error["msg"].removeprefix("Value error, ")
    if not location:
        return message
    name = ".".join(str(part) for part in location if isinstance(part, int) or part.isidentifier())
    if error["type"] == "missing" and len(location) == 1:
        return f"{name} is missing: restore the file, or copy it from config_files/"
    return f"{name} = {error['input']!r:.80}: {message[0].lower()}{message[1:]}; allowed: {describe_range(location[0])}"


def changed_settings(old: Settings, new: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, as `name: (old value, new value)`."""
    after = new.flat()
    return {name: (value, after[name]) for name, value in old.flat().items() if value != after[name]}


def stored_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by name as JSON, for a checkpoint's manifest, without those for this machine and user."""
    groups_of_run = (group for name, group in settings if name != "user")
    dumped = (group.model_dump(mode="json", warnings=False, fallback=str) for group in groups_of_run)
    return {name: value for values in dumped for name, value in values.items()}
