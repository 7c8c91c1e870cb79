"""Names that become files and folders, here and on any other system: of runs, maps and drivers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

from pathvalidate import ErrorReason, ValidationError, validate_filename

from trackmania_rl.errors import UserError

MOST_LETTERS: Final = 80
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$"
"""Of maps and drivers; what `check_file_name` refuses comes off."""
RUN_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Of runs, which are typed into commands."""
FORM: Final = (
    f"write at most {MOST_LETTERS} letters, digits, dots, - and _ that begin with a letter or digit and do not end "
    "with a dot or a blank"
)
LONGEST_PATH_ON_WINDOWS: Final = 259
LONGEST_WITHIN_RUN: Final = 70
"""Letters of the longest path below a run's folder, or its folder of TensorBoard, beside a map's name."""


def check_file_name(name: str) -> str:
    """Return a name that is one of a file on Linux and on Windows.

    Raises:
        ValueError: if it is not; the text says what is allowed.
    """
    for part in (name, name.partition(".")[0].rstrip()):  # "nul .txt" is Windows's device, too
        try:
            validate_filename(part, platform="universal", max_len=MOST_LETTERS)
        except ValidationError as error:
            if error.reason == ErrorReason.RESERVED_NAME:
                raise ValueError(f"on Windows {part} is a device, not a file: choose another name") from None
            raise ValueError(f"it is no name of a file on all systems: {FORM}") from None
    if name.strip(". ") != name:
        raise ValueError(f"it is no name of a file on all systems: {FORM}")
    return name


def as_file_name(text: str) -> str | None:
    """Make a name of a run or map that is as near to a text as one can be; None if nothing is left of it."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:MOST_LETTERS].strip("-._")
    try:
        return check_file_name(name) if re.fullmatch(RUN_NAME_PATTERN, name) else None
    except ValueError:
        return None


def portable(path: str) -> str:
    """Give the part of a path that means the same on other machines: all of it, or the file's name."""
    plain = path.replace("\\", "/")
    own_to_machine = plain.startswith("/") or PureWindowsPath(path).drive or ".." in PurePosixPath(plain).parts
    kept = PurePosixPath(plain).name if own_to_machine else plain
    return "".join(letter if letter.isprintable() else "_" for letter in kept)


def same_on_windows(names: Iterable[str]) -> tuple[str, str] | None:
    """Find two names that differ only in small and capital letters, which Windows takes for one."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            return other, name
    return None


def require_utf8(folder: Path) -> None:
    """Refuse a folder whose path is not UTF-8, as tensorboard does.

    Raises:
        UserError: if it is not.
    """
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:
        raise UserError(f"{folder.absolute()}: the folder's path is not UTF-8: rename it, or choose another") from None


def require_short_paths(
    folders: Iterable[Path],
    map_names: Iterable[str],
    platform: str = sys.platform,
    takes_long_ones: bool | None = None,
) -> None:
    """See that all files of a run will have names that Windows takes, before it begins.

    Args:
        folders: the run's.
        map_names: which are in names of files.
        platform: as `sys.platform` has it.
        takes_long_ones: whether this Windows was told to take longer paths; None to look.

    Raises:
        UserError: if they would be too long.
    """
    if platform != "win32" or (windows_takes_long_paths() if takes_long_ones is None else takes_long_ones):
        return
    longest = max(map(len, map_names), default=0) + LONGEST_WITHIN_RUN
    for folder in folders:
        n_letters = len(str(folder.absolute())) + 1 + longest
        if n_letters > LONGEST_PATH_ON_WINDOWS:
            raise UserError(
                f"{folder.absolute()}: files in it would have paths of {n_letters} letters, and Windows takes "
                f"{LONGEST_PATH_ON_WINDOWS}: choose a shorter --output-folder or run_name, or allow long paths "
                "(docs/install_windows.rst)"
            )


def windows_takes_long_paths() -> bool:
    """Whether this Windows was told to take longer paths; Python has told it that it can."""
    try:
        import winreg

        where = r"SYSTEM\CurrentControlSet\Control\FileSystem"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, where) as key:  # type: ignore[attr-defined,unused-ignore]
            return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])  # type: ignore[attr-defined,unused-ignore]
    except (ImportError, OSError):
        return False
