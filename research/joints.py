"""Heights at the joints of blocks in real maps: `python -m research.joints FOLDER` reads all maps and replays in it.

In the game's maps roads, platforms, dirt roads and circuits continue each other without steps. A pair of blocks whose
surfaces do not meet within 5 cm is either a step that the map's author wanted, or a piece with a wrong shape.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from trackmania_rl.gbx.challenge import STADIUM, Block, Challenge, is_challenge_file, read_challenge
from trackmania_rl.gbx.reading import GbxError
from trackmania_rl.gbx.replay import is_replay_file, read_replay
from trackmania_rl.track.block_world import BlockWorld, world_of
from trackmania_rl.track.piece_mesh import mesh_of
from trackmania_rl.track.pieces import CELL_M, SHAPE_BITS, footprint, stadium_pieces
from trackmania_rl.track.placed_blocks import to_world

CLOSE_M: Final = 0.05
JOINT_M: Final = 1.5  # surfaces with a larger median distance are beside each other, and no joint
PLACES_M: Final = np.array((1.5, 4.5, 8.0, 12.0, 16.0, 20.0, 24.0, 27.5, 30.5))  # along a border of 32 m
LEAST_PLACES: Final = 2  # with surfaces of both blocks
STEPS: Final = ((0, 1), (-1, 0), (0, -1), (1, 0))  # (x, z) to the next column of cells, by `Side`
LEAST_UP: Final = 0.25  # of a normal; steeper surfaces are walls

Column = tuple[int, int]
Border = tuple[int, Column]
"""Side of a block and one of its columns there, own axes."""
Heights = tuple[tuple[float, ...], ...]
"""Heights of the surfaces at each of `PLACES_M`, along x or z, above the floor of the block's lowest cell."""


@dataclass(frozen=True)
class Joint:
    """Border of two blocks whose surfaces are near each other."""

    one: tuple[Block, Border]
    other: tuple[Block, Border]
    apart_m: float  # largest difference of heights

    @property
    def names(self) -> str:
        """Both blocks and their sides, in the same order for all joints of a kind."""
        ends = [
            f"{block.name} {('front', 'right', 'back', 'left')[side]}" for block, (side, _) in (self.one, self.other)
        ]
        return " - ".join(sorted(ends))


def joints_of(world: BlockWorld) -> Iterator[Joint]:
    """Find the joints of a world's driven pieces; fields, hills and water are left out."""
    pieces = stadium_pieces()
    found = defaultdict[tuple[int, int, int], list[tuple[Block, Border]]](list)
    for block in dict.fromkeys(world.blocks):
        piece = pieces.find(block)
        if piece is not None and not (piece.is_scenery or piece.is_ground or piece.is_water):
            for border in borders_of(block.name):
                found[place_of(block, border)].append((block, border))
    for (x, z, side), ones in found.items():
        if side in (0, 3):  # each border once: towards +z and +x
            step_x, step_z = STEPS[side]
            for other in found.get((x + step_x, z + step_z, (side + 2) % 4), ()):
                for one in ones:
                    apart_m = apart(one, other)
                    if apart_m is not None:
                        yield Joint(one, other, apart_m)


def apart(one: tuple[Block, Border], other: tuple[Block, Border]) -> float | None:
    """Return the largest difference of two blocks' heights at a common border; None if it is no joint."""
    differences_m = []
    for heights_m, other_m in zip(_in_world(*one), _in_world(*other), strict=True):
        if heights_m and other_m:
            differences_m.append(min(abs(a - b) for a in heights_m for b in other_m))
    is_joint = len(differences_m) >= LEAST_PLACES and float(np.median(differences_m)) <= JOINT_M
    return max(differences_m) if is_joint else None


def place_of(block: Block, border: Border) -> tuple[int, int, int]:
    """Return the column (x, z) of a border in the map's grid, and the side in quarter turns to the right of +z."""
    side, (x, z) = border
    middle_m = to_world(CELL_M * np.array((x + 0.5, 0.0, z + 0.5)), block) // CELL_M
    return int(middle_m[0]), int(middle_m[2]), (side + block.quarter_turns) % 4


