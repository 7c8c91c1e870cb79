"""A run's settings, `save/{run_name}/settings.toml`: written at the start, edited during training, read at a resume.

None is "none", a schedule is an array of pairs, the map cycle an array of tables. Schedules are not yet stretched.
Reading the file runs no code.

Some settings shape the network. Others change the meaning of its values: such a change is refused at a resume, unless
it is accepted by name, but not while the run trains, as a checkpoint follows it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import secrets
import textwrap
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import tomlkit
from filelock import FileLock
from pydantic import BaseModel

from trackmania_rl.errors import UserError
from trackmania_rl.files import paths_cut, read_bounded, write_durably
from trackmania_rl.runs.folder import SETTINGS_FILE, RunFolder
from trackmania_rl.settings import loading
from trackmania_rl.settings.descriptions import describe
from trackmania_rl.settings.groups import (
    DEFAULTS,
    FIELDS,
    MEANING_SETTINGS,
    NEEDS_RESTART,
    SHAPING_SETTINGS,
    Settings,
    UserSettings,
    groups,
)
from trackmania_rl.settings.loading import SettingsError, changed_settings, load_settings, stored_settings
from trackmania_rl.settings.values import BY_NAME_ONLY, NONE, NamedPart

TITLE: Final = """\
# Settings of a run. An edit is applied at the next race; that of a setting marked "restart" when the run is started
# again. "none" is no value. A schedule is [[frame count, value], ...]."""
LAST_GOOD: Final = ".last_good"
"""File name ending for the newest valid copy of a run's settings."""
WIDTH: Final = 120
MAPS: Final = "map_cycle"
_COMMENT: Final[dict[str, Any]] = {"initial_indent": "# ", "subsequent_indent": "# ", "break_long_words": False}

log = logging.getLogger(__name__)


# Writing.


def already_stretched(settings: Settings) -> Settings:
    """Return settings with `schedule_stretch` = 1."""
    return settings.model_copy(update={"run": settings.run.model_copy(update={"schedule_stretch": 1.0})})


def handed_on_text(settings: Settings, title: str) -> str:
    """Write settings in force as TOML without this machine's paths and names."""
    text = paths_cut(_settings_text(already_stretched(settings), f"# {title}", without="user"))
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text


def _settings_text(settings: Settings, title: str, without: str = "") -> str:
    """Write settings as TOML, with description, unit, range and "restart" as comments."""
    lines = [title]
    for group, values in settings:
        if group == without:
            continue
        lines += ["", f"# {group}: {groups()[group].__doc__} ".ljust(WIDTH, "-")]
        for name, value in values:
            about, unit, allowed = describe(name)
            allowed = f"{unit and f'Unit: {unit}. '}Allowed: {allowed}{'; restart' if name in NEEDS_RESTART else ''}."
            lines += ["", *(textwrap.fill(text, WIDTH, **_COMMENT) for text in (about, allowed))]
            lines.append(f"{name} = {toml_of(value, len(name) + 3)}")
    return "\n".join(lines) + "\n"


def write_settings(file: Path, settings: Settings) -> Path:
    """Write a run's settings: not stretched, or with `schedule_stretch` = 1.

    Raises:
        UserError: if the file cannot be written.
    """
    text = _settings_text(settings, TITLE)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, text)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from error
    _keep_good(file, text)
    return file


def _keep_good(file: Path, text: str) -> None:
    """Keep a run's settings in a second file: an editor that fails while it saves leaves the first one empty."""
    with contextlib.suppress(OSError):
        write_durably(file.with_name(f"{file.name}{LAST_GOOD}"), text)


def write_snapshot(config_file: Path, run_folder: Path, overrides: Iterable[str] = ()) -> Path:
    """Write a configuration, with overrides, as a run's settings."""
    return write_settings(run_folder / SETTINGS_FILE, load_settings(config_file, overrides, is_stretched=False))


