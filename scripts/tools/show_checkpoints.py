"""Show a map's virtual and real checkpoints in the game, as triggers.

Without --output they are sent to the game that listens at --port. It must have the map open and no training connected.
With --output they are written to a script: put it in TMInterface's scripts folder and type `load NAME` in its console.

Examples:
  python scripts/tools/show_checkpoints.py mine --real mine.Challenge.Gbx
  python scripts/tools/show_checkpoints.py maps/mine_0.5m.npy --every 10 --output triggers.txt
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import (
    command,
    port,
    whole_number,
)
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import is_challenge_file, read_checkpoint_positions
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface
from trackmania_rl.track.reference_line import load_reference_line

import numpy as np
import numpy.typing as npt

VIRTUAL_SIDE_M = 0.8
REAL_SIDE_M = 4.0
CLEAR_TRIGGERS = "clear_triggers"
"""Console command of newer TMInterface versions; unknown to others."""
ANSWER_WITHIN_S = 10.0
DEFAULT_PORT = 8478
"""base_tmi_port as shipped in user_config.py."""


@command
def main(words: list[str] | None = None) -> None:
    arguments = parse_arguments(words)
    commands = commands_for(arguments)
    if arguments.output is None:
        send_commands(arguments.port, commands)
        print(f"sent {len(commands)} commands to the game at port {arguments.port}")
    else:
        write(arguments.output, commands)
        print(f"wrote {len(commands)} commands to {arguments.output}")


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("source", metavar="MAP_OR_LINE", help="a line (.npy), a map's name in the maps folder, or a .Challenge.Gbx")
    add("--real", type=Path, metavar="MAP.Challenge.Gbx", help="show this map's start, checkpoints and finish too")
    add(
        "--every",
        type=whole_number(1),
        default=20,
        metavar="N",
        help="show every Nth point of the line (default %(default)s: one every 10 m)",
    )
    add("--clear", action="store_true", help=f"remove the game's triggers first, with its command {CLEAR_TRIGGERS}")
    add("--maps-folder", type=Path, default=PROJECT_FOLDER / "maps", help="where a map's name is looked up")
    to = parser.add_mutually_exclusive_group()
    to.add_argument("--output", type=Path, metavar="FILE", help="write a script instead; no file is overwritten")
    to.add_argument("--port", type=port, default=DEFAULT_PORT, help=f"where the game listens (default: {DEFAULT_PORT})")
    return parser.parse_args(words)


def commands_for(arguments: argparse.Namespace) -> list[str]:
    commands = [CLEAR_TRIGGERS] if arguments.clear else []
    maps = [] if arguments.real is None else [arguments.real]
    source = Path(arguments.source)
    if is_challenge_file(source):
        maps.append(source)
    else:
        line_m = load_reference_line(find_line(source, arguments.maps_folder), LINE_SPACING_M)
        commands += trigger_commands(line_m[:: arguments.every], VIRTUAL_SIDE_M)
    for file in maps:
        commands += trigger_commands(read_checkpoint_positions(file), REAL_SIDE_M)
    return commands


def trigger_commands(centers_m: npt.NDArray[np.float64], side_m: float) -> list[str]:
    """Return a console command per cube around centres (N, 3), world axes."""
    corners_m = np.hstack((centers_m - side_m / 2, centers_m + side_m / 2))  # (N, 6)
    return ["add_trigger " + " ".join(f"{number:.2f}" for number in corner) for corner in corners_m]


def send_commands(port: int, commands: list[str]) -> None:
    """Run console commands in the game at a port."""
    with contextlib.closing(TMInterface(port, ANSWER_WITHIN_S)) as game:
        event = game.next_event()  # the game reads until this report is answered
        for text in commands:
            game.command(text)
        game.is_in_menus()  # answered after all commands
        game.answer(event)


def find_line(source: Path, maps_folder: Path) -> Path:
    """Return the line for a file or map name."""
    tried = (source, maps_folder / source, maps_folder / f"{source}_0.5m.npy", maps_folder / f"{source}.npy")
    for file in tried:
        if file.is_file() and file.suffix == ".npy":
            return file
    raise UserError(
        f"{source}: no line (.npy) and no .Challenge.Gbx, and {maps_folder} has no {source}_0.5m.npy: name a file, or "
        "make a line with scripts/tools/maps.py line"
    )


def write(output: Path, commands: list[str]) -> None:
    try:
        with output.open("x", encoding="ascii") as file:
            file.write("\n".join(commands) + "\n")
    except FileExistsError as error:
        raise UserError(f"{output} exists already: move it away, or give another --output") from error
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
