"""Reference lines from a map's blocks alone: the chain of road pieces from the start over the checkpoints.

Road pieces join where borders, heights and headings meet. A search follows every branch; a line is
made if exactly one way leads from the start over all checkpoints to the finish. Roads that leave the catalogue
(platforms, circuits, loops, jumps, fields) need a replay.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.gbx.challenge import BLOCK_SIZE_M, STADIUM, Block, Challenge, Gate
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M
from trackmania_rl.track.line_building import BEYOND_FINISH_M, arc_length, resample
from trackmania_rl.track.pieces import Side, lanes_of
from trackmania_rl.track.placed_blocks import BlockGrid, Joint, Road, roads_of, side_direction

CAR_HEIGHT_M: Final = 0.36  # standing car's origin, as in reference lines
SPAWN_M: Final = 11.2
"""Start, from the back of the start block: 4.8 m before its middle, as in replays."""
FINISH_M: Final = 16.0 + BEYOND_FINISH_M  # line's end, from the border where it enters the finish block
MOST_SEARCH_STEPS: Final = 100_000

FloatArray = npt.NDArray[np.float64]


class BlockLineError(UserError):
    """A map's blocks do not give one whole way."""


@dataclass(frozen=True)
class BlockLine:
    """Line along the middle of a map's roads; N points."""

    # (N, 3) car's origin, world axes, about 0.5 m apart; all laps in a row
    points_m: FloatArray
    blocks: tuple[Block, ...]  # in the line's order
    gap: str | None  # why the line ends before the finish; None for a whole one


def line_from_blocks(challenge: Challenge, *, as_far_as_possible: bool = False) -> BlockLine:
    """Make a line from a map's road pieces, or with `as_far_as_possible` from the unambiguous part at the start.

    Raises:
        BlockLineError: if the map is from another environment or has no start; without `as_far_as_possible` also if the
            road pieces do not lead to the finish, or in several ways, or branch too often.
    """
    network = _RoadNetwork(challenge)
    first = network.first_road()
    ways = network.whole_ways(first)
    if len(ways) == 1:
        n_rounds = challenge.n_laps if first.block.gate is Gate.START_AND_FINISH else 1
        return _line(ways[0][:-1] * n_rounds + ways[0][-1:], None)
    part, gap = network.certain_part(first)
    if len(ways) > 1:
        shared = next(k for k, (one, other) in enumerate(zip(*ways, strict=False)) if one.leaves != other.leaves)
        part = ways[0][:shared]
        gap = f"more than one way leads to the finish: they part in {_named(ways[0][shared].block)}"
    if not as_far_as_possible:
        raise BlockLineError(
            f"map {challenge.plain_name}: its blocks alone give no whole line: {gap}. Make the line from a replay, or "
            f"take the first {_length_m(part):.0f} m with --as-far-as-possible"
        )
    return _line(part, gap)


