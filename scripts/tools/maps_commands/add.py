"""Build a map's line from a replay and add the map to the map cycle.

Check and draw the line, copy the map beside it, and make a track for the simulated game. Then print the command that
trains on it. Entries of map_cycle can be written into a configuration file: --insert adds them, --only replaces all
maps. The previous file is kept as .bak (then .bak2, ...).

Instead of the map's file a replay can be given; its map is then written to a file.

An entry's map_path is loaded by the game. For the real game it is the map's file, which must also be in the game's
Tracks/Challenges folder. For the simulated game it is the track. A line alone (.npy, from "maps.py line") can be added
too: the simulated game lays a wide road over it.
"""

from __future__ import annotations

import argparse
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maps_commands import _reporting
from maps_commands._reporting import say, title_of
from trackmania_rl.cli import png_file, writing
from trackmania_rl.errors import UserError
from trackmania_rl.files import FORM, NAME_PATTERN, check_file_name, write_durably
from trackmania_rl.gbx.challenge import is_challenge_file
from trackmania_rl.gbx.reading import wrong_name
from trackmania_rl.gbx.replay import is_replay_file, read_embedded_map
from trackmania_rl.paths import PROJECT_FOLDER, command_line_of
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.track import line_sources
from trackmania_rl.track.named_maps import (
    add_to_map_cycle,
    as_file_name,
    cycle_with,
    folder_to_add_to,
    training_entries,
)

Entries = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("map", type=Path, metavar="MAP", help="the map (.Challenge.Gbx), a replay that holds it, or a line (.npy)")
    add("replay", type=Path, nargs="*", metavar="REPLAY", help="replays or ghosts of the map; the fastest race is used")
    add("--name", type=map_name, help="name of the map in statistics and files (default: the map's)")
    add("--driver", metavar="LOGIN", help="only this driver's races")
    add("--mean", action="store_true", help="the mean of all races instead of the fastest")
    add("--picture", type=png_file, metavar="FILE.png", help="default: beside the line")
    config = PROJECT_FOLDER / "config_files" / "config.py"
    add("--config", type=Path, default=config, help="default: config_files/config.py")
    add("--maps-folder", type=Path, help="where line and map are put (default: the configuration's maps_folder)")
    how = parser.add_mutually_exclusive_group().add_argument
    how("--insert", action="store_true", help="add the entries to the configuration's map_cycle")
    how("--only", action="store_true", help="make them the configuration's only maps")
    add("--force", action="store_true", help="overwrite files of that name")
    add("--ignore-problems", action="store_true", help="use the line even if it has a problem")


def map_name(text: str) -> str:
    if re.fullmatch(NAME_PATTERN, text) is None:
        raise argparse.ArgumentTypeError(f"{text!r}: {FORM}")
    try:
        return check_file_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    folder = arguments.maps_folder or folder_to_add_to() / settings.game.maps_folder
    source, name = source_of(arguments)
    title = f"{name}, {title_of(source)}"
    report = _reporting.report_on(source, title)
    line_file = folder / f"{name}_0.5m.npy"
    real: Entries | None = None
    simulated: Entries = []
    chosen: Entries = []
    obstacle: str | None = None
    has_problem = bool(report.problems) and not arguments.ignore_problems
    with tempfile.TemporaryDirectory() as temporary:  # nothing is put into the folder before all is checked
        made = Path(temporary)
        _reporting.write_line(source.line.points_m, made / line_file.name, overwrite=True)
        if source.challenge is not None:
            real = entries(name, put_map(arguments.map, made, name), line_file)
        if not has_problem:
            simulated, obstacle = simulated_entries(source, made / line_file.name, name)
        if (arguments.insert or arguments.only) and not has_problem:
            chosen = entries_for(settings.game.game, arguments.config, real, simulated, obstacle)
            cycle_with(arguments.config, chosen, replace=arguments.only)
        put_into(folder, sorted(made.iterdir()), arguments.force)
    _reporting.draw(arguments.picture or line_file.with_suffix(".png"), title, source, report)
    if has_problem:
        say(
            "the line has a problem, so nothing is put into the map cycle: try another replay (with --force, which "
            "overwrites this line), or use this line all the same (--ignore-problems)"
        )
        return 1
    if chosen:
        backup = add_to_map_cycle(arguments.config, chosen, replace=arguments.only)
        say(f"inserted into {arguments.config}; as it was: {backup}")
        own = (PROJECT_FOLDER / settings.game.maps_folder).resolve()
        if folder.resolve() != own:
            train = f"train with --set {shlex.quote(f'maps_folder={folder.resolve()}')}"
            copy = f"copy them from {folder.resolve()} to {own}, where those of its other maps are"
            say(f"the files are not in its maps_folder: {train if arguments.only else copy}")
    else:
        say_how_to_train(simulated, obstacle, folder, settings)
    return 1 if report.problems else 0


