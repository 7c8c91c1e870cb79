"""Where the project's own files are, and a user's: configurations, tracks, runs.

In a checkout all of them are in the checkout. An installed package carries configurations, tracks, scripts and examples
in a folder of its own, `shipped`, and writes runs into the current folder. `copy_to_working_folder` copies
configurations and tracks there, for who wants to edit them; from then on these are used.
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

_PACKAGE: Final = Path(__file__).absolute().parent  # where it is found, not where a link to it leads
DISTRIBUTION: Final = "trackmania-rl"
"""The installed package's name, as pip has it."""
IS_CHECKOUT: Final = (_PACKAGE.parent / "scripts" / "train.py").is_file()
"""Whether the package lies beside its scripts, as in the repository."""
SHIPPED_FOLDER: Final = _PACKAGE.parent if IS_CHECKOUT else _PACKAGE / "shipped"
"""Has `config_files`, `drivers`, `maps`, `scripts` and `examples` as they ship."""
WORKING_FOLDER: Final = _PACKAGE.parent if IS_CHECKOUT else Path.cwd()
"""Where runs are written unless told otherwise."""
CONFIG_FILES: Final = "config_files"
MAPS: Final = "maps"


def _project_folder() -> Path:
    has_its_own = (WORKING_FOLDER / CONFIG_FILES / "config.py").is_file()
    return WORKING_FOLDER if has_its_own else SHIPPED_FOLDER


PROJECT_FOLDER: Final = _project_folder()
"""Where configurations are looked for, and where a relative `maps_folder` begins."""


def folder_to_add_to() -> Path:
    """Return the project's folder, to put maps or settings there.

    Raises:
        UserError: if it is that of an installed package, which the next installation overwrites.
    """
    if PROJECT_FOLDER == SHIPPED_FOLDER and not IS_CHECKOUT:
        raise UserError(
            f"{WORKING_FOLDER} has no config_files/ and maps/ of its own to add to: copy those that ship with "
            "python -m trackmania_rl init, and give the command again"
        )
    return PROJECT_FOLDER


def copy_to_working_folder() -> list[Path]:
    """Copy the configurations and tracks that ship into the current folder, where they can be edited and added to.

    Returns:
        The folders that were copied; none in a checkout, which has them, and none that are there already.

    Raises:
        OSError: if they cannot be written.
    """
    copied = []
    for name in (CONFIG_FILES, MAPS):
        folder = WORKING_FOLDER / name
        if not folder.exists():
            shutil.copytree(SHIPPED_FOLDER / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
            copied.append(folder)
    return copied


def command_line_of(script: str) -> str:
    """Write how a script is run here: `train`, say, as "python scripts/train.py" or, installed, "trackmania-train"."""
    file = SHIPPED_FOLDER / "scripts" / f"{script}.py"
    return f"python {shown_path(file)}" if IS_CHECKOUT else f"trackmania-{script.rpartition('/')[2]}"


def user_folder(name: str) -> Path:
    """Return a folder that only this user can write to, for caches and for records shared by the user's processes.

    It is below the user's cache folder, or without a usable home folder below the temporary folder. Other users could
    have made a folder or a link of that name there, which is refused.

    Args:
        name: the folder's name.

    Raises:
        UserError: if the folder can't be made or belongs to someone else.
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
    """Make a folder, if it is missing, that only this user can write to.

    Raises:
        OSError: if it is a link, a file or another user's.
    """
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
    """Tell this program's version, as far as it is installed."""
    try:
        return importlib.metadata.version("trackmania-rl")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def git_revision() -> str | None:
    """Tell the commit of the checkout that is running, with `-changed` after it if files differ; None without one."""
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
