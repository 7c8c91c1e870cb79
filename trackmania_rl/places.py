"""Where the project's own files are, and a user's: configurations, tracks, runs.

In a checkout all of them are in the checkout. An installed package carries configurations, tracks, scripts and examples
in a folder of its own, `shipped`, and writes runs into the current folder. `copy_to_working_folder` copies
configurations and tracks there, for who wants to edit them; from then on these are used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.files import shown_path

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
