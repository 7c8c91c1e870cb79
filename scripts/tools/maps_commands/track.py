"""Make a track for the simulated game from a map and a line or a replay.

It is made of the map's blocks with loops, walls, pads and gates. Where the line leads through a block that is not in
the catalogue, a road along the line replaces it.
Three files are written: the track (NAME.toml), its line (NAME_0.5m.npy) and its world (NAME_world.safetensors).

With --ground line it is a road along the line, with the width and surface of known blocks under it and the map's
checkpoints. Loops and walls are rolled out to level road. Two files are written: the track and its line
(NAME_road_0.5m.npy). All belong in the maps folder.

Examples:
  maps.py track mine.Challenge.Gbx best.Replay.Gbx --output maps/mine.toml --picture mine.png --drive careful
  maps.py track mine.Challenge.Gbx maps/mine_0.5m.npy --output maps/mine.toml
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from maps_commands import _sources
from maps_commands._reporting import say
from trackmania_rl.cli import png_file, writing
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import Challenge, is_challenge_file
from trackmania_rl.gbx.reading import wrong_name
from trackmania_rl.gbx.replay import is_replay_file
from trackmania_rl.track.line_building import BuiltLine

if TYPE_CHECKING:
    from trackmania_rl.simulator.tracks.world import Track

PICTURE_WIDTH_PX = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("map", type=Path, metavar="MAP", help="a .Challenge.Gbx, or a replay that holds its map")
    source = "a reference line (.npy), or a replay, whose fastest race is used"
    add("source", type=Path, metavar="LINE_OR_REPLAY", help=source)
    add("--output", required=True, type=track_file, metavar="FILE.toml")
    ground = "the map's blocks, or a road along the line (default: blocks)"
    add("--ground", choices=("blocks", "line"), help=ground)
    add("--picture", type=png_file, metavar="FILE.png", help="draw the track")
    drive = "let the scripted driver race on it, and draw that as well; it follows roads along a line only"
    add("--drive", choices=("careful", "fast"), help=drive)
    add("--force", action="store_true", help="overwrite the outputs if they are there")


def track_file(text: str) -> Path:
    if not text.endswith(".toml"):
        raise ValueError
    return Path(text)


def run(arguments: argparse.Namespace) -> int:
    """Make, check, write and draw the track; return 1 if the scripted driver does not finish it."""
    challenge = _sources.map_in(arguments.map)
    line = line_of(arguments.source, arguments.map)
    ground = "line" if arguments.drive and arguments.ground is None else arguments.ground
    made = write(challenge, line, arguments.output, arguments.force, ground=ground)
    length_m, n_checkpoints = made.track.finish_station_m, len(made.track.checkpoint_stations_m)
    files = f"wrote {', '.join(map(str, made.files))}"
    title = f"{challenge.plain_name}: {length_m:.0f} m of road, {n_checkpoints} checkpoints"
    for text in (title, *line.notes, *made.notes, files):
        say(text)
    if arguments.drive is None and arguments.picture is None:
        return 0
    from draw_track import drive_and_draw

    return 0 if drive_and_draw(made.track, arguments.drive, arguments.picture, PICTURE_WIDTH_PX) else 1


@dataclass(frozen=True)
class Written:
    """A written track."""

    track: Track
    notes: tuple[str, ...]  # differences from the game
    files: tuple[Path, ...]  # track, line, and others


def write(challenge: Challenge, line: BuiltLine, output: Path, force: bool, ground: str | None = None) -> Written:
    """Make a track and write the files.

    Args:
        challenge: the map.
        line: through it.
        output: the track file.
        force: overwrite existing files.
        ground: "blocks" or "line"; None for blocks, or a line on maps that make no world.

    Raises:
        UserError: if no track can be made, or files exist or cannot be written.
    """
    # Slow imports.
    from trackmania_rl.simulator.tracks.track_design import file_in_the_way
    from trackmania_rl.simulator.tracks.track_file import load_track

    write_to, notes = _writer(challenge, line, f"{output.stem}_road", ground)
    with tempfile.TemporaryDirectory() as folder:
        tried = write_to(Path(folder) / output.name)
        track = load_track(tried[0])  # raises for tracks that the game refuses
        file = None if force else file_in_the_way(tried, output.parent, may_be_same=False)
        if file is not None:
            raise UserError(f"{file} is there already; give another name, or --force to overwrite it")
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        return Written(track, notes, write_to(output))


def _writer(
    challenge: Challenge, line: BuiltLine, road_name: str, ground: str | None
) -> tuple[Callable[[Path], tuple[Path, ...]], tuple[str, ...]]:
    """Return a function that writes a track's files, given the first one's path, and notes."""
    from trackmania_rl.simulator.tracks.track_design import write_track
    from trackmania_rl.track.block_tracks import BlockTrackError, arrays_of_map, fill_gaps, write_block_track
    from trackmania_rl.track.block_world import BlockWorldError, names_of, world_of
    from trackmania_rl.track.map_tracks import track_of_map

    notes: tuple[str, ...] = ()
    if ground != "line":
        try:
            world = fill_gaps(world_of(challenge), line.points_m)
            arrays = arrays_of_map(challenge, world, line.points_m)
        except (BlockTrackError, BlockWorldError) as error:
            if ground == "blocks":
                raise
            notes = (f"a road along the line, as {error}",)
        else:
            notes = (f"{100.0 * world.known_share:.0f} % of the map's blocks; {len(arrays.surface):,} triangles",)
            for blocks, what in ((world.filled, "a road along the line replaces"), (world.unknown, "nothing replaces")):
                if blocks:
                    names = ", ".join(f"{count} {name}" for name, count in names_of(blocks))
                    notes += (f"{what} blocks that are not in the catalogue: {names}",)
            return lambda file: write_block_track(challenge, arrays, line.points_m, file), notes
    origin = f"scripts/tools/maps.py track, from {challenge.plain_name!r}"
    made = track_of_map(challenge, line.points_m, road_name)
    return lambda file: (file, write_track(made.design, made.laid_out, file, origin)), (*notes, *made.notes)


def line_of(source: Path, map_file: Path) -> BuiltLine:
    """Return the line in a .npy file, or from a replay's fastest race."""
    if source.suffix == ".npy":
        return _sources.from_line(source).line
    if not is_replay_file(source):
        raise wrong_name(source)
    return _sources.from_replays([source], map_file if is_challenge_file(map_file) else None).line
