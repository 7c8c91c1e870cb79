"""`maps.py track`: a track of the simulated game along a line through a real map."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from maps_commands import _sources
from trackmania_rl.cli import png_file
from trackmania_rl.errors import UserError
from trackmania_rl.files import write_png
from trackmania_rl.gbx.challenge import STADIUM, Challenge, is_challenge_file, read_challenge
from trackmania_rl.gbx.replay import is_replay_file, read_replay
from trackmania_rl.track.line_building import LINE_SPACING_M, BuiltLine
from trackmania_rl.track.reference_line import load_reference_line

if TYPE_CHECKING:
    from trackmania_rl.simulator.tracks.world import Track

PICTURE_WIDTH_PX = 1000
DESCRIPTION = """\
Make a track for the simulated game of a map and a line through it. Where all blocks that one drives on are known, it
is the map as its blocks make it (--ground blocks): loops, walls, pads and gates are where they are. Three files are
written: the track (NAME.toml), its line (NAME_0.5m.npy) and its world (NAME_world.safetensors).

Otherwise (--ground line) it is a road along the line. Where the blocks under it are known, it has their width and
surface; its checkpoints are the map's. Loops and walls are rolled out to level road. Two files are written: the track
and its line (NAME_road_0.5m.npy). All belong in the maps folder.

Examples:
  maps.py track mine.Challenge.Gbx best.Replay.Gbx --output maps/mine.toml --picture mine.png --drive careful
  maps.py track mine.Challenge.Gbx maps/mine_0.5m.npy --output maps/mine.toml
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `track`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "track",
        help="make a track for the simulated game from a map and a line or a replay",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("map", type=Path, metavar="MAP", help="a .Challenge.Gbx, or a replay that holds its map")
    add(
        "source",
        type=Path,
        metavar="LINE_OR_REPLAY",
        help="a reference line (.npy), or a replay, whose fastest race is used",
    )
    add("--output", required=True, type=track_file, metavar="FILE.toml")
    add(
        "--ground",
        choices=("blocks", "line"),
        help="what is driven on: the map's blocks, or a road along the line (default: blocks if all are known)",
    )
    add("--picture", type=png_file, metavar="FILE.png", help="draw the track")
    add(
        "--drive",
        choices=("careful", "fast"),
        help="let the scripted driver race on it, and draw that as well; it follows roads along a line only",
    )
    add("--force", action="store_true", help="overwrite the outputs if they are there")
    parser.set_defaults(run=run)


def track_file(text: str) -> Path:
    """A type for command-line arguments: a file whose name ends in .toml."""
    if not text.endswith(".toml"):
        raise ValueError
    return Path(text)


def run(arguments: argparse.Namespace) -> int:
    """Make, check, write and draw the track; the exit code is 1 if the scripted driver was to finish it and did not."""
    challenge = map_of(arguments.map)
    line = line_of(arguments.source, arguments.map)
    output: Path = arguments.output
    made = write(
        challenge,
        line,
        output,
        arguments.force,
        ground="line" if arguments.drive and arguments.ground is None else arguments.ground,
    )
    console = Console()
    length_m, n_checkpoints = made.track.finish_station_m, len(made.track.checkpoint_stations_m)
    console.print(Text(f"{challenge.plain_name}: {length_m:.0f} m of road, {n_checkpoints} checkpoints"))
    for note in (*line.notes, *made.notes):
        console.print(Text(note))
    console.print(Text(f"wrote {', '.join(map(str, made.files))}"), soft_wrap=True)
    return show(console, arguments, made.track)


@dataclass(frozen=True)
class Written:
    """A track that was written.

    Attributes:
        track: as the game has it.
        notes: what is only approximately as in the game, in words.
        files: the track's file, its line's, and others.
    """

    track: Track
    notes: tuple[str, ...]
    files: tuple[Path, ...]


def write(
    challenge: Challenge,
    line: BuiltLine,
    output: Path,
    force: bool,
    again: bool = False,
    ground: str | None = None,
) -> Written:
    """Make a track and write its files.

    Args:
        challenge: the map.
        line: the way through it.
        output: the track file.
        force: overwrite what is there.
        again: files that are there already may be the very same.
        ground: "blocks" or "line"; None for blocks where all are known.

    Raises:
        UserError: if no track can be made, or the files are there already, or cannot be written.
    """
    # The simulator takes seconds to import, which other commands need not wait for.
    from trackmania_rl.simulator.tracks.track_design import file_in_the_way
    from trackmania_rl.simulator.tracks.track_file import load_track

    write_to, notes = _writer(challenge, line, f"{output.stem}_road", ground)
    with tempfile.TemporaryDirectory() as folder:
        tried = write_to(Path(folder) / output.name)
        track = load_track(tried[0])  # refuses what the game would refuse
        file = None if force else file_in_the_way(tried, output.parent, may_be_same=again)
        if file is not None:
            raise UserError(f"{file} is there already; give another name, or --force to overwrite it")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        return Written(track, notes, write_to(output))
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error


