"""Folders of this user alone, in which other users of the machine can plant nothing.

Their names are known to everybody, and the temporary folder is everybody's: a folder there may be somebody else's, or a
link. So each is looked at before it is used.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError

NAME: Final = "trackmania_rl"
RUNTIME_FOLDERS: Final = Path("/run/user")
"""Where Linux keeps each user's own folder until the user logs out, or the machine stops."""


def runtime_folder(name: str) -> Path:
    """Return a folder for what counts until the machine stops, the same for all of this user's processes.

    Args:
        name: of the folder.

    Raises:
        UserError: if there is something else of that name, or it cannot be made.
    """
    if sys.platform == "win32":  # whose temporary folder is each user's own
        return _made(Path(tempfile.gettempdir()) / f"{NAME}_{name}")
    own = os.environ.get("XDG_RUNTIME_DIR") or str(RUNTIME_FOLDERS / str(os.getuid()))
    base = Path(own)
    if not base.is_absolute() or what_is_wrong(base):
        base = _made(Path(tempfile.gettempdir()) / f"{NAME}_{os.getuid()}")
    else:
        base = _made(base / NAME)
    return _made(base / name)


def cache_folder(name: str) -> Path:
    """Return a folder for what can be made again; in the home folder, or where that cannot be, as `runtime_folder`.

    Args:
        name: of the folder.

    Raises:
        UserError: as of `runtime_folder`.
    """
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    with contextlib.suppress(UserError, OSError, RuntimeError):  # the last where there is no home folder
        caches = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
        caches.mkdir(parents=True, exist_ok=True)
        return _made(_made(caches / NAME) / name)
    return runtime_folder(name)


def _made(folder: Path) -> Path:
    """Make a folder for this user alone, if it is not there; see that it is one."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        wrong = what_is_wrong(folder)
        if wrong == IS_OPEN:  # but ours: an older version, or a careless hand, made it
            folder.chmod(0o700)
            wrong = what_is_wrong(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be used: {error.strerror}; it is needed as a folder of your own") from error
    if wrong:
        raise UserError(f"{folder}: {wrong}; remove it, as the program keeps there what only you may write")
    return folder


IS_OPEN: Final = "others may write into it"


def what_is_wrong(folder: Path) -> str:
    """Say why a folder is not this user's alone; empty if it is, and always on Windows where it is a folder.

    Raises:
        OSError: if it cannot be looked at.
    """
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return "is not there"
    if not stat.S_ISDIR(status.st_mode):
        return "is a link, not a folder" if stat.S_ISLNK(status.st_mode) else "is not a folder"
    if sys.platform == "win32":
        return ""
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    return IS_OPEN if status.st_mode & 0o077 else ""
