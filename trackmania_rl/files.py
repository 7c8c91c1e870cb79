"""Files: writes that survive a power cut, bounded reading of untrusted files, portable names.

An untrusted file must be a regular file of limited size and nesting. The size of an array follows from the file's size,
not from its header.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shlex
import shutil
import stat
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from tokenize import TokenError
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
from pathvalidate import ErrorReason, ValidationError, validate_filename

from trackmania_rl.errors import UserError, one_line

RENAME_TRIES: Final = 10
RENAME_WITHIN_S: Final = 2.0


def replace_patiently(
    source: Path, target: Path, sleep: Callable[[float], object] = time.sleep, platform: str = sys.platform
) -> None:
    """Rename a file or folder as `Path.replace` does; on Windows try it `RENAME_TRIES` times within `RENAME_WITHIN_S`.

    Windows renames no open file, and virus scanners, indexers and OneDrive open a fresh file for some 50 ms.
    """
    tries_left = RENAME_TRIES if platform == "win32" else 1
    while True:
        try:
            source.replace(target)
        except PermissionError:
            tries_left -= 1
            if tries_left == 0:
                raise
            sleep(RENAME_WITHIN_S / (RENAME_TRIES - 1))
        else:
            return


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk. Windows has no such call and does so by itself."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks cannot
            raise
    finally:
        os.close(descriptor)


def write_durably(file: Path, content: bytes | str) -> None:
    """Write or replace a small file atomically. A text is written as UTF-8.

    Raises:
        OSError: if it cannot be written; an existing file stays as it was.
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
    """Yield an empty folder beside `folder`, and rename it to that at the end. Delete it if that fails.

    Args:
        folder: does not exist.
        temporary: a folder of this name is deleted first, as a process that was killed left it.

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
    except BaseException:  # a second Ctrl-C included
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_png(file: Path, picture: npt.NDArray[np.uint8]) -> None:
    """Write a picture, (H, W) gray or (H, W, 3) blue, green, red. OpenCV's function needs ASCII names."""
    import cv2  # slow to import

    file.write_bytes(cv2.imencode(".png", picture)[1].tobytes())


def shown_path(path: Path) -> str:
    """Return a path as typed in the current folder, quoted if needed."""
    try:
        text = os.path.relpath(path)
    except ValueError:  # another drive of Windows
        text = str(path)
    text = str(path.absolute()) if text.startswith(os.pardir) else text
    return shlex.quote(text) if os.name == "posix" else f'"{text}"' if " " in text else text


MOST_NESTED: Final = 50
"""Brackets within brackets in JSON and TOML."""
MOST_KEY_PARTS: Final = 20
"""Names in one dotted key of TOML; the parser's time grows with their square."""
MOST_NPY_HEADER_BYTES: Final = 1000
"""Of a `.npy` file; numpy writes 118 for an array of numbers."""

MOST_PYTHON_BYTES: Final = 1 << 20
"""Of a configuration's file."""

_CHUNK_BYTES: Final = 1 << 20

_BRACKETS_OUTSIDE_TEXTS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[][{}]', re.DOTALL)
_NAME: Final = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY: Final = re.compile(rf"(?<![A-Za-z0-9_-]){_NAME}(?:[ \t]*+\.[ \t]*+{_NAME}){{{MOST_KEY_PARTS}}}")


def open_regular(file: Path, most_bytes: int, error: type[UserError] = UserError) -> BinaryIO:
    """Open a regular file of at most `most_bytes` for reading bytes. It may grow later.

    Raises:
        UserError: (`error`) if it is missing, no regular file, too large, or cannot be opened.
    """
    try:
        _require_regular(file, os.stat(file).st_mode, error)  # opening some devices has an effect
        # A pipe would keep `open` waiting for its writer; a terminal could become this process's own.
        flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"))
        opened = os.fdopen(os.open(file, flags), "rb")
    except OSError as cause:
        raise error(f"{file}: cannot be read: {cause.strerror}") from cause
    except ValueError as cause:  # a null character
        raise error(f"{file!s:.100}: is no name of a file ({cause})") from cause
    try:
        status = os.fstat(opened.fileno())
        _require_regular(file, status.st_mode, error)
        if status.st_size > most_bytes:
            raise error(
                f"{file}: is {_size(status.st_size)} large; at most {_size(most_bytes)} are read of such a file"
            )
    except BaseException:
        opened.close()
        raise
    return opened


