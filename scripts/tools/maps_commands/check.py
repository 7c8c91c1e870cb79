"""Check a reference line for faults.

Faults are uneven spacing, jumps, ways back and, with the map, missed start, checkpoints and finish. The exit code is 1
if there is a problem; a warning does not count.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from maps_commands import _reporting
from trackmania_rl.cli import png_file
from trackmania_rl.gbx.challenge import read_challenge
from trackmania_rl.track.line_building import BuiltLine
from trackmania_rl.track.line_sources import LineSource
from trackmania_rl.track.reference_line import read_points


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("line", type=Path, metavar="LINE.npy")
    add("--map", type=Path, metavar="FILE", help="the .Challenge.Gbx of the line")
    add("--picture", type=png_file, metavar="FILE.png", help="draw the line among the map's blocks")


def run(arguments: argparse.Namespace) -> int:
    challenge = None if arguments.map is None else read_challenge(arguments.map)
    source = LineSource("as it is stored", BuiltLine(read_points(arguments.line), None), challenge)
    title = arguments.line.stem if challenge is None else challenge.plain_name
    report = _reporting.report_on(source, title)
    _reporting.draw(arguments.picture, title, source, report)
    return 1 if report.problems else 0
