"""Make a track for the simulated game from a map and a line or a replay.

It is made of the map's blocks with loops, walls, pads and gates. Where the line leads through a block that is not in
the catalogue, a road along the line replaces it.
Three files are written: the track (NAME.toml), its line (NAME_0.5m.npy) and its world (NAME_world.safetensors).

With --ground line it is a road along the line, with the width and surface of known blocks under it and the map's
checkpoints. Loops and walls are rolled out to level road. Two files are written: the track and its line
(NAME_road_0.5m.npy). All belong in the maps folder.

Examples:
  maps.py track mine.Challenge.Gbx best.Replay.Gbx --output maps/mine.toml --picture mine.png --drive careful
"""

from __future__ import annotations

import argparse
from pathlib import Path

from maps_commands._reporting import say
from trackmania_rl.cli import png_file, writing
from trackmania_rl.gbx.challenge import is_challenge_file
from trackmania_rl.gbx.reading import wrong_name
from trackmania_rl.gbx.replay import is_replay_file
from trackmania_rl.track import line_sources
from trackmania_rl.track.line_building import BuiltLine

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
    from trackmania_rl.track.block_tracks import write_map_track  # slow import

    challenge = line_sources.map_in(arguments.map)
    line = line_of(arguments.source, arguments.map)
    ground = arguments.ground
    if arguments.drive and ground is None:
        ground = "line"
    with writing(arguments.output):
        made = write_map_track(challenge, line.points_m, arguments.output, overwrite=arguments.force, ground=ground)
    length_m, n_checkpoints = made.track.finish_station_m, len(made.track.checkpoint_stations_m)
    files = f"wrote {', '.join(map(str, made.files))}"
    title = f"{challenge.plain_name}: {length_m:.0f} m of road, {n_checkpoints} checkpoints"
    for text in (title, *line.notes, *made.notes, files):
        say(text)
    if arguments.drive is None and arguments.picture is None:
        return 0
    from draw_track import drive_and_draw

    return 0 if drive_and_draw(made.track, arguments.drive, arguments.picture, PICTURE_WIDTH_PX) else 1


def line_of(source: Path, map_file: Path) -> BuiltLine:
    """Return the line in a .npy file, or from a replay's fastest race."""
    if source.suffix == ".npy":
        return line_sources.from_line(source).line
    if not is_replay_file(source):
        raise wrong_name(source)
    return line_sources.from_replays([source], map_file if is_challenge_file(map_file) else None).line
