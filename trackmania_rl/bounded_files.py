"""Reading files that a stranger may have made: nothing waits, nothing runs, and memory and time are bounded.

A file is a regular one of at most so many bytes (a pipe or a device would never end); its text may be nested only so
deep; the size of an array follows from what is there, and not from what its header promises.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tomllib
from pathlib import Path, PurePosixPath, PureWindowsPath
from tokenize import TokenError
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError, one_line

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
    """Open a regular file that is no larger than this; what is examined is what was opened.

    Args:
        file: its path; links are followed.
        most_bytes: the largest size that is accepted.
        error: what is raised.

    Returns:
        The file, open for reading its bytes. It may grow later, so read no more than `most_bytes` + 1.

    Raises:
        UserError: if it is missing, no regular file, too large, or cannot be opened.
    """
    try:
        _require_regular(file, os.stat(file).st_mode, error)  # opening some devices already does something
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
    """Read a regular file of at most so many bytes.

    Args:
        file: its path; links are followed.
        most_bytes: the largest size that is accepted.
        error: what is raised.

    Returns:
        All that it holds, in memory of its own.

    Raises:
        UserError: as `open_regular` does, or if the disk fails.
    """
    content = bytearray()
    with open_regular(file, most_bytes, error) as opened:
        try:
            while chunk := opened.read(min(_CHUNK_BYTES, most_bytes + 1 - len(content))):
                content += chunk
        except OSError as cause:
            raise error(f"{file}: cannot be read: {cause.strerror}") from cause
    if len(content) > most_bytes:  # it has grown, or its size was not told (/proc)
        raise error(f"{file}: is larger than {_size(most_bytes)}, the most that are read of such a file")
    return content


def read_bounded_text(file: Path, most_bytes: int, error: type[UserError] = UserError) -> str:
    """Read a regular file of UTF-8 text, with or without a byte order mark, and with any ends of lines.

    Raises:
        UserError: as `read_bounded` does, or if it is no text.
    """
    try:
        text = read_bounded(file, most_bytes, error).decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise error(f"{file}: is not UTF-8 text ({cause.reason} at byte {cause.start})") from cause
    return text.replace("\r\n", "\n")


def parse_json(content: bytes | bytearray | str, most_nested: int = MOST_NESTED, allow_infinity: bool = False) -> Any:
    """Read JSON of bounded nesting.

    Args:
        content: of bounded length.
        most_nested: brackets within brackets.
        allow_infinity: whether numbers may be NaN or infinite.

    Raises:
        ValueError: if it is no JSON, or nested deeper.
    """
    data = content.encode() if isinstance(content, str) else content
    _require_shallow(data, most_nested)
    return json.loads(data, parse_constant=None if allow_infinity else _refuse_constant)


def parse_toml(text: str, most_nested: int = MOST_NESTED) -> dict[str, Any]:
    """Read TOML of bounded nesting and bounded keys.

    Args:
        text: of bounded length.
        most_nested: brackets within brackets.

    Raises:
        ValueError: if it is no TOML, is nested deeper, or has a key of more than `MOST_KEY_PARTS` names.
    """
    # TOML's other texts ('...' and more) and comments may hold brackets as well. That they count here is no loss.
    _require_shallow(text.encode("utf-8", "surrogatepass"), most_nested)
    if _LONG_KEY.search(text):
        raise ValueError(f"a key is made of more than {MOST_KEY_PARTS} names")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_npy(content: bytes | bytearray, kinds: str = "fiu", most_numbers: int | None = None) -> npt.NDArray[Any]:
    """Read one array of numbers as `numpy.save` writes it: no archive, no object, no record.

    Args:
        content: all of the file.
        kinds: of numbers that are taken, as `numpy.dtype.kind` names them.
        most_numbers: how many it may hold; None for as many as there are.

    Returns:
        An array of the shape and dtype that the file says, without a copy: it lies in `content`.

    Raises:
        ValueError: if it is anything else, or its size is not what its header says.
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
    """Check that the files in a folder are regular ones, so that opening them neither waits nor never ends.

    Raises:
        UserError: if one is a pipe, a device or a socket; links are followed, and those that lead nowhere are left out.
    """
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.exists() and not file.is_dir():
            _require_regular(file, os.stat(file).st_mode, error)


def within(folder: Path, name: str, error: type[UserError] = UserError) -> Path:
    r"""Return a file that a stranger's file names: it lies in this folder or below, on Linux and Windows alike.

    Args:
        folder: where it has to lie.
        name: a relative path, with / or \ between its parts.
        error: what is raised.

    Raises:
        UserError: if it leads anywhere else.
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
