"""Files: durable writes, bounded reads from untrusted files, portable names."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from tokenize import TokenError
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pathvalidate import ValidationError, validate_filename

from trackmania_rl.errors import UserError, one_line

RENAME_WAITS_S: Final = (0.2,) * 9 if sys.platform == "win32" else ()
"""Waits after failed renames: on Windows, virus scanners and indexers briefly open new files."""


def replace_patiently(source: Path, target: Path) -> None:
    """Rename a file or folder like `Path.replace`; on Windows, retry after each of `RENAME_WAITS_S`."""
    for wait_s in RENAME_WAITS_S:
        with contextlib.suppress(PermissionError):
            source.replace(target)
            return
        time.sleep(wait_s)
    source.replace(target)


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk. No-op on Windows, which does so by itself."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # unsupported by some network disks
            raise
    finally:
        os.close(descriptor)


def write_durably(file: Path, content: bytes | str) -> None:
    """Write or replace a small file atomically; text as UTF-8.

    Raises:
        OSError: if it cannot be written; an existing file is unchanged.
    """
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as opened:
            opened.write(content.encode() if isinstance(content, str) else content)
            opened.flush()
            os.fsync(opened.fileno())
        replace_patiently(temporary, file)
        sync_folder(file.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_folder(folder: Path, temporary: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder`; rename it to `folder` at the end, or delete it after an error.

    Args:
        folder: does not exist.
        temporary: a killed process's old folder with this name is deleted first.

    Raises:
        OSError: if it cannot be made or renamed.
    """
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        sync_folder(temporary)
        replace_patiently(temporary, folder)
        sync_folder(folder.parent)
    except BaseException:  # including a second Ctrl-C
        shutil.rmtree(temporary, ignore_errors=True)
        raise


MOST_NPY_HEADER_BYTES: Final = 1000
"""Header limit for a `.npy` file; numpy writes 118 for a number array."""


def read_bounded(file: Path, most_bytes: int, error: type[UserError] = UserError) -> bytearray:
    """Read a regular file with at most `most_bytes`.

    Raises:
        UserError: (`error`) if missing, not regular, too large or unreadable.
    """
    require_regular(file, error)  # `open` would wait for a pipe's writer
    try:
        with file.open("rb") as opened:
            content = bytearray(min(os.fstat(opened.fileno()).st_size, most_bytes + 1))
            if len(content) > most_bytes:
                raise error(f"{file}: is larger than {most_bytes:,} bytes, the most that are read of such a file")
            del content[opened.readinto(content) :]  # truncated meanwhile
    except OSError as cause:
        raise error(f"{file}: cannot be read: {cause.strerror}") from cause
    return content


def read_bounded_text(file: Path, most_bytes: int, error: type[UserError] = UserError) -> str:
    """Read UTF-8 text, with or without a byte order mark, like `read_bounded`. Convert line ends to newlines.

    Raises:
        UserError: (`error`) likewise, or if it is not text.
    """
    try:
        text = read_bounded(file, most_bytes, error).decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise error(f"{file}: is not UTF-8 text ({cause.reason} at byte {cause.start})") from cause
    return text.replace("\r\n", "\n")


def read_npy(file: Path, most_bytes: int, error: type[UserError] = UserError) -> npt.NDArray[Any]:
    """Read one real-number array written by `numpy.save`: no archive, object or record.

    Raises:
        UserError: (`error`) like `read_bounded`, or if it is anything else, or the size contradicts the header.
    """
    content = read_bounded(file, most_bytes, error)
    stream = io.BytesIO(content)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("its format is of another version than 1.0")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=MOST_NPY_HEADER_BYTES)
        if dtype.kind not in "fiu":
            raise ValueError(f"its dtype is {dtype}, not one of numbers")
        # The array has the file's size: no memory is allocated from the header alone.
        numbers = np.frombuffer(content, dtype, offset=stream.tell())
        return numbers.reshape(shape, order="F" if is_fortran else "C")
    except (ValueError, EOFError, TokenError, RecursionError, MemoryError, TypeError, OverflowError) as cause:
        raise error(f"{file}: is damaged, or no .npy file of numbers: {one_line(cause, 80)}") from cause