def source_of(arguments: argparse.Namespace) -> tuple[line_sources.LineSource, str]:
    """Return the line and the map's name; UserError if the arguments contradict each other."""
    file: Path = arguments.map
    if file.suffix == ".npy":
        if arguments.replay or arguments.driver is not None or arguments.mean:
            raise UserError(f"{file}: this is a line already; give replays with a map (.Challenge.Gbx) only")
        return line_sources.from_line(file), arguments.name or name_of(file.stem.removesuffix("_0.5m"))
    replays, map_file = arguments.replay, None
    if is_replay_file(file):
        read_embedded_map(file)  # raises without a map
        replays = tuple(dict.fromkeys((file, *replays)))
    elif is_challenge_file(file):
        map_file = file
        if not file.exists():
            raise UserError(f"{file}: no such file")
        if not replays:
            raise UserError(f"{file}: the line is made of which replay? Name at least one after the map")
    else:
        raise wrong_name(file)
    source = line_sources.from_replays(replays, map_file, arguments.driver, arguments.mean)
    assert source.challenge is not None
    return source, arguments.name or name_of(source.challenge.plain_name, file.name.split(".")[0])


def entries_for(game: str, config: Path, real: Entries | None, simulated: Entries, obstacle: str | None) -> Entries:
    """Return the entries for a configuration's game; UserError if that game cannot drive the map."""
    if game != "simulated":
        if real is None:
            raise UserError(f'{config} has game = "{game}", which needs a map (.Challenge.Gbx), not only a line')
        return real
    if obstacle is not None:
        raise UserError(
            f'{config} has game = "simulated", which cannot drive this map: {obstacle}. For the real game, insert it '
            "with --config config_files/config_tmnf.py"
        )
    return simulated


def name_of(*texts: str) -> str:
    return next(filter(None, map(as_file_name, texts)), "map")


def put_map(map_file: Path, folder: Path, name: str) -> Path:
    """Copy the map's file into a folder; name a replay's map `{name}.Challenge.Gbx`."""
    is_replay = is_replay_file(map_file)
    copy = folder / (f"{name}.Challenge.Gbx" if is_replay else map_file.name)
    with writing(copy):
        copy.write_bytes(read_embedded_map(map_file) if is_replay else map_file.read_bytes())
    return copy


def put_into(folder: Path, files: Sequence[Path], overwrite: bool) -> None:
    """Copy files into a folder, all or none; `UserError` if another file of such a name is there."""
    from trackmania_rl.simulator.tracks.track_design import file_in_the_way  # slow import

    if not overwrite and (present := file_in_the_way(files, folder)) is not None:
        raise UserError(f"{present}: another file of that name is there; give another --name, or --force to overwrite")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            write_durably(folder / file.name, file.read_bytes())
    say(f"wrote {', '.join(str(folder / file.name) for file in files)}")


def entries(name: str, map_file: Path, line_file: Path) -> Entries:
    """Return map cycle entries: exploration races, and one evaluation race."""
    return training_entries({"map_name": name, "map_path": map_file.name, "reference_line": line_file.name})


def simulated_entries(source: line_sources.LineSource, line_file: Path, name: str) -> tuple[Entries, str | None]:
    """Return entries for the simulated game, or the reason why it cannot drive the map.

    The track is made of the map's blocks if all are known, else it is a road along the line.
    """
    # Slow imports.
    from trackmania_rl.simulator.tracks.track_file import TrackFileError, load_track
    from trackmania_rl.track.block_tracks import write_map_track
    from trackmania_rl.track.map_tracks import MapTrackError

    obstacle = None
    if source.challenge is not None:
        track_file = line_file.with_name(f"{name}.toml")
        try:
            with writing(track_file):
                made = write_map_track(source.challenge, source.line.points_m, track_file, overwrite=True)
        except (MapTrackError, TrackFileError) as error:
            obstacle = str(error)
        else:
            for note in made.notes:
                say(f"on the simulated game: {note}")
            return entries(name, track_file, made.files[1]), None
    try:
        load_track(line_file)
    except TrackFileError as error:
        return [], obstacle or str(error)
    return entries(name, line_file, line_file), None


def say_how_to_train(simulated: Entries, obstacle: str | None, folder: Path, settings: Settings) -> None:
    """Print the command that trains on the new map."""
    if obstacle is not None:
        say(f"the simulated game cannot drive this map: {obstacle}")
        say("for the real game give the command again with --insert --config config_files/config_tmnf.py")
        return
    file = Path(simulated[0]["map_path"])
    command = f"{command_line_of('train')} --map {shlex.quote(file.stem if file.suffix == '.toml' else file.name)}"
    if folder.resolve() != (PROJECT_FOLDER / settings.game.maps_folder).resolve():
        command += f" --set {shlex.quote(f'maps_folder={folder.resolve()}')}"
    say(f"train on it: {command}")
