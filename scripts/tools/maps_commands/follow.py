"""`maps.py follow`: a driver that follows a replay through the simulated world of its map."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from maps_commands import _sources
from maps_commands.track import map_of
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.replay import Ghost
from trackmania_rl.gbx.replay_inputs import ghost_of_driver
from trackmania_rl.seeds import SeedTree
from trackmania_rl.telemetry.tables import print_table
from trackmania_rl.telemetry.terminal_view import format_time

if TYPE_CHECKING:
    from research.replay_windows.ghost_race import GhostRace
    from research.replay_windows.tracker import Followed

WITHIN_M = (0.3, 1.0, 3.0)
LISTED_PLACES = 10
DESCRIPTION = """\
Let a driver follow a replay through the world that its map's blocks make: on its path, loops and walls included, at its
speed. The driver searches for its inputs again and again, over the exact simulation: it can do what the simulated car
can do. Where it falls behind the human or leaves the path, the simulated world or car is not as the game's.

Printed are the times at the gates beside the human's, how near to the path it stays, and where it loses most. All
blocks that one drives on must be known, and the race be one without a respawn.

Example:
  maps.py follow best.Replay.Gbx
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `follow`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "follow",
        help="let a driver follow a replay in the simulated world of its map",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    _sources.add_ghost_arguments(parser)
    add("--seed", type=int, default=0, help="of the search (default: 0)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Follow, and print how it went; the exit code is 1 if the finish was not reached."""
    # The simulator takes seconds to import, which other commands need not wait for.
    from research.replay_windows.ghost_race import race_of_ghost
    from research.replay_windows.tracker import follow
    from trackmania_rl.simulator.tracks.world_file import track_in_world
    from trackmania_rl.track.block_tracks import arrays_of_map, require_known
    from trackmania_rl.track.block_world import world_of
    from trackmania_rl.track.driven_path import path_of_ghost
    from trackmania_rl.track.line_building import build_line

    path, replay = _sources.replay_of(arguments)
    challenge = map_of(path if arguments.map is None else arguments.map)
    ghost = ghost_of_driver(replay, arguments.driver)
    if ghost.n_respawns:
        raise UserError(f"{path}: its driver respawned, which the tracker does not: give a race without")
    race = race_of_ghost(ghost, challenge.blocks, path)
    line_m = build_line([path_of_ghost(ghost, str(path))], challenge).points_m
    world = world_of(challenge)
    require_known(world, challenge.plain_name)
    track = track_in_world(challenge.plain_name, line_m, arrays_of_map(challenge, world, line_m), challenge.n_laps)
    console = Console()
    followed = follow(race, track, SeedTree(arguments.seed).rng("tracker"))
    print_followed(console, race, ghost, followed)
    return 0 if followed.is_finished else 1


def print_followed(console: Console, race: GhostRace, ghost: Ghost, followed: Followed) -> None:
    """Print gates, distances, and where time is lost."""
    gates = Table("gate", "human", "tracker", "difference s")
    for number, (human_ms, own_ms) in enumerate(zip(ghost.checkpoint_times_ms, followed.gate_times_ms, strict=False)):
        is_last = number + 1 == len(ghost.checkpoint_times_ms)
        gates.add_row(
            "finish" if is_last else f"checkpoint {number + 1}",
            format_time(human_ms),
            format_time(own_ms),
            f"{(own_ms - human_ms) / 1000:+.2f}",
        )
    print_table(gates, console)
    shares = [f"{100 * float((followed.aside_m <= limit_m).mean()):.0f} % within {limit_m:g} m" for limit_m in WITHIN_M]
    console.print(Text(f"beside the human's path: {', '.join(shares)}; at most {followed.aside_m.max():.1f} m"))
    if not followed.is_finished:
        at_s, aside_m = followed.path_tick[-1] / 100, followed.aside_m[-1]
        console.print(Text(f"lost after {at_s:.1f} s of the human's race, {aside_m:.1f} m from the path"))
    rows = Table("from s", "to s", "block", "lost s", "aside m")
    places = sorted(places_of(race, followed), key=lambda place: -place.lost_ms)
    for place in [place for place in places if place.lost_ms > 0.0][:LISTED_PLACES]:
        rows.add_row(
            f"{place.first_tick / 100:.1f}",
            f"{place.last_tick / 100:.1f}",
            Text(place.block),
            f"{place.lost_ms / 1000:+.2f}",
            f"{place.aside_m:.1f}",
        )
    console.print("places where it loses most:")
    print_table(rows, console)


@dataclass(frozen=True)
class Place:
    """A block that the path leads over.

    Attributes:
        block: its name.
        first_tick: of the human's race there.
        last_tick: likewise.
        lost_ms: how much later than the human the tracker is at its end, against its beginning.
        aside_m: how far beside the path it was at most.
    """

    block: str
    first_tick: int
    last_tick: int
    lost_ms: float
    aside_m: float


def places_of(race: GhostRace, followed: Followed) -> list[Place]:
    """The blocks of the path, one after the other."""
    places = list[Place]()
    motion, behind_ms = race.motion, 0.0
    for at, later_ms, aside_m in zip(followed.path_tick, followed.behind_ms, followed.aside_m, strict=True):
        sample = int(np.searchsorted(motion.time_ms, 10 * at).clip(0, len(motion.time_ms) - 1))
        block = race.grid.under(motion.position_m[sample])
        here = Place("none" if block is None else block.name, int(at), int(at), later_ms - behind_ms, float(aside_m))
        behind_ms = later_ms
        if places and places[-1].block == here.block:
            before = places.pop()
            here = Place(
                here.block,
                before.first_tick,
                here.last_tick,
                before.lost_ms + here.lost_ms,
                max(before.aside_m, here.aside_m),
            )
        places.append(here)
    return places
