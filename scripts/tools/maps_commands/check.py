"""`maps.py check`: what is wrong with a reference line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from maps_commands import _reporting, _sources
from trackmania_rl.cli import png_file
from trackmania_rl.gbx.challenge import read_challenge
from trackmania_rl.track.line_building import BuiltLine
from trackmania_rl.track.line_checks import check_line
from trackmania_rl.track.reference_line import read_points


def add_parser(subparsers: Any) -> None:
    """Add the command `check`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "check",
        help="what is wrong with a reference line",
        description="Check a reference line: spacing, jumps, ways back and, with its map, start, checkpoints and "
        "finish. The exit code is 1 if there is a problem; a warning is only something to look at.",
    )
    add = parser.add_argument
    add("line", type=Path, metavar="LINE.npy")
    add("--map", type=Path, metavar="FILE", help="the .Challenge.Gbx on which the line lies")
    add("--picture", type=png_file, metavar="FILE.png", help="draw the line among the map's blocks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the line; the exit code is 1 if it has a problem."""
    challenge = None if arguments.map is None else read_challenge(arguments.map)
    points_m = read_points(arguments.line)
    source, console = _sources.Source("as it is stored", BuiltLine(points_m, None), challenge), Console()
    report = check_line(source.line.points_m, challenge)
    _reporting.print_report(console, report)
    if arguments.picture is not None:
        title = arguments.line.stem if challenge is None else challenge.plain_name
        _reporting.draw(arguments.picture, title, source, report)
        console.print(Text(f"wrote {arguments.picture}"), soft_wrap=True)
    return 1 if report.problems else 0
