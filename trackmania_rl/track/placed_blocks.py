"""Blocks where they stand in a map: which of them is under a point, and the roads through them in world axes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.challenge import BLOCK_CENTER_M, BLOCK_SIZE_M, Block
from trackmania_rl.track.road_lanes import CELL_M, Lane, Port, lane_points, port_place
from trackmania_rl.track.stadium_blocks import footprint, lanes_of, piece_of, size_cells

MOST_ABOVE_M: Final = 16.0
"""A car this far above a cell's floor no longer drives over its block."""
LEAST_ABOVE_M: Final = 0.3
"""A car lower than this above a cell's floor drives under its block."""

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Joint:
    """Where a road crosses a block's border, in the world.

    Attributes:
        position_m: (x, y, z), whole metres.
        heading: out of the block, in quarter turns to the right of +z.
    """

    position_m: tuple[int, int, int]
    heading: int

    @property
    def opposite(self) -> Joint:
        """The joint of the block on the other side of the border, if its road meets this one."""
        return Joint(self.position_m, (self.heading + 2) % 4)


@dataclass(frozen=True)
class Road:
    """One road through one block, in one of its two directions; K points.

    Attributes:
        block: where it leads through.
        lane: which of the block's roads, by its number.
        enters: where.
        leaves: where.
        points_m: (K, 3) its middle, world axes.
        bank: (K,) rise of the road per metre to the left of who drives.
    """

    block: Block
    lane: int
    enters: Joint
    leaves: Joint
    points_m: FloatArray
    bank: FloatArray


def roads_of(block: Block) -> list[Road]:
    """The roads through a block, each in both directions."""
    size, roads = size_cells(block.name), list[Road]()
    for number, lane in enumerate(lanes_of(block)):
        roads += _both_ways(block, number, lane, size)
    return roads


def to_world(points_m: FloatArray, block: Block) -> FloatArray:
    """Points (..., 3) from a block's own axes to the world's."""
    width_m, depth_m = (cells * CELL_M for cells in size_cells(block.name))
    x, y, z = points_m[..., 0], points_m[..., 1], points_m[..., 2]
    turned_x, turned_z = ((x, z), (depth_m - z, x), (width_m - x, depth_m - z), (z, width_m - x))[block.quarter_turns]
    return np.stack((turned_x, y, turned_z), axis=-1) + np.array(block.cell) * BLOCK_SIZE_M


def forward_of(block: Block) -> FloatArray:
    """(3,) the direction in which a block looks."""
    return np.array(((0.0, 0.0, 1.0), (-1.0, 0.0, 0.0), (0.0, 0.0, -1.0), (1.0, 0.0, 0.0))[block.quarter_turns])


class BlockGrid:
    """The blocks of a map that carry a road, by the cells they fill."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._columns: dict[tuple[int, int], list[tuple[int, Block]]] = defaultdict(list)
        for block in blocks:
            if piece_of(block) is None:
                continue
            middles_m = np.array(footprint(block.name)) * BLOCK_SIZE_M + BLOCK_CENTER_M
            for x, y, z in np.floor(to_world(middles_m, block) / BLOCK_SIZE_M).astype(int):
                self._columns[int(x), int(z)].append((int(y), block))

    def under(self, position_m: FloatArray) -> Block | None:
        """The highest block that a car at a position (3,), world axes, may be driving on."""
        column = self._columns.get((int(position_m[0] // BLOCK_SIZE_M[0]), int(position_m[2] // BLOCK_SIZE_M[2])), [])
        best: tuple[int, Block] | None = None
        for layer, block in column:
            above_m = position_m[1] - layer * BLOCK_SIZE_M[1]
            if LEAST_ABOVE_M <= above_m < MOST_ABOVE_M and (best is None or layer > best[0]):
                best = layer, block
        return None if best is None else best[1]

    def at(self, cell: tuple[int, int, int]) -> Block | None:
        """A block that fills a cell."""
        return next((block for layer, block in self._columns.get((cell[0], cell[2]), []) if layer == cell[1]), None)


def _both_ways(block: Block, number: int, lane: Lane, size: tuple[int, int]) -> tuple[Road, Road]:
    points_m, bank = lane_points(lane, size)
    points_m = to_world(points_m, block)
    begin, end = _joint(lane.begin, block, size), _joint(lane.end, block, size)
    return (
        Road(block, number, begin, end, points_m, bank),
        Road(block, number, end, begin, points_m[::-1], -bank[::-1]),
    )


def _joint(port: Port, block: Block, size: tuple[int, int]) -> Joint:
    x_m, z_m = port_place(port, size)
    x, y, z = np.rint(to_world(np.array((x_m, port.height_m, z_m)), block)).astype(int)
    return Joint((int(x), int(y), int(z)), (port.side + block.quarter_turns) % 4)
