"""The catalogue of road pieces: consistent in itself, turned rightly, and in agreement with where real cars drove."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block, Challenge, read_challenge
from trackmania_rl.gbx.replay import read_replay
from trackmania_rl.track.placed_blocks import BlockGrid, roads_of, to_block, to_world
from trackmania_rl.track.road_lanes import CELL_HEIGHT_M, CELL_M, Side, lane_points, port_place, side_direction
from trackmania_rl.track.stadium_blocks import LANES, SEEN_DRIVEN, footprint, lanes_of, size_cells

CAR_HEIGHT_M = 0.36
ROAD_SHAPES = {shape: Block("StadiumRoadMain", (7, 1, 9), 0, shape) for shape in (2, 3, 4, 5)}
ALL_LANES = [(name, lane) for name, lanes in LANES.items() for lane in lanes] + [
    ("StadiumRoadMain", lane) for block in ROAD_SHAPES.values() for lane in lanes_of(block)
]


@pytest.mark.parametrize(("name", "lane"), ALL_LANES)
def test_a_lane_enters_and_leaves_in_the_middle_of_an_edge_at_its_height(name: str, lane) -> None:
    size = size_cells(name)
    points_m, bank = lane_points(lane, size)
    cells = footprint(name)
    for port, point_m, next_m in ((lane.begin, points_m[0], points_m[1]), (lane.end, points_m[-1], points_m[-2])):
        x_m, z_m = point_m[[0, 2]]
        along_m, across_m = (x_m, z_m) if port.side in (Side.FRONT, Side.BACK) else (z_m, x_m)
        assert along_m % CELL_M == pytest.approx(CELL_M / 2.0)
        depth = size[1] if port.side in (Side.FRONT, Side.BACK) else size[0]
        assert across_m == pytest.approx(depth * CELL_M if port.side in (Side.FRONT, Side.LEFT) else 0.0, abs=1e-9)
        assert point_m[1] == pytest.approx(port.height_m)
        # Straight across the edge, with the slope that the surface has there.
        outwards = side_direction(port.side)
        step_m = np.hypot(*(point_m - next_m)[[0, 2]])
        assert (point_m - next_m)[[0, 2]] / step_m == pytest.approx(outwards, abs=0.02)
        assert (point_m - next_m)[1] / step_m == pytest.approx(np.dot(port.gradient, outwards), abs=0.01)
        # The cell behind the edge belongs to the block, and the road passes through it or lies on its top.
        inside_m = port_place(port, size) - 1.0 * outwards
        column = [y for x, y, z in cells if (x, z) == tuple(np.floor(inside_m / CELL_M).astype(int))]
        assert column
        assert min(column) * CELL_HEIGHT_M <= port.height_m <= (max(column) + 1) * CELL_HEIGHT_M + 1.0
    assert len(bank) == len(points_m)
    assert np.hypot(*np.diff(points_m[:, [0, 2]], axis=0).T).max() <= 0.51


@pytest.mark.parametrize("quarter_turns", range(4))
@pytest.mark.parametrize("name", ["StadiumRoadMain", "StadiumRoadMainGTCurve3", "StadiumRoadMainGTDiag4x3"])
def test_turned_blocks_fill_the_same_cells_as_a_block_turned_quarter_by_quarter(name: str, quarter_turns: int) -> None:
    block = Block(name, (5, 2, 11), quarter_turns, 3)
    cells = [(x + 0.5, z + 0.5) for x, _, z in footprint(name)]
    for _ in range(quarter_turns):  # to the right: +z becomes -x, +x becomes +z
        cells = [(-z, x) for x, z in cells]
    corner = np.floor(np.min(cells, axis=0))
    expected = {(int(np.floor(x - corner[0])) + 5, int(np.floor(z - corner[1])) + 11) for x, z in cells}
    middles_m = np.array([(x + 0.5, 0.0, z + 0.5) for x, _, z in footprint(name)]) * (CELL_M, 8.0, CELL_M)
    world_m = to_world(middles_m, block)
    assert {(int(x), int(z)) for x, z in world_m[:, [0, 2]] // CELL_M} == expected
    assert to_block(world_m, block) == pytest.approx(middles_m)
    grid = BlockGrid([block])
    assert all(grid.under(np.array((x * CELL_M + 9.0, 17.4, z * CELL_M + 23.0))) == block for x, z in expected)


def test_a_block_is_under_the_car_that_drives_on_it_not_under_the_one_below() -> None:
    low, high = Block("StadiumRoadMain", (7, 1, 9), 0, 3), Block("StadiumRoadMain", (7, 3, 9), 0, 3)
    fence = Block("StadiumTubeRoad", (7, 1, 9), 0, 0)
    grid = BlockGrid([fence, high, low])
    place = (7 * CELL_M + 5.0, 9 * CELL_M + 11.0)
    assert grid.under(np.array((place[0], 9.4, place[1]))) == low
    assert grid.under(np.array((place[0], 25.4, place[1]))) == high
    assert grid.under(np.array((place[0], 70.0, place[1]))) is None
    assert grid.under(np.array((place[0] + CELL_M, 9.4, place[1]))) is None


def _driven(shared_data: Path) -> list[tuple[Challenge, np.ndarray]]:
    line_m = np.load(shared_data / "reference_lines" / "ESL-Hockolicious_0.5m_cl2.npy", allow_pickle=False)
    driven = [(read_challenge(shared_data / "tracks" / "ESL-Hockolicious.Challenge.Gbx"), line_m.astype(np.float64))]
    for file in ("B13-Obstacle_24.94_a.Replay.Gbx", "B13-Obstacle_24.95_a.Replay.gbx", "mydli_20.14.Replay.gbx"):
        replay = read_replay(shared_data / "replays" / file)
        assert replay.challenge is not None
        assert replay.best.samples is not None
        driven.append((replay.challenge, replay.best.samples.position_m))
    return driven


def test_real_cars_drove_where_the_catalogue_has_its_roads(shared_data: Path) -> None:
    """Heights to decimetres, which no wrongly turned, banked or inclined piece reaches; places within the borders."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)  # (beside the middle, above the road)
    for challenge, positions_m in _driven(shared_data):
        grid = BlockGrid(challenge.blocks)
        for here_m in positions_m:
            block = grid.under(here_m)
            places = [] if block is None else [_place(here_m, road) for road in roads_of(block)[::2]]
            if block is not None and places:
                beside_m, above_m = min(places, key=lambda place: abs(place[0]))
                found[block.name].append((beside_m, above_m - CAR_HEIGHT_M))
    assert set(found) >= SEEN_DRIVEN
    for name in SEEN_DRIVEN:
        beside_m, above_m = np.array(found[name]).T
        is_driving = np.abs(above_m) < 1.0  # not flying
        assert is_driving.sum() >= 5, name
        assert np.abs(above_m[is_driving]).mean() < (0.5 if name.endswith("Line") else 0.3), name  # cars drop at starts
        assert np.quantile(np.abs(beside_m[is_driving]), 0.9) < 13.0, name


def _place(here_m: np.ndarray, road) -> tuple[float, float]:
    """How far a point is beside a road's middle, to the left, and above its surface."""
    apart_m = np.linalg.norm((road.points_m - here_m)[:, [0, 2]], axis=1)
    at = int(apart_m.argmin())
    ahead = road.points_m[min(at + 1, len(apart_m) - 1)] - road.points_m[max(at - 1, 0)]
    left = np.array((ahead[2], -ahead[0])) / np.hypot(ahead[0], ahead[2])
    beside_m = float((here_m - road.points_m[at])[[0, 2]] @ left)
    return beside_m, float(here_m[1] - road.points_m[at, 1] - beside_m * road.bank[at])
