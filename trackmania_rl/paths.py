"""Project and user folders: configurations, tracks, runs, caches.

An installed package has configurations, tracks, scripts and examples in the folder `shipped`, and runs in the current
folder. Configurations there (`python -m trackmania_rl init`) take precedence.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import platformdirs

from trackmania_rl.errors import UserError
from trackmania_rl.start import DISTRIBUTION, IS_CHECKOUT

_PACKAGE: Final = Path(__file__).absolute().parent  # links are not resolved
SHIPPED_FOLDER: Final = _PACKAGE.parent if IS_CHECKOUT else _PACKAGE / "shipped"
"""Folder with the shipped `config_files`, `drivers`, `maps`, `scripts` and `examples`."""
WORKING_FOLDER: Final = _PACKAGE.parent if IS_CHECKOUT else Path.cwd()
"""Default run folder."""
CONFIG_FILES: Final = "config_files"
MAPS: Final = "maps"

PROJECT_FOLDER: Final = WORKING_FOLDER if (WORKING_FOLDER / CONFIG_FILES / "config.py").is_file() else SHIPPED_FOLDER
"""Configuration folder, and base of a relative `maps_folder`."""


def shown_path(path: Path) -> str:
    """Return a path as typed in the current folder, quoted if needed."""
    path = path.absolute()
    text = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return shlex.quote(text) if os.name == "posix" else f'"{text}"' if " " in text else text


def command_line_of(script: str) -> str:
    """Return a script's command: for `train`, "python scripts/train.py" or, installed, "trackmania-train"."""
    file = SHIPPED_FOLDER / "scripts" / f"{script}.py"
    return f"python {shown_path(file)}" if IS_CHECKOUT else f"trackmania-{script.rpartition('/')[2]}"


def user_folder(name: str) -> Path:
    """Return a folder below the user's cache folder, shared by the user's processes.

    Raises:
        UserError: if it cannot be made.
    """
    try:
        folder = platformdirs.user_cache_path("trackmania_rl", appauthor=False) / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        raise UserError(f"no cache folder: {error}; set HOME to a folder of your own") from error
    return folder


@functools.cache
def program_version() -> str:
    """Return a checkout's version, else the installed one, or "unknown"."""
    project_file = SHIPPED_FOLDER / "pyproject.toml"
    if project_file.is_file():  # absent in a wheel, and in a copy of scripts and configurations
        project = tomllib.loads(project_file.read_text(encoding="utf-8"))
        return str(project["project"]["version"])
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def git_revision() -> str | None:
    """Return the checkout's commit, with `-changed` if files differ; None without one."""
    if not (IS_CHECKOUT and (SHIPPED_FOLDER / ".git").exists()):
        return None
    command = "git --no-optional-locks describe --always --abbrev=40 --exclude=* --dirty=-changed"
    try:
        described = subprocess.run(command.split(), cwd=SHIPPED_FOLDER, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):  # no git, or it hangs
        return None
    return described.stdout.strip() or None
