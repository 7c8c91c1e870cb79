"""`maps.py add`: from a map and a replay to an entry in the map cycle."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from maps_commands import _reporting, _sources, track
from trackmania_rl.cli import png_file
from trackmania_rl.errors import UserError
from trackmania_rl.files import FORM, NAME_PATTERN, as_file_name, check_file_name
from trackmania_rl.gbx.challenge import is_challenge_file
from trackmania_rl.gbx.replay import is_replay_file, read_embedded_map
from trackmania_rl.places import PROJECT_FOLDER, folder_to_add_to
from trackmania_rl.settings import load_settings
from trackmania_rl.settings.map_cycle import add_to_map_cycle, entry_text
from trackmania_rl.track.line_checks import check_line
from trackmania_rl.track.named_maps import training_entries

DESCRIPTION = """\
Take a map and a replay of it. Build the reference line, check it and draw it; copy the map beside it; make a track for
the simulated game. Then print the entries for map_cycle, or write them into a configuration file: --insert adds them,
--only puts them in place of all maps. The file as it was stays beside it, with .bak (then .bak2, ...) after its name.

A replay will do in place of the map's file, because it holds its map, which is then written to a file of its own:
  python scripts/tools/maps.py add best.Replay.Gbx --name mine

An entry's map_path is what the game loads. For the real game that is the map's file, which must also lie in the
game's Tracks/Challenges folder. For the simulated game it is the track, whose road lies along the line. A line alone
(.npy, from "maps.py line") can be added too: the simulated game lays a wide road over it.
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `add`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "add",
        help="build a map's line from a replay and add the map to the map cycle",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("map", type=Path, metavar="MAP", help="the map (.Challenge.Gbx), a replay that holds it, or a line (.npy)")
    add("replay", type=Path, nargs="*", metavar="REPLAY", help="replays or ghosts of the map; the fastest race is used")
    add("--name", type=map_name, help="name of the map in statistics and files (default: the map's)")
    add("--driver", metavar="LOGIN", help="only this driver's races")
    add("--mean", action="store_true", help="the mean of all races instead of the fastest")
    add("--picture", type=png_file, metavar="FILE.png", help="default: beside the line")
    add(
        "--config",
        type=Path,
        default=PROJECT_FOLDER / "config_files" / "config.py",
        help="default: config_files/config.py",
    )
    add("--maps-folder", type=Path, help="where line and map are put (default: the configuration's maps_folder)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--insert", action="store_true", help="add the entries to the configuration's map_cycle")
    how.add_argument("--only", action="store_true", help="make them the configuration's only maps")
    add("--force", action="store_true", help="overwrite files of that name")
    add("--ignore-problems", action="store_true", help="use the line even if it has a problem")
    parser.set_defaults(run=run)


def map_name(text: str) -> str:
    """A name as map_cycle takes it."""
    if re.fullmatch(NAME_PATTERN, text) is None:
        raise argparse.ArgumentTypeError(f"{text!r}: {FORM}")
    try:
        return check_file_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def run(arguments: argparse.Namespace) -> int:
    """Build, check, draw, and print or insert; the exit code is 1 if the line has a problem."""
    console, settings = Console(), load_settings(arguments.config)
    folder = arguments.maps_folder or folder_to_add_to() / settings.game.maps_folder
    source, name = source_of(arguments)
    report = check_line(source.line.points_m, source.challenge, source.checkpoint_m)
    console.print(Text(f"{name}, {source.title}: {len(source.line.points_m)} points"))
    for note in source.line.notes:
        console.print(Text(note))
    _reporting.print_report(console, report)

    line_file = folder / f"{name}_0.5m.npy"
    written, real = [], None
    if source.challenge is not None:
        written.append(put_map(arguments.map, folder, name, arguments.force))
        real = entries(name, written[0].name, line_file.name)
    written.append(_reporting.write_line(source.line.points_m, line_file, arguments.force))
    picture = arguments.picture or line_file.with_suffix(".png")
    _reporting.draw(picture, f"{name}, {source.title}", source, report)
    console.print(Text(f"wrote {', '.join(map(str, written))}\nlook at {picture}"), soft_wrap=True)
    if report.problems and not arguments.ignore_problems:
        console.print(
            Text(
                "the line has a problem, so nothing is put into the map cycle: try another replay (with --force, which "
                "overwrites this line), or use this line all the same (--ignore-problems)"
            ),
            soft_wrap=True,
        )
        return 1
    simulated, obstacle = simulated_entries(console, source, line_file, name, arguments.force)
    if arguments.insert or arguments.only:
        chosen = entries_for(settings.game.game, arguments.config, real, simulated, obstacle)
        backup = add_to_map_cycle(arguments.config, chosen, replace=arguments.only)
        console.print(Text(f"inserted into {arguments.config}; as it was: {backup}"), soft_wrap=True)
        own = (PROJECT_FOLDER / settings.game.maps_folder).resolve()
        if folder.resolve() != own:
            to_do = (
                f"train with --set {shlex.quote(f'maps_folder={folder.resolve()}')}"
                if arguments.only
                else f"copy them from {folder.resolve()} to {own}, where those of its other maps are"
            )
            console.print(Text(f"the files are not in its maps_folder: {to_do}"), soft_wrap=True)
    else:
        print_entries(console, real, simulated, obstacle)
    return 1 if report.problems else 0


