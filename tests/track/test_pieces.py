"""The catalogue of Stadium pieces: buildable, as high as measured, and where real cars drove."""

from collections import defaultdict

import numpy as np
import pytest
from pygbx import STADIUM_BLOCK_OFFSETS

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.piece_mesh import mesh_of
from trackmania_rl.track.pieces import size_cells, stadium_pieces
from trackmania_rl.track.placed_blocks import BlockGrid, roads_of

CAR_HEIGHT_M = 0.36

ALL = sorted(stadium_pieces().by_name, key=lambda key: (key[0], key[1] or 0))
UNLISTED = {
    "StadiumGrassClip", "StadiumWater", "StadiumPool", "StadiumWaterClip", "StadiumDirtBorder", "StadiumDirtClip",
    "StadiumRoadDirtToRoadGrass", "StadiumCircuitBorderSlopeEndLeft", "StadiumCircuitBorderSlopeCornerOutLeftBottom",
    "StadiumCircuitBorderSlopeCornerOutLeftTop",
}  # fmt: skip
BORDER_M = 0.6  # corners of borders stand out from their block by so much
"""Blocks of real maps that the list of footprints lacks; they fill one cell."""


def built(name, shape=3):
    block = Block(name, (5, 1, 7), 0, shape)
    piece = stadium_pieces().find(block)
    return mesh_of(piece, block)


def height_at(mesh, x_m, z_m):
    """Of the highest triangle that lies over a place and faces up."""
    best = -np.inf
    for a, b, c in mesh.corners_m:
        sides = np.stack((b - a, c - a), axis=1)[[0, 2]]
        if abs(np.linalg.det(sides)) < 1e-9:
            continue
        u, v = np.linalg.solve(sides, np.array((x_m, z_m)) - a[[0, 2]])
        if min(u, v, 1.0 - u - v) >= -1e-9 and np.cross(b - a, c - a)[1] > 0.0:
            best = max(best, float(a[1] + u * (b - a)[1] + v * (c - a)[1]))
    return best


def test_every_piece_is_a_block_of_the_game_and_can_be_built():
    for name, shape in ALL:
        assert name in STADIUM_BLOCK_OFFSETS or name in UNLISTED
        mesh = built(name, 3 if shape is None else shape)
        piece = stadium_pieces().by_name[name, shape]
        assert piece.is_water or piece.is_scenery or piece.trigger_m is not None or len(mesh.surface) > 0, name
        assert mesh.corners_m.shape == (len(mesh.surface), 3, 3)
        assert np.isfinite(mesh.corners_m).all(), name
        assert len(mesh.surface) < 5000
        assert set(mesh.surface) <= set(map(int, Surface)), name
        for axis, cells in zip((0, 2), size_cells(name), strict=True):
            assert mesh.corners_m[..., axis].min(initial=0.0) >= -BORDER_M, name
            assert mesh.corners_m[..., axis].max(initial=0.0) <= 32.0 * cells + BORDER_M, name


def test_heights_are_as_measured():
    road = built("StadiumRoadMain")
    assert height_at(road, 16.0, 10.0) == pytest.approx(1.3446)
    assert height_at(road, 16.0 + 10.3, 25.0) == pytest.approx(1.3446)
    assert height_at(road, 16.0 - 10.8, 25.0) == pytest.approx(1.38, abs=0.01)
    assert height_at(road, 16.0 + 12.5, 3.0) == pytest.approx(1.3446)
    assert height_at(road, 16.0 + 13.0, 3.0) == pytest.approx(2.3446)
    assert set(built("StadiumRoadMainTurbo").surface) == {int(Surface.TURBO)}
    dead_end, start = built("StadiumRoadMain", 1), built("StadiumRoadMainStartLine")
    assert height_at(dead_end, 16.0, 1.0) == pytest.approx(1.0), "up from the grass at its back"
    assert height_at(start, 16.0, 11.2) == pytest.approx(2.0)
    assert height_at(start, 16.0, 31.9) == pytest.approx(1.3446), "down to the road's height"
    assert height_at(built("StadiumCircuitBase"), 3.0, 30.0) == pytest.approx(8.0)
    assert height_at(built("StadiumCircuitSlopeStart"), 16.0, 23.8) == pytest.approx(12.2, abs=0.06)
    assert height_at(built("StadiumRoadMainSlopeUBottom"), 16.0, 24.2) == pytest.approx(7.88, abs=0.03)
    assert height_at(built("StadiumRoadDirtToRoad"), 16.0, 24.4) == pytest.approx(-0.15, abs=0.03)
    assert height_at(built("StadiumRoadDirtHillSlope2"), 16.0, 41.7) == pytest.approx(12.27, abs=0.03)
    corner = built("StadiumCircuitBorderGTCurve2In")
    assert height_at(corner, 42.2, 42.2) == pytest.approx(8.0), "a car drove 59.6 m from the corner"
    assert height_at(corner, 40.0, 40.0) == -np.inf, "behind the border"


def test_real_cars_drove_where_the_catalogue_has_its_roads(hock, replays):
    """Heights to decimetres, which no wrongly turned, banked or inclined piece reaches; places within the borders."""
    found = defaultdict(list)  # (beside the middle, above the road)
    for challenge, positions_m in (hock, *((replay.challenge, replay.best.samples.position_m) for replay in replays)):
        grid = BlockGrid(challenge.blocks)
        for here_m in positions_m:
            block = grid.under(here_m)
            places = [] if block is None else [_place(here_m, road) for road in roads_of(block)[::2]]
            if block is not None and places:
                beside_m, above_m = min(places, key=lambda place: abs(place[0]))
                found[block.name].append((beside_m, above_m - CAR_HEIGHT_M))
    measured = {name for (name, _), piece in stadium_pieces().by_name.items() if piece.knowledge == "measured"}
    seen = {name for name in measured & set(found) if len(found[name]) >= 5}
    assert len(seen) > 30
    for name in seen:
        beside_m, above_m = np.array(found[name]).T
        is_driving = np.abs(above_m) < 1.0  # not flying
        if is_driving.sum() < 5:
            continue
        assert np.abs(above_m[is_driving]).mean() < (0.5 if name.endswith("Line") else 0.3), name  # cars drop at starts
        assert np.quantile(np.abs(beside_m[is_driving]), 0.9) < 13.0, name


def _place(here_m, road):
    """How far a point is beside a road's middle, to the left, and above its surface."""
    apart_m = np.linalg.norm((road.points_m - here_m)[:, [0, 2]], axis=1)
    at = int(apart_m.argmin())
    ahead = road.points_m[min(at + 1, len(apart_m) - 1)] - road.points_m[max(at - 1, 0)]
    left = np.array((ahead[2], -ahead[0])) / np.hypot(ahead[0], ahead[2])
    beside_m = float((here_m - road.points_m[at])[[0, 2]] @ left)
    return beside_m, float(here_m[1] - road.points_m[at, 1] - beside_m * road.bank[at])