@cache
def borders_of(name: str) -> tuple[Border, ...]:
    """Return the borders of a block's columns that are not inside the block."""
    columns = {(x, z) for x, _, z in footprint(name)}
    return tuple(
        (side, (x, z))
        for x, z in sorted(columns)
        for side, (step_x, step_z) in enumerate(STEPS)
        if (x + step_x, z + step_z) not in columns
    )


@cache
def heights_at(name: str, shape: int) -> dict[Border, Heights]:
    """Return the heights of a piece's surfaces at its borders."""
    block = Block(name, (0, 0, 0), 0, shape)
    piece = stadium_pieces().find(block)
    assert piece is not None, "a block of the catalogue"
    corners_m = mesh_of(piece, block).corners_m
    normal = np.cross(corners_m[:, 1] - corners_m[:, 0], corners_m[:, 2] - corners_m[:, 0])
    corners_m = corners_m[normal[:, 1] > LEAST_UP * np.linalg.norm(normal, axis=1)]
    begins_m = corners_m.reshape(-1, 3)
    ends_m = np.roll(corners_m, -1, axis=1).reshape(-1, 3)
    heights: dict[Border, Heights] = {}
    for side, column in borders_of(name):
        across, along = (2, 0) if side in (0, 2) else (0, 2)
        cell = dict(zip((0, 2), column, strict=True))
        border_m = CELL_M * (cell[across] + (side in (0, 3)))
        is_on = (np.abs(begins_m[:, across] - border_m) < 0.03) & (np.abs(ends_m[:, across] - border_m) < 0.03)
        begin_m, end_m = begins_m[is_on], ends_m[is_on]
        length_m = end_m[:, along] - begin_m[:, along]
        begin_m, end_m, length_m = (values[np.abs(length_m) > 1e-6] for values in (begin_m, end_m, length_m))
        share = (PLACES_M[:, None] + CELL_M * cell[along] - begin_m[:, along]) / length_m
        height_m = begin_m[:, 1] + share * (end_m[:, 1] - begin_m[:, 1])
        is_over = (share > -1e-6) & (share < 1.0 + 1e-6)
        heights[side, column] = tuple(
            tuple(sorted(set(np.round(height_m[place, is_over[place]], 4).tolist()))) for place in range(len(PLACES_M))
        )
    return heights


def _in_world(block: Block, border: Border) -> Heights:
    heights_m = heights_at(block.name, block.flags & SHAPE_BITS)[border]
    floor_m = 8.0 * block.cell[1]
    raised = tuple(tuple(floor_m + height_m for height_m in at_place) for at_place in heights_m)
    along = np.array((1.0, 0.0, 0.0) if border[0] in (0, 2) else (0.0, 0.0, 1.0))
    is_reversed = (to_world(along, block) - to_world(np.zeros(3), block)).sum() < 0.0
    return raised[::-1] if is_reversed else raised


def maps_in(folder: Path) -> Iterator[Challenge]:
    """Read each Stadium map in a folder once, from maps and replays."""
    seen = set[tuple[str, int]]()
    for file in sorted(folder.rglob("*")):
        try:
            if is_challenge_file(file):
                challenge: Challenge | None = read_challenge(file)
            elif is_replay_file(file):
                challenge = read_replay(file).challenge
            else:
                continue
        except GbxError:
            continue
        if challenge is not None and challenge.environment == STADIUM:
            key = challenge.plain_name, len(challenge.blocks)
            if key not in seen:
                seen.add(key)
                yield challenge


def report(challenges: Iterable[Challenge]) -> str:
    """Return the share of joints that are closed, and the kinds of those that are not, the most frequent first."""
    n_maps, n_joints, steps, worst_m = 0, 0, Counter[str](), defaultdict[str, float](float)
    for challenge in challenges:
        n_maps += 1
        for joint in joints_of(world_of(challenge)):
            n_joints += 1
            if joint.apart_m > CLOSE_M:
                steps[joint.names] += 1
                worst_m[joint.names] = max(worst_m[joint.names], joint.apart_m)
    n_closed = n_joints - steps.total()
    lines = [f"{n_maps} maps, {n_joints} joints: {100.0 * n_closed / max(n_joints, 1):.1f} % within {CLOSE_M} m"]
    return "\n".join(lines + [f"{count:5d}  {worst_m[names]:5.2f} m  {names}" for names, count in steps.most_common()])


if __name__ == "__main__":
    print(report(maps_in(Path(sys.argv[1]))))