def write_changes(file: Path, new: Mapping[str, Any], text: str | None = None) -> None:
    """Change settings in a run's file to validated values, by name; the other text stays.

    Args:
        file: the run's settings.
        new: the settings to change.
        text: the file's when they were validated; None if nothing else writes it.

    Raises:
        UserError: if the file has another text by now.
    """
    text = _text_of(file) if text is None else text
    document = tomlkit.parse(text)
    for name, value in new.items():
        document[name] = tomlkit.value(toml_of(value, len(name) + 3))
    with FileLock(file.with_name(f"{file.name}.lock")):
        if _text_of(file) != text:
            raise UserError(f"{file} was edited by another program at the same time: try again")
        write_durably(file, document.as_string())
        _keep_good(file, document.as_string())


def _text_of(file: Path) -> str:
    """Return a file's text with line ends. Raise `SettingsError` if it is unreadable."""
    try:
        return read_bounded(file, loading.LARGEST_FILE_BYTES, SettingsError).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def edit_setting(
    run_folder: Path, name: str, text: str, check: Callable[[Settings], object] = lambda _: None
) -> dict[str, tuple[Any, Any]]:
    """Change a run's setting during training; return the changes, as `changed_settings` does.

    The text is as after `--set name=`, or as in settings.toml. `check` raises a `UserError`, such as for a missing map.

    Raises:
        UserError: if the settings are not valid with it, the setting needs a restart, or the file cannot be written.
    """
    file = run_folder / SETTINGS_FILE
    _, value = loading.parse_override(f"{name}={text}")
    with contextlib.suppress(tomllib.TOMLDecodeError):
        value = tomllib.loads(f"value = {text}")["value"] if isinstance(value, str) else value
    override = {name: value}
    if name in NEEDS_RESTART:
        raise SettingsError(f"{name} waits for the next start of the run: end the training, then change it in {file}")
    text_before = _text_of(file)
    values = loading.values_of_toml(text_before, file)
    if missing := _lacking(values):
        raise SettingsError(f"{file}: sets no {missing[0]}; is it being saved? Try again, or restore the file")
    after = loading.settings_from_values(values, override, str(file))
    check(after)
    unstretched = loading.settings_from_values(values, override, str(file), is_stretched=False)
    try:
        write_changes(file, {name: unstretched.flat()[name]}, text_before)
    except OSError as error:
        raise UserError(f"{file} cannot be changed: {error.strerror}") from error
    return changed_settings(loading.settings_from_values(values, (), str(file)), after)


def toml_of(value: Any, indent: int = 0) -> str:
    """Write a setting as TOML, a long array with one entry a line if there is an indent."""
    return _toml(_plain_setting(value), indent)


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
    if isinstance(value, dict):
        entries = [f"{tomlkit.key(name).as_string()} = {_toml(entry)}" for name, entry in value.items()]
        return f"{{{', '.join(entries)}}}"
    if not isinstance(value, list):
        return tomlkit.item(value).as_string()
    line = f"[{', '.join(map(_toml, value))}]"
    if indent and indent + len(line) > WIDTH:
        return "[\n" + "".join(f"    {_toml(entry)},\n" for entry in value) + "]"
    return line


# Reading.


def read_snapshot(
    run_folder: Path,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    configuration: Settings | None = None,
    *,
    is_stretched: bool = True,
) -> Settings:
    """Read a run's settings.

    Parts that the file records by name only are the configuration's.

    Raises:
        SettingsError: if the file is missing, lacks a setting, or has a wrong one.
    """
    file = run_folder / SETTINGS_FILE
    values = loading.values_in_toml(file)
    if missing := _lacking(values):
        raise SettingsError(
            f"{file}: sets no {missing[0]}: restore the file ({file.name}{LAST_GOOD} beside it is valid), or train "
            "with --update-config"
        )
    made = {} if configuration is None else configuration.flat()
    for name in values.keys() & made.keys():
        if BY_NAME_ONLY in str(values[name]) and values[name] == _plain_setting(made[name]):
            values[name] = made[name]
    return loading.settings_from_values(values, overrides, str(file), is_stretched)