class _RoadNetwork:
    def __init__(self, challenge: Challenge) -> None:
        if challenge.environment != STADIUM:
            raise BlockLineError(
                f"map {challenge.plain_name}: its environment is {challenge.environment}; only the blocks of {STADIUM} "
                "are known: make the line from a replay"
            )
        self._challenge = challenge
        self._checkpoints = {gate.cell for gate in challenge.gates if gate.gate is Gate.CHECKPOINT}
        self._grid = BlockGrid(challenge.blocks)
        self._entering: dict[Joint, list[Road]] = defaultdict(list)
        for block in challenge.blocks:
            for road in roads_of(block):
                self._add(road)

    def _add(self, road: Road) -> None:
        """Add a road. If overlapping blocks have equal roads, one is kept, preferably a gate's."""
        roads = self._entering[road.enters]
        same = [other for other in roads if other.leaves == road.leaves]
        if not same:
            roads.append(road)
        elif road.block.gate is not None:
            roads[roads.index(same[0])] = road

    def first_road(self) -> Road:
        """Return the road through the start block, forwards."""
        for gate in self._challenge.gates:
            if gate.gate in (Gate.START, Gate.START_AND_FINISH):
                for road in roads_of(gate):
                    if road.leaves.heading == (Side.FRONT + gate.quarter_turns) % 4:
                        return road
                raise BlockLineError(
                    f"map {self._challenge.plain_name}: its start, {_named(gate)}, is not in the catalogue of road "
                    "pieces: make the line from a replay"
                )
        raise BlockLineError(f"map {self._challenge.plain_name}: it has no start block: make the line from a replay")

    def whole_ways(self, first: Road) -> list[list[Road]]:
        """Return up to two ways from the start over every checkpoint to the finish; no road is driven twice.

        Raises:
            BlockLineError: after `MOST_SEARCH_STEPS` without an answer.
        """
        ways: list[list[Road]] = []
        way = [first]
        used = {_key(first)}
        open_ends = [iter(self._next_roads(first))]
        for _ in range(MOST_SEARCH_STEPS):
            if not open_ends or len(ways) == 2:
                break
            road = next(open_ends[-1], None)
            if road is None:
                open_ends.pop()
                used.discard(_key(way.pop()))
            elif road.block.gate in (Gate.FINISH, Gate.START_AND_FINISH):
                if self._checkpoints <= {passed.block.cell for passed in way}:
                    ways.append([*way, road])
            elif _key(road) not in used:
                way.append(road)
                used.add(_key(road))
                open_ends.append(iter(self._next_roads(road)))
        else:
            raise BlockLineError(
                f"map {self._challenge.plain_name}: its roads branch so often that no search finds all ways: make the "
                "line from a replay"
            )
        return ways

    def certain_part(self, first: Road) -> tuple[list[Road], str]:
        """Return the way from the start to the end or first branch, and the reason for the end."""
        way = [first]
        used = {_key(first)}
        while True:
            following = self._next_roads(way[-1])
            if len(following) != 1:
                break
            if following[0].block.gate in (Gate.FINISH, Gate.START_AND_FINISH):
                missed = self._checkpoints - {road.block.cell for road in way}
                cells = ", ".join(map(str, sorted(missed)))
                return [*way, following[0]], f"the road reaches the finish past the checkpoints at cells {cells}"
            if _key(following[0]) in used:
                return way, f"the road runs back into itself in {_named(following[0].block)}"
            way.append(following[0])
            used.add(_key(following[0]))
        last = way[-1]
        passed = len(self._checkpoints & {road.block.cell for road in way})
        reached = f"after {_length_m(way):.0f} m and {passed} of {len(self._checkpoints)} checkpoints"
        if following:
            return way, f"{reached} the road branches in {_named(following[0].block)}"
        return way, f"{reached} the road ends behind {_named(last.block)}: {self._what_is_beyond(last.leaves)}"

    def _next_roads(self, road: Road) -> list[Road]:
        return self._entering.get(road.leaves.opposite, [])

    def _what_is_beyond(self, joint: Joint) -> str:
        ahead_x, ahead_z = side_direction(joint.heading)
        beyond_m = np.array(joint.position_m) + np.array((ahead_x, -0.5, ahead_z))
        x, y, z = (int(cell) for cell in np.floor(beyond_m / BLOCK_SIZE_M))
        for layer in (y, y - 1, y + 1):
            block = self._grid.at((x, layer, z))
            if block is not None:
                has_road = "has no road that meets it" if lanes_of(block) else "has no way of its own in the catalogue"
                return f"{_named(block)} is next, which {has_road}"
        return f"no road piece is at the next cell, {(x, y, z)} (a jump, or open ground)"


def _line(way: list[Road], gap: str | None) -> BlockLine:
    points_m = _joined_points(way)
    points_m = points_m[arc_length(points_m) >= SPAWN_M]
    if gap is None or way[-1].block.gate in (Gate.FINISH, Gate.START_AND_FINISH):
        finish_m = arc_length(way[-1].points_m)[-1] - FINISH_M
        along_m = arc_length(points_m)
        points_m = points_m[along_m <= along_m[-1] - finish_m]
    lifted_m = points_m + np.array((0.0, CAR_HEIGHT_M, 0.0))
    return BlockLine(resample(lifted_m, LINE_SPACING_M), tuple(road.block for road in way), gap)


def _joined_points(way: list[Road]) -> FloatArray:
    """Return consecutive roads' middles (K, 3), without doubled points at joints."""
    return np.concatenate([way[0].points_m] + [road.points_m[1:] for road in way[1:]])


def _length_m(way: list[Road]) -> float:
    return float(arc_length(_joined_points(way))[-1])


def _key(road: Road) -> tuple[tuple[int, int, int], str, int]:
    return road.block.cell, road.block.name, road.lane


def _named(block: Block) -> str:
    return f"{block.name} at cell {block.cell}"
