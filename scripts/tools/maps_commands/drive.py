"""`maps.py drive`: the time of an inputs file on the simulated game."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from maps_commands._runs import MAPS_FOLDER, inputs_file, simulated_game
from trackmania_rl.simulator.tracks.track_file import find_track_file
from trackmania_rl.telemetry.terminal_view import describe_race


def add_parser(subparsers: Any) -> None:
    """Add the command `drive`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "drive",
        help="the time of an inputs file on the simulated game",
        description="Drive inputs files on the simulated game and print race and checkpoint times. "
        "scripts/replay_inputs.py films them as well.",
    )
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUTS", help="an inputs file, or a best_runs folder")
    parser.add_argument("--map", required=True, metavar="NAME", help="track file, or a shipped track (valley)")
    parser.add_argument("--maps-folder", type=Path, default=MAPS_FOLDER, help="where else --map looks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Drive every file; the exit code is 0 also if a car does not finish."""
    track_file = find_track_file(arguments.map, arguments.maps_folder)
    with simulated_game(arguments.maps_folder) as player:
        for path in arguments.inputs:
            script = inputs_file(path, track_file.stem)
            print(f"{script}: {describe_race(player.play(str(track_file), script))}")
    return 0