def _lacking(values: Mapping[str, Any]) -> list[str]:
    return [name for name in DEFAULTS if name not in values and name not in UserSettings.model_fields]


# A run that starts or trains.

AUTO_NAME: Final = "auto"
"""`run_name` for a run that gets a new name at each start."""


def with_new_name(settings: Settings, overrides: Sequence[str]) -> list[str]:
    """Return overrides that replace `run_name` = "auto" by a new name, such as 20261126-213005-5f3a."""
    if settings.run.run_name != AUTO_NAME:
        return [*overrides]
    return [*overrides, f"run_name={datetime.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"]


Stamp = tuple[int, int, int]
"""A file's last change time, size and number."""


def stamp_of(file: Path) -> Stamp | None:
    """Return a file's stamp; zeros if there is none, None if the disk fails."""
    try:
        status = file.stat()
    except OSError as error:
        return (0, 0, 0) if isinstance(error, FileNotFoundError) else None
    return status.st_mtime_ns, status.st_size, status.st_ino


class RunConfiguration:
    """Settings for a run that starts or resumes: a command's settings, or an existing run's.

    Args:
        source: configuration file, or settings.
        output_folder: holds save/ and tensorboard/.
        overrides: `name=value` texts, or values by name, that win over both.
        update: whether an existing run takes the requested settings.
    """

    def __init__(
        self,
        source: Path | Settings,
        output_folder: Path,
        overrides: Sequence[str] | Mapping[str, Any] = (),
        update: bool = False,
    ) -> None:
        self._source = source
        self._overrides = overrides
        self.asked_for = self._asked()
        if self.asked_for.run.run_name == AUTO_NAME and not isinstance(overrides, Mapping):
            self._overrides = with_new_name(self.asked_for, overrides)
            self.asked_for = self._asked()
        self.folder = RunFolder.below(output_folder, self.asked_for.run.run_name)
        self._is_new = update or not self.folder.settings.is_file()
        self.read_from: Stamp | None = None

    def read(self) -> Settings:
        """Return the settings that will be in force. Raise `SettingsError` if they cannot be used."""
        self.read_from = stamp_of(self.folder.settings)
        return self.asked_for if self._is_new else self._own()

    def write(self) -> None:
        """Write what `read` returned to the run's file."""
        if self._is_new:
            write_settings(self.folder.settings, self._asked(is_stretched=False))
            return
        text = _text_of(self.folder.settings)
        written = read_snapshot(self.folder.path, (), self.asked_for, is_stretched=False)
        if changes := changed_settings(written, self._own(is_stretched=False)):
            write_changes(self.folder.settings, {name: new for name, (_, new) in changes.items()}, text)
        if names := ", ".join(sorted(changed_settings(self.asked_for, self._own()))):
            source = self._source if isinstance(self._source, Path) else "the settings given"
            text = "using %s, which differs from %s in: %s (--update-config applies that)"
            log.warning(text, self.folder.settings, source, names)

    def _asked(self, *, is_stretched: bool = True) -> Settings:
        if isinstance(self._source, Path):
            return load_settings(self._source, self._overrides, is_stretched=is_stretched)
        values = already_stretched(self._source).flat()
        return loading.settings_from_values(values, self._overrides, "the settings given", is_stretched)

    def _own(self, *, is_stretched: bool = True) -> Settings:
        return read_snapshot(self.folder.path, self._overrides, self.asked_for, is_stretched=is_stretched)


