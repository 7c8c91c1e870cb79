"""Editing one setting of a run's own configuration by a program, as its owner would with an editor.

What comes out is loaded and compared before it takes the old file's place, so that an edit which is not valid changes
nothing.
"""

from __future__ import annotations

import ast
import contextlib
import os
import pprint
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trackmania_rl.errors import UserError
from trackmania_rl.files import MOST_PYTHON_BYTES, read_bounded
from trackmania_rl.settings.groups import NEEDS_RESTART, Settings
from trackmania_rl.settings.loading import (
    SettingsError,
    changed_settings,
    load_settings,
    parse_override,
    settings_from_flat,
)
from trackmania_rl.settings.syntax import ParsedText

HEADING: Final = "# Set while the run went on."
TRIAL_FILE: Final = ".edited_config.py"


def edit_setting(
    config_file: Path, name: str, text: str, check: Callable[[Settings], object] = lambda _: None
) -> dict[str, tuple[Any, Any]]:
    """Give a setting that can change while a run goes on another value in the run's own configuration.

    Only a literal is ever written: what somebody sends cannot become code.

    Args:
        config_file: the run's config.py; it is replaced at once, as a whole.
        name: of the setting.
        text: its new value, as after `--set name=`.
        check: raises `UserError` for settings that cannot be used, such as a map that is not there.

    Returns:
        By name, the old and the new value of all settings that have changed; others may follow from this one.

    Raises:
        SettingsError: if the configuration is not valid with it, as it says; or the setting waits for the next start.
        UserError: if `check` raises it, or the file cannot be written.
    """
    before = load_settings(config_file)
    if name in NEEDS_RESTART:
        raise SettingsError(
            f"{name} waits for the next start of the run: end the training, then change it in {config_file}"
        )
    _, value = parse_override(f"{name}={text}")
    if name not in before.flat():
        settings_from_flat(before.flat() | {name: value}, str(config_file))  # says so, and which name is near
    old_text = _read(config_file)
    trial = config_file.with_name(TRIAL_FILE)
    try:
        _write(trial, with_value(old_text, name, _literal(value)))
        after = _load(trial, config_file)
        _check_is_set(before, after, name, value, config_file)
        check(after)
        shutil.copymode(config_file, trial)
        if _read(config_file) != old_text:
            raise UserError(f"{config_file} was edited by somebody else at the same time: look at it and try again")
        os.replace(trial, config_file)
    except OSError as error:
        raise UserError(f"{config_file} cannot be changed: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
    return changed_settings(before, after)


def with_value(text: str, name: str, literal: str) -> str:
    """Put a literal in the place of a setting's value where it is set last; where nothing sets it, at the end."""
    parsed = ParsedText(text)
    nodes = [
        node
        for node in parsed.tree.body
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
    ]
    newline = "\r\n" if "\r\n" in text else "\n"
    if not nodes:
        heading = "" if HEADING in text else f"{newline}{HEADING}{newline}"
        return f"{text.rstrip()}{newline}{heading}{name} = {literal}{newline}"
    return parsed.with_replaced([(nodes[-1], f"{name} = {literal}")])


def literals_of(text: str) -> dict[str, str]:
    """How a configuration's text writes the value of each setting, where it is a literal; none if it is no Python."""
    try:
        parsed = ParsedText(text)
    except (SyntaxError, ValueError):
        return {}
    found = dict[str, str]()
    for node in parsed.tree.body:
        if isinstance(node, ast.Assign):
            name, value = ast.unparse(node.targets[0]), node.value
            found.pop(name, None)
            with contextlib.suppress(ValueError):
                ast.literal_eval(value)
                found[name] = parsed.source(value)
    return found


def _load(trial: Path, config_file: Path) -> Settings:
    """Load the trial; its errors speak of the file that is edited."""
    try:
        return load_settings(trial)
    except SettingsError as error:
        raise SettingsError(str(error).replace(str(trial), str(config_file))) from error.__cause__


def _check_is_set(before: Settings, after: Settings, name: str, value: Any, config_file: Path) -> None:
    if name not in changed_settings(before, after) and _plain(value) != _plain(before.flat()[name]):
        raise SettingsError(f"{config_file} sets {name} in a way that a program cannot change: edit the file")


def _literal(value: Any) -> str:
    """Write a value as a literal, a long one over several lines."""
    return repr(value) if isinstance(value, str) else pprint.pformat(value, width=100, sort_dicts=False)


def _plain(value: Any) -> Any:
    """A value as the settings hold it, lists as tuples."""
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _read(file: Path) -> str:
    try:
        return read_bounded(file, MOST_PYTHON_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: save it as UTF-8") from error


def _write(file: Path, text: str) -> None:
    with file.open("w", encoding="utf-8", newline="") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
