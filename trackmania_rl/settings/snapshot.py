"""Settings of a run, `save/{run_name}/settings.toml`: written at its start, edited while it trains, read at a resume.

None is "none", a schedule is an array of pairs, the map cycle an array of tables. Schedules are not yet stretched.
Reading the file runs no code.
"""

from __future__ import annotations

import logging
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import tomlkit
from pydantic import BaseModel

from trackmania_rl.errors import UserError
from trackmania_rl.files import write_durably
from trackmania_rl.settings.descriptions import describe, describe_range, describe_unit
from trackmania_rl.settings.groups import DEFAULTS, NEEDS_RESTART, Settings, UserSettings, groups
from trackmania_rl.settings.loading import (
    SettingsError,
    changed_settings,
    load_settings,
    settings_from_values,
    values_in,
    without_removed,
)
from trackmania_rl.settings.values import BY_NAME_ONLY, NONE, NamedPart

SETTINGS_FILE: Final = "settings.toml"
OLD_FILE: Final = Path("config", "config.py")
"""Settings of a run of earlier versions: a copy of the configuration."""
TITLE: Final = """\
# Settings of a run. An edit is applied at the next race; that of a setting marked "restart" when the run is started
# again. "none" is no value. A schedule is [[frame count, value], ...]."""
WIDTH: Final = 120
_WHOLE_PATH: Final = re.compile(r'"(?:[/\\~]|[A-Za-z]:[/\\])(?:[^"\n]*[/\\])?([^"/\\\n]*)"')

log = logging.getLogger(__name__)


def already_stretched(settings: Settings) -> Settings:
    """Return settings with `schedule_stretch` = 1, as their schedules are stretched."""
    return settings.model_copy(update={"run": settings.run.model_copy(update={"schedule_stretch": 1.0})})


def handed_on_text(settings: Settings, title: str) -> str:
    """Write settings in force as TOML without this machine's paths and names."""
    text = paths_cut(_settings_text(already_stretched(settings), f"# {title}", without="user"))
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text


def paths_cut(text: str) -> str:
    """Cut the whole paths in the strings of TOML or JSON to their last part."""
    return _WHOLE_PATH.sub(r'"\1"', text)


def _settings_text(settings: Settings, title: str, without: str = "") -> str:
    """Write settings as TOML, with description, unit, range and "restart" as comments."""
    lines = [title]
    for group, values in settings:
        if group == without:
            continue
        lines += ["", f"# {group}: {groups()[group].__doc__} ".ljust(WIDTH, "-")]
        for name, value in values:
            unit, restart = describe_unit(name), "; restart" if name in NEEDS_RESTART else ""
            allowed = f"{unit and f'Unit: {unit}. '}Allowed: {describe_range(name)}{restart}."
            lines += ["", *(textwrap.fill(text, WIDTH, **_COMMENT) for text in (describe(name), allowed))]
            lines.append(f"{name} = {_toml(_plain_setting(value), len(name) + 3)}")
    return "\n".join(lines) + "\n"


_COMMENT: Final[dict[str, Any]] = {"initial_indent": "# ", "subsequent_indent": "# ", "break_long_words": False}


def write_settings(file: Path, settings: Settings) -> Path:
    """Write the settings of a run: not stretched, or with `schedule_stretch` = 1."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(file, _settings_text(settings, TITLE))
    return file


def write_snapshot(config_file: Path, run_folder: Path, overrides: Iterable[str] = ()) -> Path:
    """Write a configuration, with overrides, as the settings of a run."""
    return write_settings(run_folder / SETTINGS_FILE, load_settings(config_file, overrides, is_stretched=False))


def own_file(run_folder: Path) -> Path:
    """Return the file with a run's settings; `OLD_FILE` for a run of an earlier version."""
    old = run_folder / OLD_FILE
    return old if old.is_file() and not (run_folder / SETTINGS_FILE).is_file() else run_folder / SETTINGS_FILE


def read_own(
    run_folder: Path,
    overrides: Iterable[str] = (),
    configuration: Settings | None = None,
    *,
    is_stretched: bool = True,
    is_complete: bool = False,
) -> Settings:
    """Read the settings of a run. What an older file lacks has its default.

    Args:
        run_folder: `save/{run_name}`.
        overrides: `name=value` texts that win over the file.
        configuration: has the parts that are recorded by name only; None if there is none.
        is_stretched: whether schedules are multiplied by `schedule_stretch`.
        is_complete: whether a missing setting is an error: in a file that this version has written.

    Raises:
        SettingsError: if the file is missing or cannot be used.
    """
    file = own_file(run_folder)
    values, _ = without_removed(values_in(file))
    missing = _lacking(values)
    if "run_name" not in values or (is_complete and missing):
        raise SettingsError(f"{file}: sets no {missing[0]}: restore the file, or train with --update-config")
    made = {} if configuration is None else configuration.flat()
    for name in values.keys() & made.keys():
        if BY_NAME_ONLY in str(values[name]) and values[name] == _plain_setting(made[name]):
            values[name] = made[name]
    return settings_from_values(values, overrides, str(file), is_stretched)