class LiveSettings:
    """Settings in force, renewed when settings.toml is edited.

    An invalid edit leaves the last good settings in force. A changed setting that needs a restart waits for it; if the
    rest of the edit is invalid without it, the whole edit waits.

    Args:
        file: the run's settings.toml.
        current: the settings.
        check: raises `UserError` for edited settings such as a missing map.
        seen: the file's stamp when `current` was read; None to read it again.
    """

    def __init__(
        self,
        file: Path,
        current: Settings,
        check: Callable[[Settings], object] = lambda _: None,
        seen: Stamp | None = None,
    ) -> None:
        self.current = current
        self._file = file
        self._check = check
        self._seen = seen
        self._refused: Stamp | None = None

    def refresh(self) -> bool:
        """Apply an edit to the file; return whether anything changed."""
        stamp = stamp_of(self._file)
        if stamp is None or stamp == self._seen:
            return False
        try:
            edited = read_snapshot(self._file.parent, (), self.current)
            self._check(edited)
        except (UserError, OSError) as error:
            if stamp != self._refused:
                log.warning("the edited settings are not applied, the last good ones stay in force: %s", error)
            self._refused = stamp
            # The disk fails, or a program holds the file (Windows): the edit is read again at the next race.
            is_transient = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
            self._seen = self._seen if is_transient else stamp
            return False
        self._seen = stamp
        with contextlib.suppress(OSError, UserError):
            text = _text_of(self._file)  # may be truncated by the next save
            if stamp_of(self._file) == stamp:
                _keep_good(self._file, text)
        return self._apply(edited)

    def _apply(self, edited: Settings) -> bool:
        changes = changed_settings(self.current, edited)
        if waiting := sorted(changes.keys() & NEEDS_RESTART):
            log.warning("these settings wait for the next start: %s", ", ".join(waiting))
        applied = {name: change for name, change in changes.items() if name not in NEEDS_RESTART}
        if not applied:
            return False
        try:
            merged = loading.settings_from_flat(self.current.flat() | {name: new for name, (_, new) in applied.items()})
            self._check(merged)
        except UserError as error:
            log.warning("the whole edit waits for the next start, as its parts do not go alone: %s", error)
            return False
        self.current = merged
        for name, (old, new) in applied.items():
            log.info("configuration: %s = %r (was %r)", name, new, old)
        return True


class SettingChange(NamedTuple):
    """A setting with another value than in a checkpoint; both values are JSON."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} = {json.dumps(self.new):.120} (was {json.dumps(self.old):.120})"


def changes_since(stored: Mapping[str, Any], settings: Settings) -> list[SettingChange]:
    """List the settings that differ from a checkpoint's manifest. Names that it lacks have not changed."""
    new = stored_settings(settings)
    changes = (SettingChange(name, stored.get(name, value), value) for name, value in new.items())
    return [change for change in changes if change.old != change.new]


def differences(changes: Sequence[SettingChange]) -> str:
    """Describe the changes that make a checkpoint unusable; empty if there are none."""
    return ", ".join(str(change) for change in changes if change.name in SHAPING_SETTINGS)


def changes_of_meaning(changes: Sequence[SettingChange]) -> list[SettingChange]:
    """List the changes that give another meaning to what the network has learned."""
    return [
        change
        for change in changes
        if change.name in MEANING_SETTINGS and not (change.name == MAPS and _tracks(change.old) == _tracks(change.new))
    ]


def _tracks(map_cycle: Any) -> set[str]:
    files = ("map_path", "reference_line", "generator")
    return {json.dumps([entry.get(name) for name in files]) for entry in map_cycle}


def require_accepted(changes: Sequence[SettingChange], accepted: Collection[str], run_folder: Path) -> None:
    """Raise `UserError` for unaccepted meaning changes."""
    refused = [change for change in changes_of_meaning(changes) if change.name not in accepted]
    if refused:
        raise UserError(
            f"{run_folder}: since its last checkpoint these were changed, and what the network has learned would mean "
            f"something else: {'; '.join(map(str, refused))}. Undo this (in {run_folder / SETTINGS_FILE}, or on the "
            "command line), or accept it: "
            f"--accept-change {' '.join(change.name for change in refused)}"
        )


def require_known(names: Collection[str]) -> None:
    """Raise `UserError` for unknown setting names."""
    if unknown := sorted(set(names) - FIELDS.keys()):
        raise UserError(f"--accept-change {' '.join(unknown)}: there is no such setting (train.py --list-settings)")
