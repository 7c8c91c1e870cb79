"""Show the content of a map (.Challenge.Gbx), a replay or a ghost (.Replay.Gbx, .Ghost.Gbx).

This includes the share of the map's blocks that are in the catalogue, and by which kind of knowledge: measured on
ghosts, joined to known pieces in real maps, mirrored, or assumed.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from pathlib import Path

from maps_commands._reporting import say
from trackmania_rl.cli import png_file
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import STADIUM, Challenge, Gate, is_challenge_file, read_challenge
from trackmania_rl.gbx.reading import wrong_name
from trackmania_rl.gbx.replay import Ghost, is_replay_file, read_replay
from trackmania_rl.telemetry.tables import PlainConsole, print_table
from trackmania_rl.telemetry.terminal_view import format_time
from trackmania_rl.track.block_world import world_of
from trackmania_rl.track.line_sources import map_in

import numpy as np
from rich.table import Table
from rich.text import Text

HEADINGS = ("+z", "-x", "-z", "+x")
"""Block direction by quarter turns."""
GATE_ORDER = (Gate.START, Gate.START_AND_FINISH, Gate.CHECKPOINT, Gate.FINISH)
KINDS_SHOWN = 12
LONGEST_TEXT = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="MAP_OR_REPLAY")
    add("--all-blocks", action="store_true", help="every kind of block, not only the most frequent")
    add("--picture", type=png_file, metavar="FILE.png", help="draw the map's blocks from above")
    views = "draw what the driver of a replay sees, as the simulated game does"
    add("--views", type=png_file, metavar="FILE.png", help=views)


def run(arguments: argparse.Namespace) -> int:
    """Print every file; return 1 if one of them is unreadable."""
    n_problems = 0
    if len(arguments.files) > 1 and (arguments.picture or arguments.views):
        raise UserError(
            f"--picture and --views draws one map; {len(arguments.files)} files are given: name one of them"
        )
    for file in arguments.files:
        try:
            if is_challenge_file(file):
                show_challenge(str(file), read_challenge(file), arguments.all_blocks)
            elif is_replay_file(file):
                show_replay(file, arguments.all_blocks)
            else:
                raise wrong_name(file)
            if arguments.picture is not None:
                from maps_commands._pictures import draw_world  # slow import

                challenge = map_in(file)
                draw_world(arguments.picture, challenge.plain_name, world_of(challenge))
                say(f"wrote {arguments.picture}")
            if arguments.views is not None:
                _draw_views(file, arguments.views)
        except UserError as error:
            n_problems += 1
            PlainConsole(stderr=True).print(f"error: {error}", soft_wrap=True)
    return 1 if n_problems else 0


def show_challenge(title: str, challenge: Challenge, all_blocks: bool) -> None:
    times, is_stadium = challenge.times, challenge.environment == STADIUM
    medals = times.author_ms, times.gold_ms, times.silver_ms, times.bronze_ms
    facts = {
        "map": _cut(challenge.plain_name),
        "author": _cut(challenge.author),
        "environment": f"{challenge.environment}, {challenge.mood}",
        "size": "{} x {} x {} blocks".format(*challenge.size_cells),
        "laps": str(challenge.n_laps),
        "author, gold, silver, bronze": ", ".join(map(format_time, medals)),
        "checkpoints": str(sum(gate.gate is Gate.CHECKPOINT for gate in challenge.gates)),
        "blocks": str(len(challenge.blocks)),
        "of them": _counts(Counter(block.name for block in challenge.blocks).most_common(), all_blocks),
    }
    if is_stadium:
        world = world_of(challenge)
        n_driven = len(world.blocks) - len(world.scenery)
        known = f"{n_driven - len(world.unknown)} of {n_driven}, {100.0 * world.known_share:.0f} %"
        facts["road pieces known"] = known
        shares = (f"{100.0 * count / n_driven:.0f} % {kind}" for kind, count in world.knowledge.most_common())
        facts["how"] = ", ".join(shares)
        if world.unknown:
            facts["not in the catalogue"] = _counts(world.unknown_names, all_blocks)
    _print_facts(title, facts)
    table = Table("gate", "block", "x, y, z in m" if is_stadium else "x, y, z in blocks", "looks along")
    for gate in sorted(challenge.gates, key=lambda gate: GATE_ORDER.index(gate.gate or Gate.CHECKPOINT)):
        place = gate.floor_center_m if is_stadium else gate.cell
        kind = "" if gate.gate is None else gate.gate.value
        table.add_row(kind, Text(gate.name), "{:.0f}, {:.0f}, {:.0f}".format(*place), HEADINGS[gate.quarter_turns])
    print_table(table)


def show_replay(file: Path, all_blocks: bool) -> None:
    replay = read_replay(file)
    _print_facts(str(file), {"saved by": _cut(replay.nickname or "unknown"), "races": str(len(replay.ghosts))})
    for ghost in replay.ghosts:
        _print_facts(f"driver {_cut(ghost.login or 'unknown')}", _ghost_facts(ghost))
    if replay.challenge is not None:
        show_challenge(f"{file}, its map", replay.challenge, all_blocks)


def _counts(counts: list[tuple[str, int]], show_all: bool) -> str:
    shown = counts if show_all else counts[:KINDS_SHOWN]
    more = f", {len(counts) - len(shown)} other kinds (--all-blocks)" if len(shown) < len(counts) else ""
    return ", ".join(f"{count} {name}" for name, count in shown) + more


def _draw_views(file: Path, picture: Path) -> None:
    from maps_commands._pictures import draw_views  # slow import
    from trackmania_rl.track.block_picture import scene_of  # slow import

    if is_challenge_file(file):
        raise UserError(f"{file}: --views draws what a driver sees; name a replay on that map")
    challenge, replay = map_in(file), read_replay(file)
    ghosts = [ghost for ghost in replay.ghosts if ghost.samples is not None]
    if not ghosts:
        raise UserError(f"{file}: no race in it has samples, so where its car was is not known")
    ghost = min(ghosts, key=lambda ghost: ghost.race_time_ms or math.inf)
    assert ghost.samples is not None
    title = f"{challenge.plain_name}, driven by {ghost.login or 'unknown'}"
    draw_views(picture, title, scene_of(world_of(challenge)), ghost.samples)
    say(f"wrote {picture}")


def _ghost_facts(ghost: Ghost) -> dict[str, str]:
    samples = "none"
    if ghost.samples is not None:
        driven_m = np.linalg.norm(np.diff(ghost.samples.position_m, axis=0), axis=1).sum()
        samples = f"{len(ghost.samples.time_ms)}, one every {ghost.samples.period_ms} ms, {driven_m:.0f} m in all"
    return {
        "race time": "not finished" if ghost.race_time_ms is None else format_time(ghost.race_time_ms),
        "checkpoint times": ", ".join(map(format_time, ghost.checkpoint_times_ms)) or "none",
        "respawns": str(ghost.n_respawns),
        "samples": samples,
        "changes of inputs": str(len(ghost.events)),
        "game": _cut(ghost.game_version or "unknown"),
    }


def _cut(text: str) -> str:
    """Shorten a text from a file: the Competition Patch adds a 400-letter signature to the game's version."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."


def _print_facts(title: str, facts: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name), Text(value))
    PlainConsole().print(Text(title, style="bold"))
    print_table(table)
