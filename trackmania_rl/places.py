"""Where the project's own files are, and a user's: configurations, tracks, runs.

In a checkout all of them are in the checkout. An installed package carries configurations, tracks, scripts and examples
in a folder of its own, `shipped`, and writes runs into the current folder. `copy_to_working_folder` copies
configurations and tracks there, for who wants to edit them; from then on these are used.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

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