def bring_up_to_date(run_folder: Path) -> None:
    """Convert the settings of a run of an earlier version once, and log that."""
    file, old = run_folder / SETTINGS_FILE, own_file(run_folder)
    values = values_in(old)
    (known, changed), lacking = without_removed(values), _lacking(values)
    if old == file and not lacking and known == values:
        return
    write_settings(file, read_own(run_folder, is_stretched=False))
    log.warning("%s is of an earlier version; %s holds the run's settings from now on", old, file)
    if lacking:
        defaults = ", ".join(f"{name} = {DEFAULTS[name]!r}" for name in sorted(lacking))
        log.warning("%s: new settings have their defaults: %s", file, textwrap.shorten(defaults, 600))
    for problem in changed:
        log.warning("%s: %s", file, problem)


def _lacking(values: Mapping[str, Any]) -> list[str]:
    return [name for name in DEFAULTS if name not in values and name not in UserSettings.model_fields]


def write_changes(file: Path, new: Mapping[str, Any]) -> None:
    """Change settings in a run's file to validated values, by name; the rest of its text stays."""
    document = tomlkit.parse(file.read_bytes().decode("utf-8-sig"))
    for name, value in new.items():
        document[name] = tomlkit.value(_toml(_plain_setting(value), len(name) + 3))
    write_durably(file, document.as_string().encode())


def edit_setting(
    run_folder: Path, name: str, text: str, check: Callable[[Settings], object] = lambda _: None
) -> dict[str, tuple[Any, Any]]:
    """Change a setting of a run while it trains.

    Args:
        run_folder: `save/{run_name}`; its settings.toml is replaced as a whole.
        name: of the setting.
        text: new value, as after `--set name=`.
        check: raises `UserError` for settings that cannot be used, such as a missing map.

    Returns:
        By name, the old and the new value of all settings that have changed.

    Raises:
        SettingsError: if the settings are not valid with it, or the setting needs a restart.
        UserError: if `check` raises it, or the file cannot be written.
    """
    file = run_folder / SETTINGS_FILE
    values = values_in(file)
    if name in NEEDS_RESTART:
        raise SettingsError(f"{name} waits for the next start of the run: end the training, then change it in {file}")
    override = f"{name}={text}"
    after = settings_from_values(values, [override], str(file))
    check(after)
    if values_in(file) != values:
        raise UserError(f"{file} was edited by another program at the same time: try again")
    try:
        write_changes(file, {name: settings_from_values(values, [override], str(file), False).flat()[name]})
    except OSError as error:
        raise UserError(f"{file} cannot be changed: {error.strerror}") from error
    return changed_settings(settings_from_values(values, (), str(file)), after)


def _plain_setting(value: Any) -> Any:
    """Convert a setting to TOML's types. A part with an argument that TOML does not have is recorded by name."""
    if isinstance(value, tuple):
        return [_plain_setting(entry) for entry in value]
    try:
        return NONE if value is None else _plain(value)
    except TypeError:
        return f"{value.name}{BY_NAME_ONLY}"


def _plain(value: Any) -> Any:
    if isinstance(value, NamedPart):
        return {"name": value.name, "args": _plain(value.args), "keywords": _plain(value.keywords)}
    if isinstance(value, BaseModel):
        return {name: _plain(entry) for name, entry in value if entry not in ("", None)}
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"TOML has no {type(value)}")


def _toml(value: Any, indent: int = 0) -> str:
    """Write a plain value as TOML, a long array with one entry a line."""
    if isinstance(value, dict):
        entries = [f"{tomlkit.key(name).as_string()} = {_toml(entry)}" for name, entry in value.items()]
        return f"{{{', '.join(entries)}}}"
    if not isinstance(value, list):
        return tomlkit.item(value).as_string()
    line = f"[{', '.join(map(_toml, value))}]"
    if indent and indent + len(line) > WIDTH:
        return "[\n" + "".join(f"    {_toml(entry)},\n" for entry in value) + "]"
    return line
