"""Move the game's personal record replays aside and back, without deleting or overwriting.

The game saves the player's best race on a map as ``Tracks/Replays/Autosaves/{login}_{map}.Replay.gbx`` and shows the
ghost in later races, and so in the agent's pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError

REPLAYS: Final = Path("Tracks", "Replays")
AUTOSAVES: Final = "Autosaves"
HIDDEN: Final = "Autosaves hidden"
"""Folder for hidden replays, beside `AUTOSAVES`."""
REPLAY_SUFFIX: Final = ".replay.gbx"


def autosaves_folder(trackmania_base_path: str) -> Path:
    """Return the game's personal records folder.

    Args:
        trackmania_base_path: the setting.

    Raises:
        UserError: if unset, or the folder is missing.
    """
    if not trackmania_base_path:
        raise UserError(
            "trackmania_base_path is not set: give --base-path, or set it in user_config.py, to the game's folder in "
            "your documents, usually Documents/TrackMania or Documents/TmForever"
        )
    folder = Path(trackmania_base_path).expanduser() / REPLAYS / AUTOSAVES
    if not folder.is_dir():
        raise UserError(
            f"{folder}: there is no such folder: the game makes it with the first personal record; if you have one, "
            "correct trackmania_base_path"
        )
    return folder


def replays_in(folder: Path, name_contains: str = "") -> list[Path]:
    """Return a folder's replays whose names contain a text (in any case), sorted by name."""
    return [file for file in _files(folder, name_contains) if file.name.lower().endswith(REPLAY_SUFFIX)]


def hide_records(autosaves: Path, name_contains: str = "") -> list[Path]:
    """Move replays aside, numbered if the names are taken there. Return the new places.

    Raises:
        UserError: if a file cannot be moved.
    """
    hidden = autosaves.with_name(HIDDEN)
    try:
        hidden.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{hidden}: cannot be made: {error.strerror}") from error
    moved = []
    for file in replays_in(autosaves, name_contains):
        target = hidden / file.name
        number = 2
        while target.exists():
            target = hidden / f"{file.name}.{number}"
            number = number + 1
        moved.append(_move(file, target))
    return moved


def restore_records(autosaves: Path, name_contains: str = "") -> tuple[list[Path], list[Path]]:
    """Move hidden replays back, except numbered ones and those whose place is taken.

    Returns:
        The moved files' new places, and the others.

    Raises:
        UserError: if a file cannot be moved.
    """
    hidden = autosaves.with_name(HIDDEN)
    back = [file for file in replays_in(hidden, name_contains) if not (autosaves / file.name).exists()]
    moved = [_move(file, autosaves / file.name) for file in back]
    return moved, [file for file in _files(hidden, name_contains) if REPLAY_SUFFIX in file.name.lower()]


def _files(folder: Path, name_contains: str) -> list[Path]:
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(file for file in files if name_contains.lower() in file.name.lower())


def _move(file: Path, target: Path) -> Path:
    try:
        return file.rename(target)
    except OSError as error:
        raise UserError(f"{file}: cannot be moved to {target}: {error.strerror}; end the game if it runs") from error