def read_bounded(file: Path, most_bytes: int, error: type[UserError] = UserError) -> bytearray:
    """Read a regular file of at most `most_bytes`.

    Raises:
        UserError: (`error`) as `open_regular` does, or if the disk fails.
    """
    content = bytearray()
    with open_regular(file, most_bytes, error) as opened:
        try:
            while chunk := opened.read(min(_CHUNK_BYTES, most_bytes + 1 - len(content))):
                content += chunk
        except OSError as cause:
            raise error(f"{file}: cannot be read: {cause.strerror}") from cause
    if len(content) > most_bytes:  # it has grown, or its size was unknown (/proc)
        raise error(f"{file}: is larger than {_size(most_bytes)}, the most that are read of such a file")
    return content


def read_bounded_text(file: Path, most_bytes: int, error: type[UserError] = UserError) -> str:
    """Read UTF-8 text, with or without a byte order mark, as `read_bounded` does. Line ends become newlines.

    Raises:
        UserError: (`error`) likewise, or if it is no text.
    """
    try:
        text = read_bounded(file, most_bytes, error).decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise error(f"{file}: is not UTF-8 text ({cause.reason} at byte {cause.start})") from cause
    return text.replace("\r\n", "\n")


def parse_json(content: bytes | bytearray | str, most_nested: int = MOST_NESTED, allow_infinity: bool = False) -> Any:
    """Parse JSON of at most `most_nested` brackets within brackets; NaN and infinity only with `allow_infinity`.

    Raises:
        ValueError: if it is no such JSON.
    """
    data = content.encode() if isinstance(content, str) else content
    _require_shallow(data, most_nested)
    return json.loads(data, parse_constant=None if allow_infinity else _refuse_constant)


def parse_toml(text: str, most_nested: int = MOST_NESTED) -> dict[str, Any]:
    """Parse TOML of at most `most_nested` brackets within brackets and keys of at most `MOST_KEY_PARTS` names.

    Raises:
        ValueError: if it is no such TOML.
    """
    # Brackets in literal strings and comments count as well.
    _require_shallow(text.encode("utf-8", "surrogatepass"), most_nested)
    if _LONG_KEY.search(text):
        raise ValueError(f"a key is made of more than {MOST_KEY_PARTS} names")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_npy(content: bytes | bytearray, kinds: str = "fiu", most_numbers: int | None = None) -> npt.NDArray[Any]:
    """Parse one array of numbers as `numpy.save` writes it, without a copy: no archive, no object, no record.

    Args:
        content: of the file.
        kinds: accepted `numpy.dtype.kind`s.
        most_numbers: largest size; None for any.

    Raises:
        ValueError: if it is anything else, or its size is not that of its header.
    """
    if content.startswith(b"PK"):
        raise ValueError("it is an archive of several arrays; save one array with numpy.save")
    stream = io.BytesIO(content)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        read_header = readers.get(np.lib.format.read_magic(stream))
        if read_header is None:
            raise ValueError("its format is of another version than 1.0 and 2.0")
        shape, is_fortran, dtype = read_header(stream, max_header_size=MOST_NPY_HEADER_BYTES)
    except (ValueError, EOFError, TokenError, RecursionError, MemoryError, TypeError, OverflowError) as error:
        raise ValueError(f"its header is damaged ({one_line(error, 80)})") from error
    if dtype.kind not in kinds or dtype.hasobject or dtype.subdtype is not None:
        raise ValueError(f"it is no array of numbers: its dtype is {str(dtype)[:60]}")
    if len(shape) > 8 or any(isinstance(n, bool) or n < 0 for n in shape):
        raise ValueError(f"its shape is {str(shape)[:60]}")
    n_numbers = 1
    for n in shape:
        n_numbers *= n
    n_bytes = len(content) - stream.tell()
    if n_numbers * dtype.itemsize != n_bytes:
        raise ValueError(f"it holds {n_bytes:,} bytes, not the {str(shape)[:60]} numbers that its header says")
    if most_numbers is not None and n_numbers > most_numbers:
        raise ValueError(f"it holds {n_numbers:,} numbers; at most {most_numbers:,} are read")
    numbers = np.frombuffer(content, dtype, n_numbers, stream.tell())
    return numbers.reshape(shape, order="F" if is_fortran else "C")


