"""TMInterface's plugin folder, and this project's plugin installation.

Other plugins have the same file name, and users edit plugins. Any other file with that name is backed up under a name
that TMInterface does not load.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import platformdirs

from trackmania_rl.errors import UserError
from trackmania_rl.files import replace_patiently

log = logging.getLogger(__name__)

TMNF_ON_STEAM: Final = "11020"
"""Steam's number for the game, in Proton's folder names."""
PLUGIN_NAME: Final = "Python_Link.as"
PLUGIN_FILE: Final = Path(__file__).resolve().parents[1] / PLUGIN_NAME
"""The shipped plugin."""
GAME_FOLDERS: Final = ("TrackMania", "TmForever")
TMINTERFACE: Final = "TMInterface"
PLUGINS: Final = "Plugins"

_OUR_MARK: Final = "Python Link of trackmania-rl"
_VERSION_LINE: Final = re.compile(r"^const int LINK_VERSION = (\d+);", re.MULTILINE)
_MOST_PLUGIN_BYTES: Final = 1 << 20


class PluginFileError(UserError):
    """The plugins' folder is missing, or a file in it cannot be read or written."""


class Outcome(StrEnum):
    """Installation result."""

    INSTALLED = "installed"
    UPDATED = "updated"
    UP_TO_DATE = "up to date"
    NEWER = "newer than this project's"


@dataclass(frozen=True)
class Installation:
    """Result of `install_plugin`.

    Attributes:
        backup: copy of the previous file; None if there was none or it was left alone.
        version: the plugin's there now.
    """

    path: Path
    outcome: Outcome
    backup: Path | None
    version: int


def find_plugins_folder(trackmania_base_path: str) -> Path:
    """Find TMInterface's plugin folder; make it if only the parent exists.

    Args:
        trackmania_base_path: the game's folder in the user's documents, beside TMInterface's. If empty, the usual
            places are searched, including Wine's and Proton's.

    Raises:
        PluginFileError: with the searched folders.
    """
    if trackmania_base_path:
        base = Path(trackmania_base_path).expanduser()
        documents = [base.parent, base]
    else:
        documents = _usual_documents_folders()
    for folder in documents:
        if (folder / TMINTERFACE).is_dir():
            plugins = folder / TMINTERFACE / PLUGINS
            try:
                plugins.mkdir(exist_ok=True)
            except OSError as error:
                raise PluginFileError(f"{plugins}: cannot be made: {error.strerror}") from error
            return plugins
    looked_for = ", ".join(str(folder / TMINTERFACE) for folder in documents)
    if trackmania_base_path:
        reason = f"trackmania_base_path = {trackmania_base_path!r} leads to no folder of TMInterface's"
        place = find_game_documents() or "the game's folder in your documents, beside TMInterface's"
        remedy = f"set it to {place}"
    else:
        reason = "TMInterface's folder is in none of the usual places"
        remedy = "set trackmania_base_path in user_config.py to the game's folder in your documents"
    raise PluginFileError(
        f"{reason} (looked for {looked_for}): {remedy}, and start the game with TMInterface once: that makes the folder"
    )


def find_game_documents() -> Path | None:
    """Return the game's folder in the user's documents, at the usual places."""
    for documents in _usual_documents_folders():
        for name in GAME_FOLDERS:
            if (documents / name / "Tracks" / "Challenges").is_dir():
                return documents / name
    return None


def install_plugin(plugins_folder: Path, source: Path = PLUGIN_FILE) -> Installation:
    """Install or update the plugin for the game's next start.

    Other content is kept beside it as ``Python_Link.as.backup-N``. A newer version is left alone.

    Raises:
        PluginFileError: if the folder or a file in it cannot be read or written.
    """
    target = plugins_folder / PLUGIN_NAME
    new_text = _read(source)
    new_version = _version_of(new_text)
    if new_text is None or new_version is None:
        raise PluginFileError(f"{source}: is not this project's plugin: install the project again")
    if not plugins_folder.is_dir():
        raise PluginFileError(f"{plugins_folder}: there is no such folder: start the game with TMInterface once")
    present_text = _read(target)
    present_version = _version_of(present_text)
    if present_text == new_text:
        return Installation(target, Outcome.UP_TO_DATE, None, new_version)
    if present_version is not None and present_version > new_version:
        return Installation(target, Outcome.NEWER, None, present_version)
    unfinished = target.with_name(PLUGIN_NAME + ".unfinished")
    try:
        unfinished.write_bytes(source.read_bytes())
        backup = None if present_text is None else _keep(target)
        replace_patiently(unfinished, target)
    except OSError as error:
        raise PluginFileError(
            f"{error.filename or target}: the plugin cannot be written: {error.strerror}; end the game if it runs, "
            f"or copy {source} there yourself"
        ) from error
    return Installation(target, Outcome.INSTALLED if present_text is None else Outcome.UPDATED, backup, new_version)


def _keep(path: Path) -> Path:
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.backup-{number}")
        try:
            with backup.open("xb") as file:
                file.write(path.read_bytes())
        except FileExistsError:
            number += 1
        else:
            return backup


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_PLUGIN_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PluginFileError(f"{path}: cannot be read: {error.strerror}") from error
    return data.decode(errors="replace").replace("\r\n", "\n")


def _version_of(text: str | None) -> int | None:
    if text is None or _OUR_MARK not in text:
        return None
    line = _VERSION_LINE.search(text)
    return int(line[1]) if line else None


def _usual_documents_folders() -> list[Path]:
    home = Path.home()
    folders = [home / "Documents", home / "OneDrive" / "Documents", home]  # the last one is Wine's without the first
    if sys.platform == "win32":
        return [platformdirs.user_documents_path(), *folders]
    prefixes = [Path(os.environ.get("WINEPREFIX") or home / ".wine")]
    for steam in (home / ".steam" / "steam", home / ".local" / "share" / "Steam"):
        prefixes.append(steam / "steamapps" / "compatdata" / TMNF_ON_STEAM / "pfx")
    for prefix in prefixes:
        for user in sorted((prefix / "drive_c" / "users").glob("*")):
            folders += [user / "Documents", user / "My Documents"]
    return folders


def put_plugin_in_place(base_path: str) -> None:
    """Install or update the plugin if TMInterface's folder is found; UserError if the configured folder is wrong."""
    try:
        folder = find_plugins_folder(base_path)
    except UserError as error:
        if base_path:
            raise
        log.warning("the plugin is left as it is: %s", error)  # e.g. installed in another Wine prefix
        return
    installation = install_plugin(folder)
    log.info("plugin version %d, %s: %s", installation.version, installation.outcome, installation.path)
