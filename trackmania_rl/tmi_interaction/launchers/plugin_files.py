"""Where TMInterface keeps its plugins, and putting ours there without losing anybody's work.

The published plugin that other programs use has the same file name, and users edit plugins. So whatever else lies at
the plugin's place is kept as a backup, under a name that TMInterface does not take for a plugin.
"""

from __future__ import annotations

import contextlib
import ntpath
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError
from trackmania_rl.files import replace_patiently

TMNF_ON_STEAM: Final = "11020"
"""The game's number on Steam, after which Proton names its folders."""
PLUGIN_NAME: Final = "Python_Link.as"
PLUGIN_FILE: Final = Path(__file__).resolve().parents[1] / PLUGIN_NAME
"""The plugin as it comes with the project."""

TMINTERFACE: Final = "TMInterface"
PLUGINS: Final = "Plugins"
USER_SHELL_FOLDERS: Final = r"Software\Microsoft\Windows\CurrentVersion\Explorer\User Shell Folders"
"""Where Windows' registry says where each of the user's folders is; OneDrive and users move them."""

_OUR_MARK: Final = "Python Link of trackmania-rl"
_VERSION_LINE: Final = re.compile(r"^const int LINK_VERSION = (\d+);", re.MULTILINE)
_MOST_PLUGIN_BYTES: Final = 1 << 20
"""What is larger is no version of ours; it is not read as a whole."""


class PluginFileError(UserError):
    """The plugins' folder is missing, or a file in it cannot be read or written."""


class Outcome(StrEnum):
    """What `install_plugin` found and did."""

    INSTALLED = "installed"
    UPDATED = "updated"
    UP_TO_DATE = "up to date"
    NEWER = "newer than this project's"


@dataclass(frozen=True)
class Installation:
    """The result of `install_plugin`.

    Attributes:
        path: where the plugin lies.
        outcome: what was done.
        backup: where the file lies that was there before; None if there was none, or it was left alone.
        version: the version that lies there now.
    """

    path: Path
    outcome: Outcome
    backup: Path | None
    version: int


def read_version(path: Path) -> int | None:
    """Which version of our plugin a file is; None if it is none of ours, or absent.

    Raises:
        PluginFileError: if the file is there and cannot be read.
    """
    return _version_of(_read(path))


def read_documents_from_registry() -> str | None:
    """Read the user's documents folder in Windows' registry, perhaps with variables in it; None without an entry."""
    if sys.platform == "win32":
        import winreg

        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_CURRENT_USER, USER_SHELL_FOLDERS) as key:
            return str(winreg.QueryValueEx(key, "Personal")[0])
    return None


def find_plugins_folder(
    trackmania_base_path: str,
    home: Path | None = None,
    read_documents: Callable[[], str | None] = read_documents_from_registry,
) -> Path:
    """Find TMInterface's folder of plugins; it is made where only TMInterface's own folder is there.

    Args:
        trackmania_base_path: the setting of this name: the game's folder in the user's documents, beside which
            TMInterface has its own. Empty: it is looked for in the usual places, Wine's included.
        home: the user's home folder.
        read_documents: says where the user's documents are, if the system knows.

    Raises:
        PluginFileError: naming the folders that were looked for.
    """
    if trackmania_base_path:
        base = Path(trackmania_base_path).expanduser()
        documents = [base.parent, base]
    else:
        documents = _usual_documents_folders(Path.home() if home is None else home)
        if moved_to := read_documents():
            documents.insert(0, Path(ntpath.expandvars(moved_to)))
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
        remedy = "set it to the game's folder in your documents, beside which TMInterface's lies"
    else:
        reason = "TMInterface's folder is in none of the usual places"
        remedy = "set trackmania_base_path in user_config.py to the game's folder in your documents"
    raise PluginFileError(
        f"{reason} (looked for {looked_for}): {remedy}, and start the game with TMInterface once: that makes the folder"
    )


def install_plugin(plugins_folder: Path, source: Path = PLUGIN_FILE) -> Installation:
    """Put the plugin into TMInterface's folder, or bring the one there up to date, for the game's next start.

    Nothing is lost: any other content is kept beside it as ``Python_Link.as.backup-N``. A newer version is left alone.

    Args:
        plugins_folder: see `find_plugins_folder`.
        source: the plugin that comes with the project.

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
    old_text = _read(target)
    old_version = _version_of(old_text)
    if old_text == new_text:
        return Installation(target, Outcome.UP_TO_DATE, None, new_version)
    if old_version is not None and old_version > new_version:
        return Installation(target, Outcome.NEWER, None, old_version)
    unfinished = target.with_name(PLUGIN_NAME + ".unfinished")
    try:
        unfinished.write_bytes(source.read_bytes())
        backup = None if old_text is None else _keep(target)
        replace_patiently(unfinished, target)
    except OSError as error:
        raise PluginFileError(
            f"{error.filename or target}: the plugin cannot be written: {error.strerror}; end the game if it runs, "
            f"or copy {source} there yourself"
        ) from error
    return Installation(target, Outcome.INSTALLED if old_text is None else Outcome.UPDATED, backup, new_version)


def _keep(path: Path) -> Path:
    """Keep a copy of a file under a free name, which does not end in .as."""
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
    """Return a file's text with plain line ends, however odd its bytes; None if there is none."""
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


def _usual_documents_folders(home: Path) -> list[Path]:
    """Return the user's documents on Windows, those inside Wine's default prefix, and those inside Steam's (Proton)."""
    folders = [home / "Documents", home / "OneDrive" / "Documents"]
    if os.name == "posix":
        prefixes = [Path(os.environ.get("WINEPREFIX") or home / ".wine")]
        for steam in (home / ".steam" / "steam", home / ".local" / "share" / "Steam"):
            prefixes.append(steam / "steamapps" / "compatdata" / TMNF_ON_STEAM / "pfx")
        for prefix in prefixes:
            for user in sorted((prefix / "drive_c" / "users").glob("*")):
                folders += [user / "Documents", user / "My Documents"]
    return folders