def require_no_special_files(folder: Path, error: type[UserError] = UserError) -> None:
    """Raise `UserError` if a file in a folder is a pipe, a device or a socket. Links are followed."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.exists() and not file.is_dir():
            _require_regular(file, os.stat(file).st_mode, error)


def within(folder: Path, name: str, error: type[UserError] = UserError) -> Path:
    r"""Return the path of a file that an untrusted file names, with / or \ between its parts.

    Raises:
        UserError: (`error`) if it is outside of the folder, on Linux or Windows.
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    leads_out = not parts or parts[0] == "/" or ".." in parts or PureWindowsPath(name).drive or ":" in name
    if leads_out or not name.isprintable() or len(name) > 250:
        raise error(f"{name[:100]!r} is no file within {folder}: write its name, without .. and without a drive")
    return folder.joinpath(*parts)


def _require_regular(file: Path, mode: int, error: type[UserError]) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    kind = kinds.get(stat.S_IFMT(mode), "a socket or the like")
    raise error(f"{file}: is not a file but {kind}: name a file, or put one in its place")


def _require_shallow(data: bytes | bytearray, most_nested: int) -> None:
    depth = 0
    for found in _BRACKETS_OUTSIDE_TEXTS.finditer(data):
        letter = data[found.start()]
        depth += 1 if letter in b"[{" else -1 if letter in b"]}" else 0
        if depth > most_nested:
            raise ValueError(f"it is nested more than {most_nested} deep")


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no finite number")


def _size(n_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.4g} {name}"
    return f"{n_bytes} bytes"


MOST_LETTERS: Final = 80
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$"
"""Of maps and drivers, beside `check_file_name`."""
RUN_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Of runs, which are typed into commands."""
FORM: Final = (
    f"write at most {MOST_LETTERS} letters, digits, dots, - and _ that begin with a letter or digit and do not end "
    "with a dot or a blank"
)
LONGEST_PATH_ON_WINDOWS: Final = 259
LONGEST_WITHIN_RUN: Final = 70
"""Length of the longest path below a run's folders, without a map's name."""


def check_file_name(name: str) -> str:
    """Return a name that is valid for a file on Linux and Windows.

    Raises:
        ValueError: if it is not.
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
    """Return the name of a run or map that is nearest to a text; None if nothing is left of it."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:MOST_LETTERS].strip("-._")
    try:
        return check_file_name(name) if re.fullmatch(RUN_NAME_PATTERN, name) else None
    except ValueError:
        return None


def portable(path: str) -> str:
    """Return the part of a path that is valid on other machines: all of it, or the file's name."""
    plain = path.replace("\\", "/")
    own_to_machine = plain.startswith("/") or PureWindowsPath(path).drive or ".." in PurePosixPath(plain).parts
    kept = PurePosixPath(plain).name if own_to_machine else plain
    return "".join(letter if letter.isprintable() else "_" for letter in kept)


def same_on_windows(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that differ only in case, which Windows ignores."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            return other, name
    return None


def require_utf8(folder: Path) -> None:
    """Raise `UserError` for a folder whose path is not UTF-8, as tensorboard refuses it."""
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
    """Raise `UserError` if a run's files would have paths that are too long for Windows.

    Args:
        folders: of the run.
        map_names: parts of file names.
        platform: `sys.platform`.
        takes_long_ones: whether Windows allows longer paths; None to read its registry.
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
    """Return whether Windows allows longer paths."""
    try:
        import winreg

        where = r"SYSTEM\CurrentControlSet\Control\FileSystem"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, where) as key:  # type: ignore[attr-defined,unused-ignore]
            return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])  # type: ignore[attr-defined,unused-ignore]
    except (ImportError, OSError):
        return False