def source_of(arguments: argparse.Namespace) -> tuple[_sources.Source, str]:
    """The line, and the map's name.

    Raises:
        UserError: if a file cannot be used, or what was given does not fit together.
    """
    if arguments.map.suffix == ".npy":
        if arguments.replay or arguments.driver is not None or arguments.mean:
            raise UserError(f"{arguments.map}: this is a line already; give replays with a map (.Challenge.Gbx) only")
        source = _sources.from_line(arguments.map)
        return source, arguments.name or name_of(arguments.map.stem.removesuffix("_0.5m"))
    if is_replay_file(arguments.map):
        read_embedded_map(arguments.map)  # raises where there is none
        replays = dict.fromkeys((arguments.map, *arguments.replay))
        source = _sources.from_replays(tuple(replays), None, arguments.driver, arguments.mean)
    elif is_challenge_file(arguments.map):
        if not arguments.map.exists():
            raise UserError(f"{arguments.map}: no such file")
        if not arguments.replay:
            raise UserError(f"{arguments.map}: the line is made of which replay? Name at least one after the map")
        source = _sources.from_replays(arguments.replay, arguments.map, arguments.driver, arguments.mean)
    else:
        raise UserError(
            f"{arguments.map}: give a map (.Challenge.Gbx) and its replays, or a replay (it holds its map), or a line"
        )
    assert source.challenge is not None
    return source, arguments.name or name_of(source.challenge.plain_name, arguments.map.name.split(".")[0])


def entries_for(
    game: str,
    config: Path,
    real: list[dict[str, Any]] | None,
    simulated: list[dict[str, Any]],
    obstacle: str | None,
) -> list[dict[str, Any]]:
    """The entries that suit the game of a configuration.

    Raises:
        UserError: if that game cannot drive the map.
    """
    if game == "simulated":
        if obstacle is None:
            return simulated
        raise UserError(
            f'{config} has game = "simulated", which cannot drive this map: {obstacle}. For the real game, insert it '
            "with --config config_files/config_tmnf.py"
        )
    if real is None:
        raise UserError(f'{config} has game = "{game}", which needs a map (.Challenge.Gbx), not only a line')
    return real


def name_of(*texts: str) -> str:
    """A name that map_cycle takes, as near to the first of some texts as it can be."""
    return next(filter(None, map(as_file_name, texts)), "map")


def put_map(map_file: Path, folder: Path, name: str, overwrite: bool) -> Path:
    """Put the map's file beside the line: the training reads the map's checkpoints from there.

    Args:
        map_file: the map, which keeps its name; or a replay, whose map gets the name `{name}.Challenge.Gbx`.
        folder: where it goes.
        name: the map's name in the map cycle.
        overwrite: replace another file of that name.

    Raises:
        UserError: if another file of that name is there, or it cannot be written.
    """
    is_replay = is_replay_file(map_file)
    copy = folder / (f"{name}.Challenge.Gbx" if is_replay else map_file.name)
    try:
        content = read_embedded_map(map_file) if is_replay else map_file.read_bytes()
        folder.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or overwrite:
            copy.write_bytes(content)
        elif copy.read_bytes() != content:
            remedy = "give another --name" if is_replay else f"rename {map_file}"
            raise UserError(f"{copy}: another map of that name is there; {remedy}, or --force to overwrite it")
    except OSError as error:
        raise UserError(f"cannot copy {map_file} to {copy}: {error.strerror}") from error
    return copy


def entries(name: str, map_path: str, line_file: str) -> list[dict[str, Any]]:
    """Entries of the map cycle: races that explore, and one that measures."""
    return training_entries({"map_name": name, "map_path": map_path, "reference_line": line_file})


def simulated_entries(
    console: Console, source: _sources.Source, line_file: Path, name: str, force: bool
) -> tuple[list[dict[str, Any]], str | None]:
    """Entries for the simulated game, and why it cannot drive the map, None if it can.

    A map whose blocks are all known is driven as it is; over another map's line a road is laid that is as wide and of
    the surface of its blocks, and over a line alone a wide one.
    """
    from trackmania_rl.simulator.tracks.track_file import TrackFileError, load_track
    from trackmania_rl.track.map_tracks import MapTrackError

    obstacle = None
    if source.challenge is not None:
        track_file = line_file.with_name(f"{name}.toml")
        try:
            made = track.write(source.challenge, source.line, track_file, force, again=True)
        except (MapTrackError, TrackFileError) as error:
            obstacle = str(error)
        else:
            for note in made.notes:
                console.print(Text(f"on the simulated game: {note}"))
            console.print(Text(f"wrote {', '.join(map(str, made.files))}"), soft_wrap=True)
            return entries(name, track_file.name, made.files[1].name), None
    try:
        load_track(line_file)
    except TrackFileError as error:
        return [], obstacle or str(error)
    return entries(name, line_file.name, line_file.name), None


def print_entries(
    console: Console, real: list[dict[str, Any]] | None, simulated: list[dict[str, Any]], obstacle: str | None
) -> None:
    """Print what to put into map_cycle, for both games."""
    if real is not None:
        console.print("\nfor the real game (config_files/config_tmnf.py), into map_cycle:")
        print(",\n".join(map(entry_text, real)) + ",")
    if obstacle is not None:
        console.print(Text(f"\nthe simulated game cannot drive this map: {obstacle}"), soft_wrap=True)
        return
    console.print("\nfor the simulated game (config_files/config.py), into map_cycle:")
    print(",\n".join(map(entry_text, simulated)) + ",")
