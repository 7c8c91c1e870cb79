"""The simulated car beside a replay, a second at a time.

Drive stretches of a replay on the simulated game: each begins with the car as the replay shows it, is driven with the
replay's inputs for a second without correction, and ends more or less beside the replay's car. Printed is how many end
within 0.05, 0.15, 0.3 and 1 m, and which end further than 0.15 m away. The ground is the world that the map's blocks
make, as maps.py show --picture draws it.

Examples:
  maps.py windows best.Replay.Gbx
  maps.py windows best.Ghost.Gbx --map mine.Challenge.Gbx --length 2000
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from maps_commands import _sources
from maps_commands._reporting import say
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.replay import is_replay_file, read_replay
from trackmania_rl.gbx.replay_inputs import ghost_of_driver
from trackmania_rl.telemetry.tables import print_table

if TYPE_CHECKING:
    from research.replay_windows.windows import WindowResult

WITHIN_M = (0.05, 0.15, 0.3, 1.0)
LISTED_BEYOND_M = 0.15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("replay", type=Path, metavar="REPLAY", help="a .Replay.Gbx or .Ghost.Gbx")
    add("--map", type=Path, metavar="MAP", help="its .Challenge.Gbx (default: the map in the replay)")
    add("--driver", metavar="LOGIN", help="driver of the ghost (default: the fastest)")
    add("--length", type=int, default=1000, metavar="MS", help="of each stretch (default: 1000)")
    add("--every", type=int, default=500, metavar="MS", help="from one's beginning to the next's (default: 500)")


def run(arguments: argparse.Namespace) -> int:
    # The simulator takes seconds to import, which other commands need not wait for.
    from research.replay_windows.ghost_race import race_of_ghost
    from research.replay_windows.windows import drive_window, windows_of
    from trackmania_rl.track.block_world import mesh_of_world, world_of

    path: Path = arguments.replay
    if not is_replay_file(path):
        raise UserError(f"{path}: a replay's name ends in .Replay.Gbx or .Ghost.Gbx")
    ghost = ghost_of_driver(read_replay(path), arguments.driver)
    challenge = _sources.map_in(arguments.map or path)
    race = race_of_ghost(ghost, challenge.blocks, path)
    try:
        windows = windows_of(race, arguments.length, arguments.every)
    except ValueError as error:
        raise UserError(f"{path}: {error}; give --length and --every as multiples of that") from error
    if not windows:
        raise UserError(f"{path}: the race is shorter than {arguments.length} ms; give a smaller --length")
    world = world_of(challenge)
    if world.unknown:
        missing = ", ".join(f"{count} {name}" for name, count in world.unknown_names)
        say(f"Not in the catalogue of blocks, so nothing is there: {missing}")
    mesh = mesh_of_world(world)
    results = [drive_window(race, window, mesh) for window in windows]
    title = f"{challenge.plain_name}, {ghost.login or 'unknown driver'}"
    say(f"{title}: {len(results)} windows of {arguments.length / 1000:g} s, distances at their ends")
    print_results(results)
    return 0


def print_results(results: Sequence[WindowResult]) -> None:
    """Print shares and medians, and a table of the windows that end far away."""
    ends_m = np.array([result.position_m[-1] for result in results])
    speed_kmh = float(np.median([abs(result.speed_kmh[-1]) for result in results]))
    shares = (f"{100.0 * float((ends_m <= limit_m).mean()):.0f} % within {limit_m:g} m" for limit_m in WITHIN_M)
    say(f"{', '.join(shares)}; median {np.median(ends_m):.3f} m and {speed_kmh:.2f} km/h")
    far = [result for result in results if result.position_m[-1] > LISTED_BEYOND_M]
    if not far:
        return
    say(f"further than {LISTED_BEYOND_M:g} m away at the end:")
    rows = Table("begins at s", "block", "m", "km/h", "degrees")
    for result in far:
        rows.add_row(
            f"{result.window.start_ms / 1000:.2f}",
            Text(result.window.block or "none"),
            f"{result.position_m[-1]:.2f}",
            f"{result.speed_kmh[-1]:+.1f}",
            f"{result.attitude_deg[-1]:.1f}",
        )
    print_table(rows)
