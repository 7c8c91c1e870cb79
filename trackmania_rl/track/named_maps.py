"""Maps by name: from the map cycle, track files, and generated tracks by difficulty and seeds; new entries."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from trackmania_rl.errors import UserError
from trackmania_rl.files import MOST_LETTERS, check_file_name, write_durably
from trackmania_rl.gbx.challenge import CHALLENGE_SUFFIX, is_challenge_file
from trackmania_rl.paths import IS_CHECKOUT, PROJECT_FOLDER, SHIPPED_FOLDER, WORKING_FOLDER, command_line_of
from trackmania_rl.settings import MapEntry, Settings, load_settings, settings_from_flat
from trackmania_rl.simulator.tracks.track_design import TrackDesign
from trackmania_rl.simulator.tracks.track_file import find_track_file, reference_line_file
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track
from trackmania_rl.track.map_sources import TRACKS_FOLDER, map_source, write_in_folder

TRACKS_OF_A_GENERATOR: Final = 10
MOST_GENERATED_TRACKS: Final = 1000


def map_entries(
    settings: Settings,
    maps_folder: Path,
    names: Sequence[str] = (),
    tracks_folder: str | os.PathLike[str] | None = None,
) -> list[MapEntry]:
    """Return the maps with these names.

    Args:
        settings: run settings; the map cycle names maps.
        maps_folder: folder of tracks.
        names: names in the map cycle, track files with a reference line, or generated tracks as
            `generated:DIFFICULTY:FIRST_SEED-LAST_SEED`; none for the whole map cycle. A generator gives the first
            `TRACKS_OF_A_GENERATOR` seeds.
        tracks_folder: for generated tracks, evaluated only when needed; by default in the maps folder.

    Raises:
        UserError: if a name is none of these, or a track cannot be written.
    """
    known = {entry.map_name: entry for entry in reversed(settings.game.map_cycle)}
    tracks_folder = maps_folder / TRACKS_FOLDER if tracks_folder is None else tracks_folder
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
            entries += _written((generate_track(recipe).design for recipe in recipes), tracks_folder)
        else:
            try:
                track_file = find_track_file(name, maps_folder)
            except UserError as error:
                raise UserError(f"{error}; the maps of this run are {', '.join(sorted(known))}") from error
            entries.append(_entry_of_track(track_file))
    return entries


def explored_maps(settings: Settings, tracks_folder: str | os.PathLike[str]) -> tuple[list[MapEntry], list[float]]:
    """Return the map cycle's exploration maps, and their weights.

    An entry's races (`repeat`) are shared evenly among the tracks. In a cycle with only evaluation races, these count.

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
    """Return the tracks for `generated:DIFFICULTY:SEED` or `generated:DIFFICULTY:FIRST_SEED-LAST_SEED`, or none.

    Raises:
        UserError: if the rest in such a name is malformed.
    """
    kind, colon, rest = name.partition(":")
    if kind != "generated" or not colon:
        return []
    match = re.fullmatch(r"(\d*\.?\d+):(\d{1,18})(?:-(\d{1,18}))?", rest, re.ASCII)
    if match is None:
        raise UserError(f"{name}: write generated:DIFFICULTY:FIRST_SEED-LAST_SEED, such as generated:0.5:1000-1049")
    first = int(match[2])
    last = int(match[3] or match[2])
    if not first <= last < first + MOST_GENERATED_TRACKS:
        raise UserError(f"{name}: the first seed comes first, and {MOST_GENERATED_TRACKS} tracks at most are driven")
    return [TrackRecipe(seed, float(match[1])) for seed in range(first, last + 1)]


def _entries_of(line: MapEntry, tracks_folder: str | os.PathLike[str]) -> list[MapEntry]:
    if line.generator is None:
        return [line]
    return _written(map_source(line.generator).first(TRACKS_OF_A_GENERATOR), tracks_folder)


