"""The maps that a user names: of the map cycle, track files, and generated tracks by difficulty and seeds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from trackmania_rl.errors import UserError
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.simulator.tracks.track_file import find_track_file, reference_line_file
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.track.generated_maps import first_recipes, write_in_folder

TRACKS_OF_A_GENERATOR: Final = 10
"""So many tracks stand for a generator of the map cycle."""
MOST_GENERATED_TRACKS: Final = 1000


def map_entries(
    settings: Settings,
    maps_folder: Path,
    names: Sequence[str] = (),
    tracks_folder: str | os.PathLike[str] | None = None,
) -> list[MapEntry]:
    """The maps to drive.

    Args:
        settings: a run's, whose map cycle gives names to maps.
        maps_folder: where tracks lie.
        names: names of the map cycle, track files with a reference line, or generated tracks as
            `generated:DIFFICULTY:FIRST_SEED-LAST_SEED`; none for all maps of the map cycle. A generator of the map
            cycle stands for its first `TRACKS_OF_A_GENERATOR` seeds.
        tracks_folder: where generated tracks are written, asked for its path only then; None for a folder of this
            name in the maps folder.

    Raises:
        UserError: if a name is none of these, or a track cannot be written.
    """
    known = {entry.map_name: entry for entry in reversed(settings.game.map_cycle)}
    tracks_folder = maps_folder / "generated_tracks" if tracks_folder is None else tracks_folder
    entries = []
    for name in dict.fromkeys(names or (entry.map_name for entry in settings.game.map_cycle)):
        recipes = recipes_of(name)
        if name in known:
            if not (known[name].has_files or known[name].generator):
                raise UserError(
                    f"{name}: no map, but a name for what {settings.game.games} plays; only races are driven"
                )
            entries += _entries_of(known[name], tracks_folder)
        elif recipes:
            entries += _written(recipes, tracks_folder)
        else:
            try:
                track_file = find_track_file(name, maps_folder)
            except UserError as error:
                raise UserError(f"{error}; the maps of this run are {', '.join(sorted(known))}") from error
            entries.append(_entry_of_track(track_file))
    return entries


def explored_maps(settings: Settings, tracks_folder: str | os.PathLike[str]) -> tuple[list[MapEntry], list[float]]:
    """The maps of the map cycle that are explored, and how often each is driven in proportion.

    An entry's races (`repeat`) are shared evenly among the tracks that stand for it, where it is a generator (see
    `map_entries`). A cycle of evaluation races alone stands for itself.

    Args:
        settings: a run's.
        tracks_folder: as of `map_entries`.

    Raises:
        UserError: if a track cannot be written.
    """
    cycle = settings.game.map_cycle
    entries: list[MapEntry] = []
    weights: list[float] = []
    for line in [entry for entry in cycle if entry.is_explo] or cycle:
        tracks = _entries_of(line, tracks_folder)
        entries += tracks
        weights += [line.repeat / len(tracks)] * len(tracks)
    return entries, weights


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


def _entries_of(line: MapEntry, tracks_folder: str | os.PathLike[str]) -> list[MapEntry]:
    """A line of a map cycle, or the tracks that stand for it if it is a generator."""
    if line.generator is None:
        return [line]
    return _written(first_recipes(line.generator, TRACKS_OF_A_GENERATOR), tracks_folder)


def _written(recipes: Iterable[TrackRecipe], tracks_folder: str | os.PathLike[str]) -> list[MapEntry]:
    """Generated tracks, whose files are written."""
    return [_entry_of_track(write_in_folder(recipe, Path(tracks_folder))) for recipe in recipes]


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
