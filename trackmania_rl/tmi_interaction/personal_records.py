"""The game's replays of personal records, whose ghosts it shows in every race, moved out of its sight and back.

The game saves a race that is the player's best on a map as ``Tracks/Replays/Autosaves/{login}_{map}.Replay.gbx`` and
shows its ghost from then on; the ghost is in the pictures that an agent sees. No file is deleted or overwritten here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trackmania_rl.errors import UserError

REPLAYS: Final = Path("Tracks", "Replays")
AUTOSAVES: Final = "Autosaves"
HIDDEN: Final = "Autosaves hidden"
"""Folder beside `AUTOSAVES` where hidden replays lie."""
REPLAY_SUFFIX: Final = ".replay.gbx"


@dataclass(frozen=True)
class Moves:
    """What was moved.

    Attributes:
        moved: where the files lie now.
        left: files that stayed because their place is taken, where they lie.
    """

    moved: tuple[Path, ...]
    left: tuple[Path, ...]


def autosaves_folder(trackmania_base_path: str) -> Path:
    """Return the folder where the game saves personal records.

    Args:
        trackmania_base_path: the setting of this name, the game's folder in the user's documents.

    Raises:
        UserError: if it is not set, or the folder is not there.
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
    """Return the replays of a folder whose names contain a text, by name; upper and lower case are the same."""
    wanted = name_contains.lower()
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(file for file in files if file.name.lower().endswith(REPLAY_SUFFIX) and wanted in file.name.lower())


def hide_records(autosaves: Path, name_contains: str = "") -> Moves:
    """Move replays of personal records aside; one that finds its name taken there gets a number after it.

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
        target, number = hidden / file.name, 2
        while target.exists():
            target, number = hidden / f"{file.name}.{number}", number + 1
        moved.append(_move(file, target))
    return Moves(tuple(moved), ())


def restore_records(autosaves: Path, name_contains: str = "") -> Moves:
    """Move hidden replays back; one whose place the game has filled meanwhile stays hidden, as do numbered ones.

    Raises:
        UserError: if a file cannot be moved.
    """
    hidden = autosaves.with_name(HIDDEN)
    wanted = name_contains.lower()
    moved = []
    for file in replays_in(hidden, name_contains):
        target = autosaves / file.name
        if not target.exists():
            moved.append(_move(file, target))
    rest = hidden.iterdir() if hidden.is_dir() else ()
    left = sorted(file for file in rest if REPLAY_SUFFIX in file.name.lower() and wanted in file.name.lower())
    return Moves(tuple(moved), tuple(left))


def _move(file: Path, target: Path) -> Path:
    try:
        return file.rename(target)
    except OSError as error:
        raise UserError(f"{file}: cannot be moved to {target}: {error.strerror}; end the game if it runs") from error
