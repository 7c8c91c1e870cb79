"""Settings of a run, `save/{run_name}/settings.toml`: written at its start, edited while it trains, read at a resume.

None is "none", a schedule is an array of pairs, the map cycle an array of tables. Schedules are not yet stretched.
Reading the file runs no code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tomlkit
from pydantic import BaseModel

from trackmania_rl.errors import UserError
from trackmania_rl.files import portable, write_durably
from trackmania_rl.settings.descriptions import describe, describe_range, describe_unit
from trackmania_rl.settings.groups import DEFAULTS, NEEDS_RESTART, REMOVED, Settings, UserSettings, groups
from trackmania_rl.settings.loading import (
    NONE,
    SettingsError,
    changed_settings,
    load_settings,
    parse_override,
    read_text,
    settings_from_values,
    values_in,
)
from trackmania_rl.settings.values import BY_NAME_ONLY, NamedPart

SETTINGS_FILE: Final = "settings.toml"
OLD_FILE: Final = Path("config", "config.py")
"""Settings of a run of earlier versions: a copy of the configuration."""
TRIAL_FILE: Final = ".edited_settings.toml"
WIDTH: Final = 120
LONGEST_LIST: Final = 600

log = logging.getLogger(__name__)


def already_stretched(settings: Settings) -> Settings:
    """Return settings with `schedule_stretch` = 1, as their schedules are stretched."""
    return settings.model_copy(update={"run": settings.run.model_copy(update={"schedule_stretch": 1.0})})


def handed_on_text(settings: Settings, title: str) -> str:
    """Write settings in force as TOML without this machine's paths and names, whole paths cut to their last part."""
    text = _settings_text(already_stretched(settings), title, handed_on=True)
    with contextlib.suppress(RuntimeError):  # the user has no folder
        home = Path.home()
        text = text.replace(str(home), "~") if len(home.parts) > 1 else text
    return text


