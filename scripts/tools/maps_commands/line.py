"""Make a reference line from replays, an inputs file, a track, a map's blocks, or another line.

It has one point every 0.5 m from start to finish. The exit code is 1 if the line has a problem; the file is written
nevertheless.

Examples:
  maps.py line --replay best.Replay.Gbx --output maps/mine_0.5m.npy --picture mine.png
  maps.py line --replay *.Replay.Gbx --mean --map mine.Challenge.Gbx --output maps/mine_0.5m.npy
  maps.py line --inputs race.inputs --track valley --output maps/raced_0.5m.npy
  maps.py line --from-blocks mine.Challenge.Gbx --output maps/mine_0.5m.npy
  maps.py line --resample uneven.npy --output maps/mine_0.5m.npy
"""

from __future__ import annotations

import argparse
from pathlib import Path

from maps_commands import _reporting
from maps_commands._runs import MAPS_FOLDER, drive_script, inputs_file, simulated_game
from trackmania_rl.cli import png_file
from trackmania_rl.errors import UserError
from trackmania_rl.simulator.tracks.track_file import find_track_file
from trackmania_rl.telemetry.terminal_view import describe_race
from trackmania_rl.track import line_sources
from trackmania_rl.track.line_building import SMOOTHING_M, DrivenPath, build_line

import numpy as np


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True).add_argument
    source("--replay", nargs="+", type=Path, metavar="FILE", help="replays or ghosts; the fastest is used")
    source("--inputs", type=Path, metavar="FILE", help="an inputs file or a best_runs folder, driven on --track")
    source("--track-line", metavar="TRACK", help="the line of a simulated track (valley, maps/kart.toml)")
    blocks = "a .Challenge.Gbx: along its road pieces, where exactly one way leads through them"
    source("--from-blocks", type=Path, metavar="MAP", help=blocks)
    source("--resample", type=line_file, metavar="LINE.npy", help="another line, at equal distances")
    add = parser.add_argument
    add("--as-far-as-possible", action="store_true", help="with --from-blocks: without a whole line, its first part")
    add("--driver", metavar="LOGIN", help="only this driver's races of the replays")
    add("--mean", action="store_true", help="the mean of all races of the replays instead of the fastest")
    add("--track", metavar="TRACK", help="the simulated track on which --inputs is driven")
    add("--map", type=Path, metavar="FILE", help="the .Challenge.Gbx; default: the replay's own map")
    add("--output", required=True, type=line_file, metavar="FILE.npy")
    add("--picture", type=png_file, metavar="FILE.png", help="draw the line among the map's blocks")
    add("--smoothing-m", type=smoothing, default=SMOOTHING_M, metavar="M", help="moving average (default %(default)g)")
    add("--force", action="store_true", help="overwrite the output if it is there")
    add("--maps-folder", type=Path, default=MAPS_FOLDER, help="where tracks are looked for (default: maps)")


def line_file(text: str) -> Path:
    if not text.endswith(".npy"):
        raise ValueError
    return Path(text)


def smoothing(text: str) -> float:
    if not 0.0 <= float(text) <= 50.0:
        raise ValueError
    return float(text)


def run(arguments: argparse.Namespace) -> int:
    source = source_of(arguments)
    title = _reporting.title_of(source)
    report = _reporting.report_on(source, title)
    _reporting.write_line(source.line.points_m, arguments.output, arguments.force)
    _reporting.say(f"wrote {arguments.output}")
    name = arguments.output.stem if source.challenge is None else source.challenge.plain_name
    _reporting.draw(arguments.picture, f"{name}, {title}", source, report)
    return 1 if report.problems else 0


def source_of(arguments: argparse.Namespace) -> line_sources.LineSource:
    """Make the line; UserError if the arguments contradict each other."""
    if arguments.replay is None and (arguments.driver is not None or arguments.mean or arguments.map is not None):
        raise UserError("--driver, --mean and --map belong to --replay")
    if (arguments.inputs is None) != (arguments.track is None):
        raise UserError("--inputs and --track belong together: an inputs file is driven on a track")
    if arguments.as_far_as_possible and arguments.from_blocks is None:
        raise UserError("--as-far-as-possible belongs to --from-blocks")
    smoothing_m = arguments.smoothing_m
    if arguments.from_blocks is not None:
        return line_sources.from_blocks(arguments.from_blocks, arguments.as_far_as_possible)
    if arguments.replay is not None:
        return line_sources.from_replays(arguments.replay, arguments.map, arguments.driver, arguments.mean, smoothing_m)
    if arguments.inputs is not None:
        return from_inputs(arguments.inputs, arguments.track, arguments.maps_folder, smoothing_m)
    if arguments.resample is not None:
        return line_sources.from_uneven_line(arguments.resample)
    return line_sources.from_track(arguments.track_line, arguments.maps_folder)


def from_inputs(inputs: Path, track: str, maps_folder: Path, smoothing_m: float) -> line_sources.LineSource:
    """Build the line from an inputs file driven to the finish on the simulated game."""
    track_file = find_track_file(track, maps_folder)
    inputs = inputs_file(inputs, track_file.stem)
    with simulated_game(maps_folder) as player:
        race, run = drive_script(player, str(track_file), inputs, inputs.name)
    if run.race_time_ms is None:
        raise UserError(
            f"inputs file {inputs}: {describe_race(race)} on {track_file.name}; a line must reach the finish. Is it a "
            "race on this track?"
        )
    path = DrivenPath(str(inputs), run.time_ms.astype(np.float64), run.position_m, run.speed_m_s, np.zeros((0, 3)))
    line = build_line([path], smoothing_m=smoothing_m)
    return line_sources.LineSource(f"{inputs.name} on {track_file.stem}", line, race_time_ms=run.race_time_ms)
