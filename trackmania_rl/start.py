"""Command start in a Python that lacks something: one line that says what to run. Standard library only.

It must be readable for older Pythons, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

OLDEST_PYTHON: Final = (3, 11)
NEWEST_PYTHON: Final = (3, 13)
"""The versions that are tested, as pyproject.toml's `requires-python`."""
DISTRIBUTION: Final = "trackmania-rl"
"""Package name for pip."""
PACKAGE: Final = Path(__file__).resolve().parent
IS_CHECKOUT: Final = (PACKAGE.parent / "scripts" / "train.py").is_file()
"""True if the package is in the repository."""
INSTALL: Final = f"python -m pip install {'-r requirements.txt' if IS_CHECKOUT else DISTRIBUTION}"
IS_COMMAND: Final = (
    Path(sys.argv[0]).resolve().is_relative_to(PACKAGE.parent / "scripts")
    or Path(sys.argv[0]).name.startswith("trackmania-")
    or sys.argv[0] == "-m"  # python -m trackmania_rl, whose package is being imported
)
"""True in this project's programs, false in others that import it."""


class UntestedPythonError(ImportError):
    """The Python is older or newer than the tested ones."""


def require_tested_python() -> None:
    """Raise an `UntestedPythonError` in a Python that is not tested."""
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        found, oldest, newest = (
            f"{major}.{minor}" for major, minor in (sys.version_info[:2], OLDEST_PYTHON, NEWEST_PYTHON)
        )
        raise UntestedPythonError(
            f"this is Python {found}, and {oldest} to {newest} are tested: {remedy(f'python{newest}')}"
        )


def remedy(new_python: str = "python3") -> str:
    """Return the command that gives the packages: activate this folder's environment, or make it, or install."""
    home = PACKAGE.parent / ".venv"
    shown = ".venv" if Path.cwd() == home.parent else str(home)
    is_windows = os.name == "nt"
    activate = f"{shown}\\Scripts\\activate" if is_windows else f"source {shown}/bin/activate"
    if IS_CHECKOUT and home.is_dir() and Path(sys.prefix).resolve() != home.resolve():
        return activate
    if sys.prefix != sys.base_prefix:
        return INSTALL
    make = f"{'py' if is_windows else new_python} -m venv {shown}"
    return " && ".join([make, activate, INSTALL]) if IS_CHECKOUT else INSTALL


def show_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Show an uncaught error: in one line if this Python or a package is the reason."""
    if isinstance(error, UntestedPythonError):
        print(f"error: {error}", file=sys.stderr)
    elif isinstance(error, ModuleNotFoundError) and _is_imported_here(traceback):
        print(f"error: the package {error.name} is not installed in {sys.executable}: {remedy()}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def _is_imported_here(traceback: TracebackType | None) -> bool:
    """Return whether a traceback's last line is in the package or scripts, not in a user's file."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = Path("" if traceback is None else traceback.tb_frame.f_code.co_filename).resolve()
    return any(file.is_relative_to(folder) for folder in (PACKAGE, PACKAGE.parent / "scripts"))