def _writer(
    challenge: Challenge, line: BuiltLine, road_name: str, ground: str | None
) -> tuple[Callable[[Path], tuple[Path, ...]], tuple[str, ...]]:
    """Return what writes a track's files, given the path of the first, and the notes on it."""
    from trackmania_rl.simulator.tracks.track_design import write_track
    from trackmania_rl.track.block_tracks import (
        BlockTrackError,
        arrays_of_map,
        lack_of,
        require_known,
        write_block_track,
    )
    from trackmania_rl.track.block_world import BlockWorldError, world_of
    from trackmania_rl.track.map_tracks import track_of_map

    notes: tuple[str, ...] = ()
    if ground != "line":
        try:
            world = world_of(challenge)
            if ground is None:
                require_known(world, challenge.plain_name)
            arrays = arrays_of_map(challenge, world, line.points_m)
        except (BlockTrackError, BlockWorldError) as error:
            if ground == "blocks":
                raise
            notes = (f"a road along the line, as {error}",)
        else:
            notes = (f"the map's own blocks: {len(arrays.surface)} triangles",)
            if world.unknown:
                notes += (f"nothing is where other blocks stand: {lack_of(world)}",)
            return lambda file: write_block_track(challenge, arrays, line.points_m, file), notes
    origin = f"scripts/tools/maps.py track, from {challenge.plain_name!r}"
    made = track_of_map(challenge, line.points_m, road_name)
    return lambda file: (file, write_track(made.design, made.laid_out, file, origin)), (*notes, *made.notes)


def map_of(file: Path) -> Challenge:
    """The map in a file.

    Raises:
        UserError: if it cannot be read, is none, or of an environment whose car is not simulated.
    """
    if is_challenge_file(file):
        challenge: Challenge | None = read_challenge(file)
    elif is_replay_file(file):
        challenge = read_replay(file).challenge
    else:
        raise UserError(f"{file}: a map's name ends in .Challenge.Gbx; a replay (.Replay.Gbx) holds its map as well")
    if challenge is None:
        raise UserError(f"{file}: no map can be read in it; give the map's own .Challenge.Gbx")
    if challenge.environment != STADIUM:
        raise UserError(
            f"{file}: its environment is {challenge.environment!r}, which has another car; the simulated game has that "
            f"of {STADIUM} only"
        )
    return challenge


def line_of(source: Path, map_file: Path) -> BuiltLine:
    """The line in a .npy file, or of the fastest race in a replay.

    Raises:
        UserError: if the file cannot be used, or is a replay of another map.
    """
    if source.suffix == ".npy":
        return BuiltLine(load_reference_line(source, LINE_SPACING_M), None)
    if not is_replay_file(source):
        raise UserError(f"{source}: a line's name ends in .npy, a replay's in .Replay.Gbx or .Ghost.Gbx")
    return _sources.from_replays([source], map_file if is_challenge_file(map_file) else None).line


def show(console: Console, arguments: argparse.Namespace, track: Any) -> int:
    """Drive the track and draw it, as the arguments say; the exit code is 1 if it was driven and not finished."""
    if arguments.drive is None and arguments.picture is None:
        return 0
    from draw_track import DRIVERS, draw_track

    from trackmania_rl.simulator.physics.scripted_driver import drive

    race = None if arguments.drive is None else drive(track, DRIVERS[arguments.drive])
    if race is not None:
        result = "finishes" if race.race_time_ms is not None else f"stops at {race.reached_m:.0f} m"
        time = "" if race.race_time_ms is None else f" in {race.race_time_ms / 1000:.2f} s"
        console.print(Text(f"the {arguments.drive} scripted driver {result}{time}, {race.wall_contact_ms} ms at walls"))
    if arguments.picture is not None:
        picture = draw_track(track, PICTURE_WIDTH_PX, race)
        try:
            arguments.picture.parent.mkdir(parents=True, exist_ok=True)
            write_png(arguments.picture, picture)
        except OSError as error:
            raise UserError(f"{arguments.picture}: cannot be written: {error.strerror}") from error
        console.print(Text(f"wrote {arguments.picture}"), soft_wrap=True)
    return 1 if race is not None and race.race_time_ms is None else 0
