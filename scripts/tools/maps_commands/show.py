"""`maps.py show`: what a map or a replay says."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trackmania_rl.cli import png_file
from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import STADIUM, Challenge, Gate, is_challenge_file, read_challenge
from trackmania_rl.gbx.replay import Ghost, is_replay_file, read_replay
from trackmania_rl.telemetry.tables import print_table
from trackmania_rl.telemetry.terminal_view import format_time
from trackmania_rl.track.block_world import BlockWorld, world_of

HEADINGS = ("+z", "-x", "-z", "+x")
"""Where a block looks, by its quarter turns."""
GATE_ORDER = (Gate.START, Gate.START_AND_FINISH, Gate.CHECKPOINT, Gate.FINISH)
KINDS_SHOWN = 12
LONGEST_TEXT = 80


def add_parser(subparsers: Any) -> None:
    """Add the command `show`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "show",
        help="what a map or a replay says",
        description="Print what a map (.Challenge.Gbx), a replay or a ghost (.Replay.Gbx, .Ghost.Gbx) says, and how "
        "much of the map the catalogue of blocks knows.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="MAP_OR_REPLAY")
    parser.add_argument("--all-blocks", action="store_true", help="every kind of block, not only the most frequent")
    parser.add_argument(
        "--picture", type=png_file, metavar="FILE.png", help="draw the map's blocks from above and in perspective"
    )
    parser.add_argument(
        "--views",
        type=png_file,
        metavar="FILE.png",
        help="draw what the driver of a replay sees, as the simulated game does",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print every file; the exit code is 1 if one of them cannot be read."""
    console, n_problems = Console(), 0
    if len(arguments.files) > 1:
        for option in ("picture", "views"):
            if getattr(arguments, option) is not None:
                raise UserError(f"--{option} draws one map; {len(arguments.files)} files are given: name one of them")
    for file in arguments.files:
        try:
            if is_challenge_file(file):
                show_challenge(console, file, read_challenge(file), arguments.all_blocks)
            elif is_replay_file(file):
                show_replay(console, file, arguments.all_blocks)
            else:
                raise UserError(f"{file}: its name must end in .Challenge.Gbx, .Replay.Gbx or .Ghost.Gbx")
            if arguments.picture is not None:
                _draw(console, file, arguments.picture)
            if arguments.views is not None:
                _draw_views(console, file, arguments.views)
        except UserError as error:
            n_problems += 1
            Console(stderr=True).print(Text(f"error: {error}"), soft_wrap=True)
    return 1 if n_problems else 0


def show_challenge(console: Console, file: Path, challenge: Challenge, all_blocks: bool) -> None:
    """Print a map: what it is, its blocks by kind, its gates."""
    times, kinds = challenge.times, Counter(block.name for block in challenge.blocks)
    shown = kinds.most_common(None if all_blocks else KINDS_SHOWN)
    others = f", {len(kinds) - len(shown)} other kinds (--all-blocks)" if len(shown) < len(kinds) else ""
    _print_facts(
        console,
        str(file),
        {
            "map": _cut(challenge.plain_name),
            "author": _cut(challenge.author),
            "environment": f"{challenge.environment}, {challenge.mood}",
            "size": "{} x {} x {} blocks".format(*challenge.size_cells),
            "laps": str(challenge.n_laps),
            "author, gold, silver, bronze": ", ".join(
                map(format_time, (times.author_ms, times.gold_ms, times.silver_ms, times.bronze_ms))
            ),
            "checkpoints": str(sum(gate.gate is Gate.CHECKPOINT for gate in challenge.gates)),
            "blocks": str(len(challenge.blocks)),
            "of them": ", ".join(f"{count} {kind}" for kind, count in shown) + others,
            **_catalogue_facts(challenge, all_blocks),
        },
    )
    is_stadium = challenge.environment == STADIUM
    table = Table("gate", "block", "x, y, z in m" if is_stadium else "x, y, z in blocks", "looks along")
    for gate in sorted(challenge.gates, key=lambda gate: GATE_ORDER.index(gate.gate or Gate.CHECKPOINT)):
        place = gate.floor_center_m if is_stadium else gate.cell
        kind = "" if gate.gate is None else gate.gate.value
        table.add_row(kind, Text(gate.name), "{:.0f}, {:.0f}, {:.0f}".format(*place), HEADINGS[gate.quarter_turns])
    print_table(table, console)


def show_replay(console: Console, file: Path, all_blocks: bool) -> None:
    """Print a replay or a ghost: its races, then the map within it."""
    replay = read_replay(file)
    _print_facts(console, str(file), {"saved by": _cut(replay.nickname or "unknown"), "races": str(len(replay.ghosts))})
    for ghost in replay.ghosts:
        _print_facts(console, f"driver {_cut(ghost.login or 'unknown')}", _ghost_facts(ghost))
    if replay.challenge is not None:
        show_challenge(console, Path(f"{file}, its map"), replay.challenge, all_blocks)


def _catalogue_facts(challenge: Challenge, all_blocks: bool) -> dict[str, str]:
    """How much of a Stadium map the catalogue of pieces knows."""
    if challenge.environment != STADIUM:
        return {}
    world = world_of(challenge)
    facts = {"road pieces known": _known(world)}
    if world.unknown:
        names = world.unknown_names
        shown = names if all_blocks else names[:KINDS_SHOWN]
        more = f", {len(names) - len(shown)} other kinds (--all-blocks)" if len(shown) < len(names) else ""
        facts["not in the catalogue"] = ", ".join(f"{count} {name}" for name, count in shown) + more
    return facts


def _known(world: BlockWorld) -> str:
    n_driven = len(world.blocks) - len(world.scenery)
    return f"{n_driven - len(world.unknown)} of {n_driven}, {100.0 * world.known_share:.0f} %"


def _draw(console: Console, file: Path, picture: Path) -> None:
    """Draw the map that a file is or holds."""
    from maps_commands._world_pictures import draw_world  # matplotlib takes a second to import

    challenge = read_challenge(file) if is_challenge_file(file) else read_replay(file).challenge
    if challenge is None:
        raise UserError(f"{file}: no map is in it to draw; name the map's .Challenge.Gbx")
    _require_stadium(file, challenge)
    draw_world(picture, challenge.plain_name, world_of(challenge))
    console.print(Text(f"wrote {picture}"), soft_wrap=True)


def _draw_views(console: Console, file: Path, picture: Path) -> None:
    """Draw what the driver of a replay's fastest race sees."""
    from maps_commands._world_pictures import draw_views  # matplotlib takes a second to import
    from trackmania_rl.track.block_picture import scene_of  # and numba likewise

    if is_challenge_file(file):
        raise UserError(f"{file}: --views draws what a driver sees; name a replay on that map")
    replay = read_replay(file)
    if replay.challenge is None:
        raise UserError(f"{file}: no map is in it to draw; name a .Replay.Gbx")
    _require_stadium(file, replay.challenge)
    races = [(ghost.race_time_ms or math.inf, ghost) for ghost in replay.ghosts if ghost.samples is not None]
    if not races:
        raise UserError(f"{file}: no race in it has samples, so where its car was is not known")
    ghost = min(races, key=lambda race: race[0])[1]
    assert ghost.samples is not None
    title = f"{replay.challenge.plain_name}, driven by {ghost.login or 'unknown'}"
    draw_views(picture, title, scene_of(world_of(replay.challenge)), ghost.samples)
    console.print(Text(f"wrote {picture}"), soft_wrap=True)


def _require_stadium(file: Path, challenge: Challenge) -> None:
    if challenge.environment != STADIUM:
        raise UserError(f"{file}: its map is of {challenge.environment}; only the blocks of {STADIUM} are known")


def _ghost_facts(ghost: Ghost) -> dict[str, str]:
    checkpoints = ", ".join(map(format_time, ghost.checkpoint_times_ms)) or "none"
    samples = "none"
    if ghost.samples is not None:
        driven_m = np.linalg.norm(np.diff(ghost.samples.position_m, axis=0), axis=1).sum()
        samples = f"{len(ghost.samples.time_ms)}, one every {ghost.samples.period_ms} ms, {driven_m:.0f} m in all"
    return {
        "race time": "not finished" if ghost.race_time_ms is None else format_time(ghost.race_time_ms),
        "checkpoint times": checkpoints,
        "respawns": str(ghost.n_respawns),
        "samples": samples,
        "changes of inputs": str(len(ghost.events)),
        "game": _cut(ghost.game_version or "unknown"),
    }


def _cut(text: str) -> str:
    """Cut a text from a file: the Competition Patch adds a signature of some 400 letters to the game's version."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."


def _print_facts(console: Console, title: str, facts: dict[str, str]) -> None:
    """Print names and values; texts from files are shown as they are, never taken for markup."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name), Text(value))
    console.print(Text(title, style="bold"))
    print_table(table, console)
