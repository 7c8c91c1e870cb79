"""Folders of the project and of the user: configurations, tracks, runs, caches.

In a checkout all of them are in the checkout. An installed package has configurations, tracks, scripts and examples in
its folder `shipped` and writes runs into the current folder. `copy_to_working_folder` copies configurations and tracks
there, to be edited; from then on these are used.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import getpass
import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import platformdirs

from trackmania_rl.errors import UserError
from trackmania_rl.files import shown_path

_PACKAGE: Final = Path(__file__).absolute().parent  # links are not resolved
DISTRIBUTION: Final = "trackmania-rl"
"""Name of the package for pip."""
IS_CHECKOUT: Final = (_PACKAGE.parent / "scripts" / "train.py").is_file()
"""Whether the package is in the repository, beside its scripts."""
SHIPPED_FOLDER: Final = _PACKAGE.parent if IS_CHECKOUT else _PACKAGE / "shipped"
"""Folder of the shipped `config_files`, `drivers`, `maps`, `scripts` and `examples`."""
WORKING_FOLDER: Final = _PACKAGE.parent if IS_CHECKOUT else Path.cwd()
"""Default folder of runs."""
CONFIG_FILES: Final = "config_files"
MAPS: Final = "maps"


def _project_folder() -> Path:
    has_its_own = (WORKING_FOLDER / CONFIG_FILES / "config.py").is_file()
    return WORKING_FOLDER if has_its_own else SHIPPED_FOLDER


PROJECT_FOLDER: Final = _project_folder()
"""Folder of the configurations, and base of a relative `maps_folder`."""


def folder_to_add_to() -> Path:
    """Return the project's folder, to write maps or settings.

    Raises:
        UserError: if it is an installed package, which the next installation overwrites.
    """
    if PROJECT_FOLDER == SHIPPED_FOLDER and not IS_CHECKOUT:
        raise UserError(
            f"{WORKING_FOLDER} has no config_files/ and maps/ of its own to add to: copy those that ship with "
            "python -m trackmania_rl init, and give the command again"
        )
    return PROJECT_FOLDER


def copy_to_working_folder() -> list[Path]:
    """Copy the shipped configurations and tracks into the current folder, unless they exist; return the copies."""
    copied = []
    for name in (CONFIG_FILES, MAPS):
        folder = WORKING_FOLDER / name
        if not folder.exists():
            shutil.copytree(SHIPPED_FOLDER / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
            copied.append(folder)
    return copied


def command_line_of(script: str) -> str:
    """Return the command of a script: for `train`, "python scripts/train.py" or, installed, "trackmania-train"."""
    file = SHIPPED_FOLDER / "scripts" / f"{script}.py"
    return f"python {shown_path(file)}" if IS_CHECKOUT else f"trackmania-{script.rpartition('/')[2]}"


def user_folder(name: str) -> Path:
    """Return a folder that only this user can write to, for caches and records of the user's processes.

    It is below the user's cache folder or, without a home folder, below the temporary folder.

    Raises:
        UserError: if it cannot be made, is a link, or belongs to another user.
    """
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: no home folder
        parent = platformdirs.user_cache_path("trackmania_rl", appauthor=False)
        parent.parent.mkdir(parents=True, exist_ok=True)
        return _private(_private(parent) / name)
    user = getpass.getuser() if sys.platform == "win32" else os.getuid()
    parent = Path(tempfile.gettempdir()) / f"trackmania_rl_{user}"
    try:
        return _private(_private(parent) / name)
    except OSError as error:
        raise UserError(f"{parent}: {error.strerror}; remove it, or set HOME to a folder of your own") from error


def _private(folder: Path) -> Path:
    """Make a folder that only this user can write to. Raise `OSError` for a link, a file or another user's folder."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder")
    if sys.platform != "win32":
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EACCES, "belongs to another user")
        folder.chmod(0o700)
    return folder


def program_version() -> str:
    """Return this program's version, "unknown" if it is not installed."""
    try:
        return importlib.metadata.version("trackmania-rl")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def git_revision() -> str | None:
    """Return the commit of the checkout, with `-changed` if files differ; None without one."""
    if not (IS_CHECKOUT and (SHIPPED_FOLDER / ".git").exists()):
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        return f"{commit}-changed" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):  # no git, or it refuses
        return None


def _git(*arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(SHIPPED_FOLDER), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
