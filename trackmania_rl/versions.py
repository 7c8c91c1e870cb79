"""Which version of this program is running: of the package, and of the checkout."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess

from trackmania_rl.places import IS_CHECKOUT, SHIPPED_FOLDER


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
