"""Let a driver follow a replay in the simulated world of its map.

Let a driver follow a replay through the world of its map's blocks: on its path, loops and walls included, at its speed.
The driver searches for its inputs over the exact simulation, so it can do what the simulated car can do. Where it falls
behind the human or leaves the path, the simulated world or car is not as the game's.

Printed are the times at the gates beside the human's, the distance from the path, and where most time is lost. All
blocks under the path must be known, and the race must have no respawn.

Example:
  maps.py follow best.Replay.Gbx
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from maps_commands import _sources
from maps_commands._reporting import say
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _sources.add_ghost_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the search (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Follow and print; the exit code is 1 if the finish was not reached."""
    # The simulator takes seconds to import, which other commands need not wait for.
    from research.replay_windows.ghost_race import race_of_ghost
    from research.replay_windows.tracker import follow
    from trackmania_rl.simulator.tracks.world_file import track_in_world
    from trackmania_rl.track.block_tracks import arrays_of_map, require_known
    from trackmania_rl.track.block_world import world_of
    from trackmania_rl.track.driven_path import path_of_ghost
    from trackmania_rl.track.line_building import build_line

    path, replay = _sources.replay_of(arguments)
    challenge = _sources.map_in(path if arguments.map is None else arguments.map)
    ghost = ghost_of_driver(replay, arguments.driver)
    if ghost.n_respawns:
        raise UserError(f"{path}: its driver respawned, which the tracker does not: give a race without")
    race = race_of_ghost(ghost, challenge.blocks, path)
    line_m = build_line([path_of_ghost(ghost, str(path))], challenge).points_m
    world = world_of(challenge)
    require_known(world, challenge.plain_name)
    track = track_in_world(challenge.plain_name, line_m, arrays_of_map(challenge, world, line_m), challenge.n_laps)
    followed = follow(race, track, SeedTree(arguments.seed).rng("tracker"))
    print_followed(race, ghost, followed)
    return 0 if followed.is_finished else 1


def print_followed(race: GhostRace, ghost: Ghost, followed: Followed) -> None:
    """Print gates, distances, and places where time is lost."""
    gates = Table("gate", "human", "tracker", "difference s")
    for number, (human_ms, own_ms) in enumerate(zip(ghost.checkpoint_times_ms, followed.gate_times_ms, strict=False)):
        name = "finish" if number + 1 == len(ghost.checkpoint_times_ms) else f"checkpoint {number + 1}"
        gates.add_row(name, format_time(human_ms), format_time(own_ms), f"{(own_ms - human_ms) / 1000:+.2f}")
    print_table(gates)
    shares = [f"{100 * float((followed.aside_m <= limit_m).mean()):.0f} % within {limit_m:g} m" for limit_m in WITHIN_M]
    say(f"beside the human's path: {', '.join(shares)}; at most {followed.aside_m.max():.1f} m")
    if not followed.is_finished:
        at_s, aside_m = followed.path_tick[-1] / 100, followed.aside_m[-1]
        say(f"lost after {at_s:.1f} s of the human's race, {aside_m:.1f} m from the path")
    rows = Table("from s", "to s", "block", "lost s", "aside m")
    places = sorted(places_of(race, followed), key=lambda place: -place.lost_ms)
    for place in [place for place in places if place.lost_ms > 0.0][:LISTED_PLACES]:
        times = f"{place.first_tick / 100:.1f}", f"{place.last_tick / 100:.1f}"
        rows.add_row(*times, Text(place.block), f"{place.lost_ms / 1000:+.2f}", f"{place.aside_m:.1f}")
    say("places where it loses most:")
    print_table(rows)


@dataclass
class Place:
    """A block under the path; ticks are of the human's race."""

    block: str
    first_tick: int
    last_tick: int
    lost_ms: float  # growth of the tracker's time behind the human
    aside_m: float  # largest distance from the path


def places_of(race: GhostRace, followed: Followed) -> list[Place]:
    """Return the blocks of the path in order."""
    places: list[Place] = []
    motion, behind_ms = race.motion, 0.0
    for tick, later_ms, aside_m in zip(followed.path_tick, followed.behind_ms, followed.aside_m, strict=True):
        sample = int(np.searchsorted(motion.time_ms, 10 * tick).clip(0, len(motion.time_ms) - 1))
        block = race.grid.under(motion.position_m[sample])
        name = "none" if block is None else block.name
        if not places or places[-1].block != name:
            places.append(Place(name, int(tick), int(tick), 0.0, 0.0))
        here = places[-1]
        here.last_tick, here.aside_m = int(tick), max(here.aside_m, float(aside_m))
        here.lost_ms += later_ms - behind_ms
        behind_ms = later_ms
    return places