def _written(designs: Iterable[TrackDesign], tracks_folder: str | os.PathLike[str]) -> list[MapEntry]:
    return [_entry_of_track(write_in_folder(design, Path(tracks_folder))) for design in designs]


def _entry_of_track(track_file: Path) -> MapEntry:
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


EXPLORATION_RACES: Final = 4
"""As in the shipped configurations: four exploration races, then a greedy one."""
CYCLE_HEADING: Final = "# Written by scripts/tools/maps.py add."


def overrides_for_maps(settings: Settings, maps_folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return `map_cycle` and `run_name` for a training on maps by name (`train.py --map`).

    Args:
        settings: from the configuration; maps in its cycle keep names and races.
        maps_folder: folder of tracks and lines.
        names: as for `map_entries`, or tracks and lines in the maps folder; or the real game's maps.

    Raises:
        UserError: if a map is missing, or the configuration plays no races.
    """
    if not any(entry.has_files or entry.generator for entry in settings.game.map_cycle):
        raise UserError(f"--map: this configuration has no maps, as it plays {settings.game.games}")
    own = [entry.model_dump(exclude_defaults=True) for entry in settings.game.map_cycle]
    cycle: list[Mapping[str, Any]] = []
    for name in dict.fromkeys(names):
        of_name = [entry for entry in own if entry["map_name"] == name]
        cycle += of_name or training_entries(_map_of(name, settings, maps_folder))
    maps = dict.fromkeys(str(entry["map_name"]) for entry in cycle)
    run_name = as_file_name("_".join([settings.run.run_name, *maps]))
    return {"map_cycle": tuple(cycle), "run_name": run_name or settings.run.run_name}


def training_entries(of_map: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a map's exploration and evaluation entries for the map cycle.

    Args:
        of_map: `map_name`, and `map_path` with `reference_line` or a `generator`.
    """
    return [
        {**of_map, "is_explo": True, "fill_buffer": True, "repeat": EXPLORATION_RACES},
        {**of_map, "is_explo": False, "fill_buffer": True, "repeat": 1},
    ]


def _map_of(name: str, settings: Settings, maps_folder: Path) -> dict[str, Any]:
    if recipes := recipes_of(name):
        first = recipes[0]
        last = recipes[-1]
        generator = {"difficulty": first.difficulty, "first_seed": first.seed, "last_seed": last.seed}
        return {"map_name": first.name if first == last else f"{first.name}-{last.seed}", "generator": generator}
    if settings.game.game == "simulated":
        return _track(name, settings, maps_folder)
    return _real_map(name, settings, maps_folder)


def _track(name: str, settings: Settings, maps_folder: Path) -> dict[str, Any]:
    if is_challenge_file(Path(name)):
        track_name = as_file_name(Path(name).name[: -len(CHALLENGE_SUFFIX)]) or "NAME"
        raise UserError(
            f"--map {name}: a map of the real game; make a track of it with {_how_to_add(name, track_name)}, and train "
            f"with --map {track_name}"
        )
    try:
        track_file = find_track_file(name, maps_folder)
    except UserError as error:
        hint = f"a map of your own is added with {_how_to_add()}"
        raise UserError(f"--map {error}, the configuration's {_map_names(settings)}; {hint}") from error
    line_file = reference_line_file(track_file)
    files = {"map_path": track_file, "reference_line": line_file}
    return {"map_name": track_file.stem, **{key: _in_folder(file, maps_folder) for key, file in files.items()}}


def _real_map(name: str, settings: Settings, maps_folder: Path) -> dict[str, Any]:
    stem = Path(name).name
    if stem.lower().endswith(CHALLENGE_SUFFIX):
        stem = stem[: -len(CHALLENGE_SUFFIX)]
    map_file = maps_folder / f"{stem}.Challenge.Gbx"
    line_file = maps_folder / f"{stem}_0.5m.npy"
    missing = [str(file) for file in (map_file, line_file) if not file.is_file()]
    if missing:
        raise UserError(
            f"--map {name}: not among the configuration's maps ({_map_names(settings)}), and there is no "
            f"{' and no '.join(missing)}; add it with {_how_to_add()} --insert --config config_files/config_tmnf.py"
        )
    return {"map_name": stem, "map_path": map_file.name, "reference_line": line_file.name}


def _how_to_add(map_file: str = "MAP.Challenge.Gbx", name: str = "NAME") -> str:
    words = shlex.join([map_file, "REPLAY.Replay.Gbx", "--name", name])
    return f"{command_line_of('tools/maps')} add {words}"


def _map_names(settings: Settings) -> str:
    return ", ".join(dict.fromkeys(entry.map_name for entry in settings.game.map_cycle))


def _in_folder(file: Path, maps_folder: Path) -> str:
    try:
        return str(file.relative_to(maps_folder.resolve()))
    except ValueError:
        return str(file)


def cycle_with(config_file: Path, new: Sequence[Mapping[str, Any]], replace: bool) -> list[MapEntry]:
    """Return a configuration's map cycle with new entries; `UserError` if it is not usable, or a name is taken."""
    before = load_settings(config_file)
    old = [] if replace else list(before.game.map_cycle)
    if taken := {entry.map_name for entry in old} & {entry["map_name"] for entry in new}:
        raise UserError(f"{config_file}: its map_cycle has a map {min(taken)!r} already; choose another name")
    cycle = [*old, *map(MapEntry.model_validate, new)]
    settings_from_flat({**before.flat(), "map_cycle": cycle}, str(config_file))
    return cycle


def add_to_map_cycle(config_file: Path, new: Sequence[Mapping[str, Any]], replace: bool = False) -> Path:
    """Add entries to a configuration's map cycle, or replace it: an assignment at the file's end, where it wins.

    Returns:
        The file's backup.

    Raises:
        UserError: if the result is no usable configuration, a name is taken, or the file cannot be written.
    """
    before = load_settings(config_file)
    cycle = cycle_with(config_file, new, replace)
    text = config_file.read_bytes().decode()
    newline = "\r\n" if "\r\n" in text else "\n"
    written_before = _assignment(before.game.map_cycle).replace("\n", newline)
    text = text.removesuffix(written_before).rstrip() + newline * 2 + _assignment(cycle).replace("\n", newline)
    backup = config_file.with_name(f"{config_file.name}.bak")
    number = 1
    while backup.exists():
        number += 1
        backup = config_file.with_name(f"{config_file.name}.bak{number}")
    try:
        shutil.copy2(config_file, backup)
        write_durably(config_file, text.encode())
    except OSError as error:
        raise UserError(f"{config_file}: cannot be changed: {error.strerror}") from error
    return backup


def _assignment(cycle: Iterable[MapEntry]) -> str:
    entries = [f"{_entry_text(entry.model_dump(exclude_defaults=True))},\n" for entry in cycle]
    return f"{CYCLE_HEADING}\nmap_cycle = (\n{''.join(entries)})\n"


def _entry_text(entry: Mapping[str, Any]) -> str:
    """Format one entry as in a configuration file, without a comma after it."""
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in entry.items() if isinstance(value, str)}
    lines = [f'        "{name}": {texts.get(name, repr(value))},' for name, value in entry.items()]
    return "\n".join(("    {", *lines, "    }"))


def as_file_name(text: str) -> str | None:
    """Return the run or map name nearest to a text; None if nothing is left."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:MOST_LETTERS].strip("-._")
    with contextlib.suppress(ValueError):
        return check_file_name(name)
    return None


def folder_to_add_to() -> Path:
    """Return the project's folder, to write maps or settings.

    Raises:
        UserError: if it is an installed package, which the next installation overwrites.
    """
    if PROJECT_FOLDER == SHIPPED_FOLDER and not IS_CHECKOUT:
        raise UserError(
            f"{WORKING_FOLDER} has no config_files/ and maps/ of its own to add to: copy those that ship with "
            "python -m trackmania_rl init, and give the command again"
        )
    return PROJECT_FOLDER
