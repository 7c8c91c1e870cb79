"""A map's blocks in world axes: the roads through them, and the block under a point."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.gbx.challenge import BLOCK_CENTER_M, BLOCK_SIZE_M, Block
from trackmania_rl.track.pieces import CELL_M, Lane, Port, Side, footprint, hermite, lanes_of, road_kind, size_cells

MOST_ABOVE_M: Final = 16.0  # a car further above a cell's floor no longer drives over the block
LEAST_ABOVE_M: Final = 0.3  # a car lower above a cell's floor drives under the block

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Joint:
    """Crossing of a road and a block's border, in the world."""

    position_m: tuple[int, int, int]  # whole metres
    heading: int  # out of the block, in quarter turns to the right of +z

    @property
    def opposite(self) -> Joint:
        """Joint on the border's other side, if the road there meets this one."""
        return Joint(self.position_m, (self.heading + 2) % 4)


@dataclass(frozen=True)
class Road:
    """One road through one block, in one direction; K points."""

    block: Block
    lane: int
    enters: Joint
    leaves: Joint
    points_m: FloatArray  # (K, 3) middle, world axes
    bank: FloatArray  # (K,) road's rise per metre to the left of the driving direction


def roads_of(block: Block) -> list[Road]:
    """Return the roads through a block, each in both directions."""
    size = size_cells(block.name)
    roads = list[Road]()
    for number, lane in enumerate(lanes_of(block)):
        roads += _both_ways(block, number, lane, size)
    return roads


def to_world(points_m: FloatArray, block: Block) -> FloatArray:
    """Convert points (..., 3) from a block's axes to the world's."""
    width_m, depth_m = (cells * CELL_M for cells in size_cells(block.name))
    x = points_m[..., 0]
    y = points_m[..., 1]
    z = points_m[..., 2]
    turned_x, turned_z = ((x, z), (depth_m - z, x), (width_m - x, depth_m - z), (z, width_m - x))[block.quarter_turns]
    return np.stack((turned_x, y, turned_z), axis=-1) + np.array(block.cell) * BLOCK_SIZE_M


def cells_of(block: Block) -> list[tuple[int, int, int]]:
    """Return the map grid's cells that a block fills."""
    middles_m = np.array(footprint(block.name)) * BLOCK_SIZE_M + BLOCK_CENTER_M
    return [(int(x), int(y), int(z)) for x, y, z in np.floor(to_world(middles_m, block) / BLOCK_SIZE_M)]


def forward_of(block: Block) -> FloatArray:
    """Return a block's direction (3,)."""
    return np.array(((0.0, 0.0, 1.0), (-1.0, 0.0, 0.0), (0.0, 0.0, -1.0), (1.0, 0.0, 0.0))[block.quarter_turns])


