"""The tracks that a user of the benchmark names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trackmania_rl.simulator.tracks.track_file import find_track_file
from trackmania_rl.track.generated_maps import write_in_folder
from trackmania_rl.track.named_maps import recipes_of

PROJECT = Path(__file__).resolve().parents[2]


def find_tracks(names: Sequence[str], generated_tracks: Path) -> list[Path]:
    """The files of tracks of maps/, of track files, and of `generated:DIFFICULTY:SEED` or `...:FIRST_SEED-LAST_SEED`.

    Args:
        names: what the user wrote.
        generated_tracks: the folder in which generated tracks are written; made when there is one.

    Raises:
        UserError: if there is no track of a name, or one cannot be written.
    """
    files = []
    for name in names:
        recipes = recipes_of(name)
        if not recipes:
            files.append(find_track_file(name, PROJECT / "maps"))
        files += [write_in_folder(recipe, generated_tracks) for recipe in recipes]
    return files
