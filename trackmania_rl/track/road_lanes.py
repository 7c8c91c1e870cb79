"""Roads through blocks: where they cross a block's borders, and the middle of the road between.

A block's own axes: z forwards, x to the left, y up, metres from the corner of its lowest cell; cells are 32 x 8 x 32 m.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

CELL_M: Final = 32.0
CELL_HEIGHT_M: Final = 8.0
ROAD_HEIGHT_M: Final = 1.0
"""Of a level road above its cell's floor; a car's origin is 0.36 m above the road."""

FloatArray = npt.NDArray[np.float64]
Gradient = tuple[float, float]


class Side(IntEnum):
    """A side of a block, by the quarter turns to the right from looking forwards."""

    FRONT = 0
    RIGHT = 1
    BACK = 2
    LEFT = 3


@dataclass(frozen=True, slots=True)
class Port:
    """Where a road crosses the border of a block, always in the middle of a cell's edge.

    Attributes:
        side: of the block.
        place: number of the cell along that side, from the corner at x = z = 0.
        height_m: of the road's middle above the floor of the block's lowest cell.
        gradient: (x, z) rise per metre of the road's surface there.
    """

    side: Side
    place: int = 0
    height_m: float = ROAD_HEIGHT_M
    gradient: Gradient = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Lane:
    """A road through a block, from one port to another; it may be driven either way."""

    begin: Port
    end: Port


def lane_points(lane: Lane, size: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
    """The middle of a road in its block's own axes.

    Ports on neighbouring sides are joined by a quarter circle, those on opposite sides by a straight or by two arcs of
    one radius. Heights are the cubic with the ports' heights and slopes; the bank goes over linearly.

    Args:
        lane: the road.
        size: (width, depth) of its block in cells.

    Returns:
        (K, 3) points from begin to end, at most 0.5 m apart on the plan, and (K,) rise of the road per metre to the
        left of who drives from begin to end.
    """
    begin_m, end_m = port_place(lane.begin, size), port_place(lane.end, size)
    inwards, outwards = -side_direction(lane.begin.side), side_direction(lane.end.side)
    plan_m = _plan(begin_m, inwards, end_m, outwards)
    along_m = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(plan_m, axis=0).T))))
    slopes = [float(np.dot(lane.begin.gradient, inwards)), float(np.dot(lane.end.gradient, outwards))]
    banks = [float(np.dot(lane.begin.gradient, _left(inwards))), float(np.dot(lane.end.gradient, _left(outwards)))]
    height_m = _cubic(along_m, (lane.begin.height_m, lane.end.height_m), (slopes[0], slopes[1]))
    points_m = np.stack((plan_m[:, 0], height_m, plan_m[:, 1]), axis=1)
    return points_m, np.interp(along_m, along_m[[0, -1]], banks)


def port_place(port: Port, size: tuple[int, int]) -> FloatArray:
    """(2,) x and z of a port in its block's own axes, metres."""
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
    """(2,) unit vector (x, z) out of a block through a side; any number of quarter turns to the right of forwards."""
    return np.array(((0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 0.0))[side % 4])


def _left(direction: FloatArray) -> FloatArray:
    """(2,) what is to the left of a direction (x, z): left = up x forward."""
    return np.array((direction[1], -direction[0]))


def _plan(begin_m: FloatArray, inwards: FloatArray, end_m: FloatArray, outwards: FloatArray) -> FloatArray:
    """(K, 2) the way from one port to another, seen from above."""
    way_m = end_m - begin_m
    ahead_m, aside = float(np.dot(way_m, inwards)), way_m - np.dot(way_m, inwards) * inwards
    aside_m = float(np.linalg.norm(aside))
    if aside_m < 1e-9:
        return begin_m + np.linspace(0.0, 1.0, _steps(ahead_m) + 1)[:, None] * way_m
    aside = aside / aside_m
    if abs(np.dot(inwards, outwards)) < 0.5:  # neighbouring sides
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


def _cubic(along_m: FloatArray, heights_m: tuple[float, float], slopes: tuple[float, float]) -> FloatArray:
    """(K,) the cubic Hermite polynomial over a length."""
    length_m = along_m[-1]
    u = along_m / length_m
    return np.asarray(
        (1 + 2 * u) * (1 - u) ** 2 * heights_m[0]
        + u * (1 - u) ** 2 * length_m * slopes[0]
        + u**2 * (3 - 2 * u) * heights_m[1]
        + u**2 * (u - 1) * length_m * slopes[1]
    )
