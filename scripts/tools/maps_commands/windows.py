"""The simulated car beside a replay, a second at a time.

Drive stretches of a replay on the simulated game: each begins with the car as the replay shows it, is driven with the
replay's inputs for a second without correction, and ends more or less beside the replay's car. Printed is how many end
within 0.05, 0.15, 0.3 and 1 m, by what they drive on, and which end further away.

The ground is the world that the map's blocks make, as maps.py show --picture draws it. With --ground planes, and where
no map is known, it is a plane under each stretch's wheels with the surface of the blocks: loops, walls, kinks and steps
are not in that, so stretches there are far off.

Examples:
  maps.py windows best.Replay.Gbx --picture windows.png
  maps.py windows best.Ghost.Gbx --map mine.Challenge.Gbx --length 2000
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from maps_commands import _sources
from maps_commands._reporting import say
from trackmania_rl.cli import png_file
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import STADIUM
from trackmania_rl.gbx.replay_inputs import ghost_of_driver
from trackmania_rl.telemetry.tables import print_table

if TYPE_CHECKING:
    from research.replay_windows.windows import Kind, WindowResult

WITHIN_M = (0.05, 0.15, 0.3, 1.0)
LISTED_BEYOND_M = 0.15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _sources.add_ghost_arguments(parser)
    add = parser.add_argument
    add("--length", type=int, default=1000, metavar="MS", help="of each stretch (default: 1000)")
    add("--every", type=int, default=500, metavar="MS", help="from one's beginning to the next's (default: 500)")
    ground = "the map's blocks, or a plane under each stretch (default: blocks)"
    add("--ground", choices=("blocks", "planes"), default="blocks", help=ground)
    add("--picture", type=png_file, metavar="FILE.png", help="draw them over the map")


def run(arguments: argparse.Namespace) -> int:
    # The simulator takes seconds to import, which other commands need not wait for.
    from research.replay_windows.ghost_race import race_of_ghost
    from research.replay_windows.windows import drive_window, windows_of
    from trackmania_rl.track.block_world import mesh_of_world, world_of

    path, replay = _sources.replay_of(arguments)
    challenge = replay.challenge if arguments.map is None else _sources.map_in(arguments.map)
    if challenge is not None and challenge.environment != STADIUM:
        raise UserError(f"{path}: its map's environment is {challenge.environment!r}; the simulated car is {STADIUM}'s")
    ghost = ghost_of_driver(replay, arguments.driver)
    race = race_of_ghost(ghost, () if challenge is None else challenge.blocks, path)
    try:
        windows = windows_of(race, arguments.length, arguments.every)
    except ValueError as error:
        raise UserError(f"{path}: {error}; give --length and --every as multiples of that") from error
    if not windows:
        raise UserError(f"{path}: the race is shorter than {arguments.length} ms; give a smaller --length")
    world = None
    if challenge is not None and arguments.ground == "blocks":
        made = world_of(challenge)
        world = mesh_of_world(made)
        if made.unknown:
            missing = ", ".join(f"{count} {name}" for name, count in made.unknown_names)
            say(f"Not in the catalogue of blocks, so nothing is there: {missing}")
    results = [drive_window(race, window, world) for window in windows]
    title = f"{'unknown map' if challenge is None else challenge.plain_name}, {ghost.login or 'unknown driver'}"
    say(f"{title}: {len(results)} windows of {arguments.length / 1000:g} s, distances at their ends")
    if challenge is None:
        say("No map is known, so turbo pads, dirt and other surfaces are not; name it with --map.")
    print_results(results)
    if arguments.picture is not None:
        from maps_commands._pictures import draw_windows  # matplotlib takes a second to import

        draw_windows(arguments.picture, title, race.motion, results, challenge)
        say(f"wrote {arguments.picture}")
    return 0


def print_results(results: Sequence[WindowResult]) -> None:
    """Print a table by kind of ground, and one of the windows that end far away."""
    table = Table("drives on", "windows", *(f"<= {limit_m:g} m" for limit_m in WITHIN_M), "median m", "median km/h")
    by_kind: dict[Kind, list[WindowResult]] = {}
    for result in results:
        by_kind.setdefault(result.window.kind, []).append(result)
    for kind, of_kind in sorted(by_kind.items(), key=lambda item: float(np.median(_ends_m(item[1])))):
        table.add_row(kind.value, *_row(of_kind))
    if len(by_kind) > 1:
        table.add_row("all", *_row(results))
    print_table(table)
    far = [result for result in results if result.position_m[-1] > LISTED_BEYOND_M]
    if not far:
        return
    say(f"further than {LISTED_BEYOND_M:g} m away at the end:")
    rows = Table("begins at s", "drives on", "block", "m", "km/h", "degrees")
    for result in far:
        rows.add_row(
            f"{result.window.start_ms / 1000:.2f}",
            result.window.kind.value,
            Text(result.window.block),
            f"{result.position_m[-1]:.2f}",
            f"{result.speed_kmh[-1]:+.1f}",
            f"{result.attitude_deg[-1]:.1f}",
        )
    print_table(rows)


def _ends_m(results: Sequence[WindowResult]) -> list[float]:
    return [float(result.position_m[-1]) for result in results]


def _row(results: Sequence[WindowResult]) -> list[str]:
    ends_m = np.array(_ends_m(results))
    shares = [f"{100.0 * float((ends_m <= limit_m).mean()):.0f} %" for limit_m in WITHIN_M]
    speed_kmh = float(np.median([abs(result.speed_kmh[-1]) for result in results]))
    return [str(len(results)), *shares, f"{np.median(ends_m):.3f}", f"{speed_kmh:.2f}"]