def parse_json(content: bytes | bytearray | str, allow_infinity: bool = False) -> Any:
    """Parse JSON; NaN and infinity only with `allow_infinity`.

    Raises:
        ValueError: if not JSON, or nested too deeply.
    """
    try:
        return json.loads(content, parse_constant=None if allow_infinity else _refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no finite number")


def require_regular(file: Path, error: type[UserError] = UserError) -> None:
    """Raise `UserError` (`error`) if a path is a folder, pipe, device or socket. Follow links."""
    try:
        if file.exists() and not file.is_file():
            raise error(f"{file}: is a folder, a pipe or a device: name a file, or put one in its place")
    except OSError as cause:
        raise error(f"{file}: cannot be read: {cause.strerror}") from cause


_WHOLE_PATH: Final = re.compile(r'"(?:[/\\~]|[A-Za-z]:[/\\])(?:[^"\n]*[/\\])?([^"/\\\n]*)"')


def paths_cut(text: str) -> str:
    """Cut whole paths in TOML or JSON strings to the last part."""
    return _WHOLE_PATH.sub(r'"\1"', text)


def without_whole_paths(values: Any, default: Callable[[Any], Any] | None = None) -> Any:
    """Return values as JSON has them, with whole paths in texts cut to the last part.

    Args:
        values: JSON types.
        default: converts values of other types, as for `json.dumps`.
    """
    return json.loads(paths_cut(json.dumps(values, default=default)))


def within(folder: Path, name: str, error: type[UserError] = UserError) -> Path:
    r"""Return the path for a file named by an untrusted file, with / or \ between its parts.

    Raises:
        UserError: (`error`) if it is outside the folder, on Linux or Windows.
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    leads_out = not parts or parts[0] == "/" or ".." in parts or PureWindowsPath(name).drive or ":" in name
    if leads_out or not name.isprintable() or len(name) > 250:
        raise error(f"{name[:100]!r} is no file within {folder}: write its name, without .. and without a drive")
    return folder.joinpath(*parts)


MOST_LETTERS: Final = 80
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$"
"""Map and driver names; see also `check_file_name`."""
RUN_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Run names, which are typed into commands."""
FORM: Final = (
    f"write at most {MOST_LETTERS} letters, digits, dots, - and _ that begin with a letter or digit, do not end with a "
    "dot or a blank, and are no device of Windows (nul, con, com1, ...)"
)


@functools.lru_cache(maxsize=256)  # also for each race's map: it takes longer than a race's other values
def check_file_name(name: str) -> str:
    """Return a name valid for a file on Linux and Windows.

    Raises:
        ValueError: if invalid.
    """
    try:
        for part in (name, name.partition(".")[0].rstrip()):  # "nul .txt" is a Windows device, too
            validate_filename(part, platform="universal", max_len=MOST_LETTERS)
    except ValidationError:
        raise ValueError(f"it is no name of a file on all systems: {FORM}") from None
    if name.strip(". ") != name:
        raise ValueError(f"it is no name of a file on all systems: {FORM}")
    return name


@functools.lru_cache(maxsize=4096)
def check_name(name: str) -> str:
    """Return a figure or column name: parts between slashes that are files' names on Linux and Windows.

    Raises:
        ValueError: if it is none. The text has no path or control character.
    """
    for part in name.split("/"):
        try:
            validate_filename(part, platform="universal", max_len=MOST_LETTERS, check_reserved=False)
        except ValidationError:
            part = ""
        if not part or part.strip(". ") != part:
            raise ValueError(
                f"{name[:100]!a} is no name of a figure or column: write parts of at most {MOST_LETTERS} letters, "
                "digits, blanks, dots, - and _, with / between them"
            )
    return name


def portable(path: str) -> str:
    """Return a path for other machines: only the file name if it is absolute or has `..`."""
    plain = path.replace("\\", "/")
    is_of_machine = plain.startswith("/") or PureWindowsPath(path).drive or ".." in PurePosixPath(plain).parts
    kept = PurePosixPath(plain).name if is_of_machine else plain
    return "".join(letter if letter.isprintable() else "_" for letter in kept)