class BlockGrid:
    """A map's blocks that carry a road, by the cells they fill."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._columns: dict[tuple[int, int], list[tuple[int, Block]]] = defaultdict(list)
        for block in blocks:
            if road_kind(block) is None:
                continue
            for x, y, z in cells_of(block):
                self._columns[x, z].append((y, block))

    def under(self, position_m: FloatArray) -> Block | None:
        """Return the highest block that a car at a position (3,), world axes, may be driving on."""
        column = self._columns.get((int(position_m[0] // BLOCK_SIZE_M[0]), int(position_m[2] // BLOCK_SIZE_M[2])), [])
        best: tuple[int, Block] | None = None
        for layer, block in column:
            above_m = position_m[1] - layer * BLOCK_SIZE_M[1]
            if LEAST_ABOVE_M <= above_m < MOST_ABOVE_M and (best is None or layer > best[0]):
                best = layer, block
        return None if best is None else best[1]

    def at(self, cell: tuple[int, int, int]) -> Block | None:
        """Return a block that fills a cell."""
        return next((block for layer, block in self._columns.get((cell[0], cell[2]), []) if layer == cell[1]), None)


def _both_ways(block: Block, number: int, lane: Lane, size: tuple[int, int]) -> tuple[Road, Road]:
    points_m, bank = lane_points(lane, size)
    points_m = to_world(points_m, block)
    begin = _joint(lane.begin, block, size)
    end = _joint(lane.end, block, size)
    return (
        Road(block, number, begin, end, points_m, bank),
        Road(block, number, end, begin, points_m[::-1], -bank[::-1]),
    )


def _joint(port: Port, block: Block, size: tuple[int, int]) -> Joint:
    x_m, z_m = port_place(port, size)
    x, y, z = np.rint(to_world(np.array((x_m, port.height_m, z_m)), block)).astype(int)
    return Joint((int(x), int(y), int(z)), (port.side + block.quarter_turns) % 4)


def lane_points(lane: Lane, size: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
    """Return a road's middle in the axes of a block, whose `size` is (width, depth) in cells.

    Ports on neighbouring sides are joined by a quarter circle, those on opposite sides by a straight or by two arcs of
    one radius. Heights are the cubic with the ports' heights and slopes; the bank follows the cubic as well. A road
    that banks while it moves sideways turns about a level line at the side, and the height is the quintic.

    Returns:
        (K, 3) points from begin to end, at most 0.5 m apart on the plan, and (K,) the road's rise per metre to the
        left.
    """
    begin_m = port_place(lane.begin, size)
    end_m = port_place(lane.end, size)
    inwards = -side_direction(lane.begin.side)
    outwards = side_direction(lane.end.side)
    plan_m = _plan(begin_m, inwards, end_m, outwards)
    along_m = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(plan_m, axis=0).T))))
    share = along_m / along_m[-1]
    slopes = [float(np.dot(lane.begin.gradient, inwards)), float(np.dot(lane.end.gradient, outwards))]
    banks = [float(np.dot(lane.begin.gradient, _left(inwards))), float(np.dot(lane.end.gradient, _left(outwards)))]
    heights_m = lane.begin.height_m, lane.end.height_m
    height_m = hermite(share, along_m[-1], heights_m, (slopes[0], slopes[1]))
    bank = hermite(share, 1.0, (banks[0], banks[1]), (0.0, 0.0))
    to_left_m = (plan_m - begin_m) @ _left(inwards)
    if banks[0] == 0.0 and banks[1] != 0.0 and np.dot(inwards, outwards) > 0.5 and to_left_m[-1] != 0.0:
        rise_m = (heights_m[1] - heights_m[0]) * share**3 * (10.0 - 15.0 * share + 6.0 * share**2)
        height_m = heights_m[0] + rise_m
        bank = rise_m / ((heights_m[1] - heights_m[0]) / banks[1] + to_left_m - to_left_m[-1])
    points_m = np.stack((plan_m[:, 0], height_m, plan_m[:, 1]), axis=1)
    return points_m, bank


def port_place(port: Port, size: tuple[int, int]) -> FloatArray:
    """Return a port's x and z (2,) in the block's axes, metres."""
    along_m = (port.place + 0.5) * CELL_M
    match port.side:
        case Side.FRONT:
            place = (along_m, size[1] * CELL_M)
        case Side.BACK:
            place = (along_m, 0.0)
        case Side.RIGHT:
            place = (0.0, along_m)
        case Side.LEFT:
            place = (size[0] * CELL_M, along_m)
    return np.array(place)


def side_direction(side: int) -> FloatArray:
    """Return the unit vector (x, z) out of a block through a side, in quarter turns to the right from forwards."""
    return np.array(((0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 0.0))[side % 4])


def _left(direction: FloatArray) -> FloatArray:
    """Return the left for a direction (x, z): left = up x forward."""
    return np.array((direction[1], -direction[0]))


def _plan(begin_m: FloatArray, inwards: FloatArray, end_m: FloatArray, outwards: FloatArray) -> FloatArray:
    way_m = end_m - begin_m
    ahead_m = float(np.dot(way_m, inwards))
    aside = way_m - np.dot(way_m, inwards) * inwards
    aside_m = float(np.linalg.norm(aside))
    if aside_m < 1e-9:
        return begin_m + np.linspace(0.0, 1.0, _steps(ahead_m) + 1)[:, None] * way_m
    aside = aside / aside_m
    if abs(np.dot(inwards, outwards)) < 0.5:
        assert abs(ahead_m - aside_m) < 1e-9, "a bend is a quarter of a circle"
        angle = np.linspace(0.0, np.pi / 2.0, _steps(ahead_m * np.pi / 2.0) + 1)[:, None]
        return np.asarray(begin_m + ahead_m * (np.sin(angle) * inwards + (1.0 - np.cos(angle)) * aside))
    radius_m = (ahead_m**2 + aside_m**2) / (4.0 * aside_m)
    angle = np.linspace(0.0, np.arcsin(ahead_m / (2.0 * radius_m)), _steps(ahead_m) + 1)[:, None]
    first_m = begin_m + radius_m * (np.sin(angle) * inwards + (1.0 - np.cos(angle)) * aside)
    second_m = begin_m + end_m - first_m[-2::-1]  # the same, turned by half a circle about the middle
    return np.concatenate((first_m, second_m))


def _steps(length_m: float) -> int:
    return int(np.ceil(length_m / 0.5))
