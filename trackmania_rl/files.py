"""Files that survive a power cut, as Windows has them (a rename may have to wait), and as users see them."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

RENAME_TRIES: Final = 10
RENAME_WITHIN_S: Final = 2.0


def replace_patiently(
    source: Path, target: Path, sleep: Callable[[float], object] = time.sleep, platform: str = sys.platform
) -> None:
    """Rename a file, in place of the target where that is there, or a folder to a name that is free.

    Windows renames nothing that somebody has open, and virus scanners, indexers and OneDrive look into a fresh file for
    some 50 ms. So there it is tried `RENAME_TRIES` times within `RENAME_WITHIN_S`.

    Args:
        source: what is renamed.
        target: its new name, on the same disk.
        sleep: waits for so many seconds.
        platform: as `sys.platform` has it.

    Raises:
        OSError: if it cannot be renamed.
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
    """Let renames and new names in a folder survive a power cut; Windows has no such call and does so by itself.

    Raises:
        OSError: if the disk fails.
    """
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks have no such thing for folders
            raise
    finally:
        os.close(descriptor)


def sync_file(file: Path) -> None:
    """Let a file that was written survive a power cut.

    Raises:
        OSError: if the disk fails.
    """
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def write_durably(file: Path, content: bytes | str) -> None:
    """Write a small file that is complete or as it was before, whatever happens meanwhile, a power cut included.

    Args:
        file: replaced if it exists; its folder is there.
        content: all of it; texts are written as UTF-8, with the ends of lines that they have.

    Raises:
        OSError: if it cannot be written; what is there stays as it was.
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
        with contextlib.suppress(OSError):  # the disk may refuse this, too
            temporary.unlink(missing_ok=True)
        raise


def write_png(file: Path, picture: npt.NDArray[np.uint8]) -> None:
    """Write a picture; OpenCV's own way knows only ASCII names on Windows.

    Args:
        file: an existing one is overwritten.
        picture: (H, W) gray, or (H, W, 3) blue, green, red.

    Raises:
        OSError: if the file cannot be written.
    """
    import cv2  # which takes a moment, and most users of this module need no pictures

    file.write_bytes(cv2.imencode(".png", picture)[1].tobytes())


def shown_path(path: Path) -> str:
    """Write a path as a user in the current folder would type it: quoted where it has to be."""
    try:
        text = os.path.relpath(path)
    except ValueError:  # another drive of Windows
        text = str(path)
    text = str(path.absolute()) if text.startswith(os.pardir) else text
    return shlex.quote(text) if os.name == "posix" else f'"{text}"' if " " in text else text
