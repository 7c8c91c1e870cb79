"""`maps.py line`: make a reference line."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from maps_commands import _reporting, _sources
from trackmania_rl.cli import png_file
from trackmania_rl.errors import UserError
from trackmania_rl.places import PROJECT_FOLDER
from trackmania_rl.track.line_building import SMOOTHING_M
from trackmania_rl.track.line_checks import check_line

EXAMPLES = """
Examples:
  maps.py line --replay best.Replay.Gbx --output maps/mine_0.5m.npy --picture mine.png
  maps.py line --replay *.Replay.Gbx --mean --map mine.Challenge.Gbx --output maps/mine_0.5m.npy
  maps.py line --inputs race.inputs --track valley --output maps/raced_0.5m.npy
  maps.py line --from-blocks mine.Challenge.Gbx --output maps/mine_0.5m.npy
  maps.py line --resample uneven.npy --output maps/mine_0.5m.npy
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `line`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "line",
        help="make a reference line from replays, an inputs file, a track, a map's blocks, or another line",
        description="Make a reference line: one point every 0.5 m from start to finish, checked. The exit code is 1 if "
        "the line has a problem; it is written all the same, so that you can look at it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="replays or ghosts; the fastest is used")
    source.add_argument(
        "--inputs", type=Path, metavar="FILE", help="an inputs file or a best_runs folder, driven on --track"
    )
    source.add_argument("--track-line", metavar="TRACK", help="the line of a simulated track (valley, maps/kart.toml)")
    source.add_argument(
        "--from-blocks",
        type=Path,
        metavar="MAP",
        help="a .Challenge.Gbx, without a replay: along its road pieces, where exactly one way leads through them",
    )
    source.add_argument(
        "--resample", type=_reporting.line_file, metavar="LINE.npy", help="another line, at equal distances"
    )
    add("--as-far-as-possible", action="store_true", help="with --from-blocks: without a whole line, its first part")
    add("--driver", metavar="LOGIN", help="only this driver's races of the replays")
    add("--mean", action="store_true", help="the mean of all races of the replays instead of the fastest")
    add("--track", metavar="TRACK", help="the simulated track on which --inputs is driven")
    add("--map", type=Path, metavar="FILE", help="the .Challenge.Gbx; default: the map that the replay holds")
    add("--output", required=True, type=_reporting.line_file, metavar="FILE.npy")
    add("--picture", type=png_file, metavar="FILE.png", help="draw the line among the map's blocks")
    add("--smoothing-m", type=smoothing, default=SMOOTHING_M, metavar="M", help="moving average (default %(default)g)")
    add("--force", action="store_true", help="overwrite the output if it is there")
    add("--maps-folder", type=Path, default=PROJECT_FOLDER / "maps", help="where tracks are looked for (default: maps)")
    parser.set_defaults(run=run)


def smoothing(text: str) -> float:
    """Metres from 0 to 50."""
    value = float(text)
    if not math.isfinite(value) or not 0.0 <= value <= 50.0:
        raise ValueError
    return value


def run(arguments: argparse.Namespace) -> int:
    """Make, check, write and draw the line; the exit code is 1 if it has a problem."""
    source = source_of(arguments)
    console = Console()
    report = check_line(source.line.points_m, source.challenge, source.checkpoint_m)
    console.print(Text(f"{source.title}: {len(source.line.points_m)} points, {report.length_m:.1f} m"))
    for note in source.line.notes:
        console.print(Text(note))
    _reporting.print_report(console, report)
    _reporting.write_line(source.line.points_m, arguments.output, arguments.force)
    console.print(Text(f"wrote {arguments.output}"), soft_wrap=True)
    if arguments.picture is not None:
        name = arguments.output.stem if source.challenge is None else source.challenge.plain_name
        _reporting.draw(arguments.picture, f"{name}, {source.title}", source, report)
        console.print(Text(f"wrote {arguments.picture}"), soft_wrap=True)
    return 1 if report.problems else 0


def source_of(arguments: argparse.Namespace) -> _sources.Source:
    """The line that the arguments ask for.

    Raises:
        UserError: if they contradict each other, or a file cannot be used.
    """
    if arguments.replay is None and (arguments.driver is not None or arguments.mean or arguments.map is not None):
        raise UserError("--driver, --mean and --map belong to --replay")
    if (arguments.inputs is None) != (arguments.track is None):
        raise UserError("--inputs and --track belong together: an inputs file is driven on a track")
    if arguments.as_far_as_possible and arguments.from_blocks is None:
        raise UserError("--as-far-as-possible belongs to --from-blocks")
    if arguments.from_blocks is not None:
        return _sources.from_blocks(arguments.from_blocks, arguments.as_far_as_possible)
    if arguments.replay is not None:
        return _sources.from_replays(
            arguments.replay, arguments.map, arguments.driver, arguments.mean, arguments.smoothing_m
        )
    if arguments.inputs is not None:
        return _sources.from_inputs(arguments.inputs, arguments.track, arguments.maps_folder, arguments.smoothing_m)
    if arguments.resample is not None:
        return _sources.from_uneven_line(arguments.resample)
    return _sources.from_track(arguments.track_line, arguments.maps_folder)