def _settings_text(settings: Settings, title: str, *, handed_on: bool = False) -> str:
    """Write settings as TOML, with description, unit, range and "restart" as comments."""
    lines = [f"# {title}"]
    for group, model in groups().items():
        if handed_on and model is UserSettings:
            continue
        lines += ["", f"# {group}: {model.__doc__} ".ljust(WIDTH, "-")]
        for name in model.model_fields:
            unit = describe_unit(name)
            allowed = f"Allowed: {describe_range(name)}{'; restart' if name in NEEDS_RESTART else ''}."
            lines += ["", _comment(describe(name)), _comment(f"Unit: {unit}. {allowed}" if unit else allowed)]
            plain = _plain_setting(getattr(getattr(settings, group), name))
            lines.append(f"{name} = {_toml(paths_cut(plain) if handed_on else plain, len(name) + 3)}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def write_settings(file: Path, settings: Settings) -> Path:
    """Write the settings of a run.

    Args:
        file: `save/{run_name}/settings.toml`.
        settings: not stretched, or with `schedule_stretch` = 1.
    """
    title = (
        f'Settings of the run "{settings.run.run_name}". An edit is applied at the next race; that of a setting marked '
        '"restart" when the run is started again. "none" is no value. A schedule is [[frame count, value], ...].'
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(file, _settings_text(settings, textwrap.fill(title, WIDTH - 2).replace("\n", "\n# ")))
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
    configuration: Callable[[], Settings] | None = None,
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
    values = {name: value for name, value in values_in(file).items() if name not in REMOVED}
    if "run_name" not in values:
        raise SettingsError(f"{file}: sets no run_name: restore the file, or train with --update-config")
    if configuration is not None and BY_NAME_ONLY in str(values):
        made = configuration().flat()
        values = {name: _with_objects(value, made.get(name)) for name, value in values.items()}
    settings = settings_from_values(values, overrides, str(file), is_stretched)
    missing = sorted(DEFAULTS.keys() - UserSettings.model_fields.keys() - values.keys())
    if is_complete and missing:
        raise SettingsError(f"{file}: {missing[0]} is missing, of {len(missing)} in all: restore the file")
    return settings


def bring_up_to_date(run_folder: Path) -> None:
    """Convert the settings of a run of an earlier version once, and log that."""
    file, old = run_folder / SETTINGS_FILE, own_file(run_folder)
    values = values_in(old)
    lacking = sorted(DEFAULTS.keys() - UserSettings.model_fields.keys() - values.keys())
    if old == file and not lacking and REMOVED.keys().isdisjoint(values):
        return
    changed = sorted(name for name in REMOVED.keys() & values.keys() if values[name] != REMOVED[name])
    write_settings(file, read_own(run_folder, is_stretched=False))
    log.warning("%s is of an earlier version; %s holds the run's settings from now on", old, file)
    if lacking:
        log.warning("%s: new settings have their defaults: %s", file, _listed(lacking, DEFAULTS))
    if changed:
        log.warning("%s: these are no settings any more: %s", file, _listed(changed, REMOVED))


def _listed(names: Sequence[str], values: Mapping[str, Any]) -> str:
    text = ", ".join(f"{name} = {values[name]!r}" for name in names)
    return textwrap.shorten(text, LONGEST_LIST, placeholder=" ...")


def write_changes(file: Path, new: Mapping[str, Any], onto: Path | None = None) -> None:
    """Change settings in a run's file; the rest of its text stays.

    Args:
        file: the run's settings.toml.
        new: validated values by name.
        onto: file to write; None for `file` itself.
    """
    document = tomlkit.parse(file.read_bytes().decode("utf-8-sig"))
    for name, value in new.items():
        document[name] = tomlkit.value(_toml(_plain_setting(value), len(name) + 3))
    write_durably(onto or file, document.as_string().encode())


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
    file, trial = run_folder / SETTINGS_FILE, run_folder / TRIAL_FILE
    before, written = load_settings(file), read_text(file)
    if name in NEEDS_RESTART:
        raise SettingsError(f"{name} waits for the next start of the run: end the training, then change it in {file}")
    _, value = parse_override(f"{name}={text}")
    after = load_settings(file, {name: value})
    try:
        write_changes(file, {name: load_settings(file, {name: value}, is_stretched=False).flat()[name]}, onto=trial)
        check(after)
        if read_text(file) != written:
            raise UserError(f"{file} was edited by another program at the same time: try again")
        shutil.copymode(file, trial)
        os.replace(trial, file)
    except OSError as error:
        raise UserError(f"{file} cannot be changed: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
    return changed_settings(before, after)


def paths_cut(value: Any) -> Any:
    """Return a plain value whose whole paths are cut to their last part."""
    if isinstance(value, dict):
        return {name: paths_cut(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [paths_cut(entry) for entry in value]
    if not isinstance(value, str) or "\n" in value:
        return value
    is_whole = value[:1] in ("/", "\\", "~") or value[1:3] in (":/", ":\\")
    return portable(value.replace("~", "/", 1) if value.startswith("~") else value) if is_whole else value


def _plain_setting(value: Any) -> Any:
    """Convert a setting to TOML's types. A part with an argument that TOML does not have is recorded by name."""
    if value is None:
        return NONE
    if isinstance(value, tuple):
        return [_plain_setting(entry) for entry in value]
    try:
        return _plain(value)
    except TypeError:
        return f"{value.name}{BY_NAME_ONLY}"


def _plain(value: Any) -> Any:
    if isinstance(value, NamedPart):
        return {"name": value.name, "args": _plain(value.args), "keywords": _plain(value.keywords)}
    if isinstance(value, BaseModel):
        fields = value.__class__.model_fields
        return {
            name: _plain(entry) for name, entry in value if fields[name].is_required() or entry != fields[name].default
        }
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
    if isinstance(value, list):
        entries = [_toml(entry) for entry in value]
        line = f"[{', '.join(entries)}]"
        if indent and indent + len(line) > WIDTH and entries:
            return "[\n" + "".join(f"    {entry},\n" for entry in entries) + "]"
        return line
    return tomlkit.item(value).as_string()


def _with_objects(value: Any, made: Any) -> Any:
    """Replace parts that are recorded by name only by those of a configuration."""
    if isinstance(value, list | tuple):
        return [_with_objects(entry, made) for entry in value]
    if isinstance(value, str) and value.endswith(BY_NAME_ONLY):
        for part in made if isinstance(made, tuple) else (made,):
            if isinstance(part, NamedPart) and part.name == value.removesuffix(BY_NAME_ONLY):
                return {"name": part.name, "args": part.args, "keywords": part.keywords}
    return value
