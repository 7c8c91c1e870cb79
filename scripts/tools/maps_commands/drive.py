"""Drive inputs files on the simulated game and print race and checkpoint times.

scripts/replay_inputs.py also films them. The exit code is 0 even if a car does not finish.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from maps_commands._runs import MAPS_FOLDER, inputs_file, simulated_game
from trackmania_rl.simulator.tracks.track_file import find_track_file
from trackmania_rl.telemetry.terminal_view import describe_race


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("inputs", nargs="+", type=Path, metavar="INPUTS", help="an inputs file, or a best_runs folder")
    add("--map", required=True, metavar="NAME", help="track file, or a shipped track (valley)")
    add("--maps-folder", type=Path, default=MAPS_FOLDER, help="where else --map looks")


def run(arguments: argparse.Namespace) -> int:
    track_file = find_track_file(arguments.map, arguments.maps_folder)
    with simulated_game(arguments.maps_folder) as player:
        for path in arguments.inputs:
            script = inputs_file(path, track_file.stem)
            print(f"{script}: {describe_race(player.play(str(track_file), script))}")
    return 0
