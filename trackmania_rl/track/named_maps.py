"""The maps that a user names: of the map cycle, track files, and generated tracks by difficulty and seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from trackmania_rl.errors import UserError
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.simulator.track_file import find_track_file, reference_line_file
from trackmania_rl.simulator.track_generator import TrackRecipe
from trackmania_rl.track.generated_maps import first_recipes, write_in_folder

TRACKS_OF_A_GENERATOR: Final = 10
"""So many tracks stand for a generator of the map cycle."""
MOST_GENERATED_TRACKS: Final = 1000


def map_entries(
    settings: Settings, maps_folder: Path, names: Sequence[str] = (), tracks_folder: Path | None = None
) -> list[MapEntry]:
    """The maps to drive.

    Args:
        settings: a run's, whose map cycle gives names to maps.
        maps_folder: where tracks lie.
        names: names of the map cycle, track files with a reference line, or generated tracks as
            `generated:DIFFICULTY:FIRST_SEED-LAST_SEED`; none for all maps of the map cycle. A generator of the map
            cycle stands for its first `TRACKS_OF_A_GENERATOR` seeds.
        tracks_folder: where generated tracks are written; None for a folder of this name in the maps folder.

    Raises:
        UserError: if a name is none of these, or a track cannot be written.
    """
    known = {entry.map_name: entry for entry in reversed(settings.game.map_cycle)}
    tracks_folder = tracks_folder or maps_folder / "generated_tracks"
    entries = []
    for name in dict.fromkeys(names or (entry.map_name for entry in settings.game.map_cycle)):
        recipes = recipes_of(name)
        if name in known:
            generator = known[name].generator
            if generator is None:
                entries.append(known[name])
                continue
            recipes = first_recipes(generator, TRACKS_OF_A_GENERATOR)
        if recipes:
            entries += [_entry_of_track(write_in_folder(recipe, tracks_folder)) for recipe in recipes]
            continue
        try:
            track_file = find_track_file(name, maps_folder)
        except UserError as error:
            raise UserError(f"{error}; the maps of this run are {', '.join(sorted(known))}") from error
        entries.append(_entry_of_track(track_file))
    return entries


def recipes_of(name: str) -> list[TrackRecipe]:
    """The tracks of `generated:DIFFICULTY:SEED` or `generated:DIFFICULTY:FIRST_SEED-LAST_SEED`; none of another name.

    Raises:
        UserError: if it begins like that, but does not go on so.
    """
    kind, colon, rest = name.partition(":")
    if kind != "generated" or not colon:
        return []
    match = re.fullmatch(r"(\d*\.?\d+):(\d{1,18})(?:-(\d{1,18}))?", rest, re.ASCII)
    if match is None:
        raise UserError(f"{name}: write generated:DIFFICULTY:FIRST_SEED-LAST_SEED, such as generated:0.5:1000-1049")
    first, last = int(match[2]), int(match[3] or match[2])
    if not first <= last < first + MOST_GENERATED_TRACKS:
        raise UserError(f"{name}: the first seed comes first, and {MOST_GENERATED_TRACKS} tracks at most are driven")
    return [TrackRecipe(seed, float(match[1])) for seed in range(first, last + 1)]


def _entry_of_track(track_file: Path) -> MapEntry:
    """A track file as a line of a map cycle, named like the file."""
    line_file = reference_line_file(track_file)
    try:
        return MapEntry(
            map_name=track_file.stem,
            map_path=str(track_file),
            reference_line=str(line_file),
            is_explo=False,
            fill_buffer=False,
        )
    except ValidationError as error:
        raise UserError(
            f"{track_file}: its name cannot be a map's name ({error.errors()[0]['msg']}); rename it"
        ) from None
