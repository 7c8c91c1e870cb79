"""The catalogue of Stadium pieces: consistent in itself, and its surfaces where lanes and measurements say."""

import numpy as np
import pytest
from pygbx import STADIUM_BLOCK_OFFSETS

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.piece_catalogue import LaneSweep, catalogue_of, stadium_pieces
from trackmania_rl.track.piece_mesh import PieceMesh, mesh_of
from trackmania_rl.track.road_lanes import port_place, side_direction
from trackmania_rl.track.stadium_blocks import lanes_of, size_cells

ALL = sorted(stadium_pieces().by_name, key=lambda key: (key[0], key[1] or 0))
UNLISTED = {"StadiumGrassClip", "StadiumWater", "StadiumPool", "StadiumWaterClip", "StadiumDirtBorder"}
"""Blocks of real maps that the list of footprints lacks; they fill one cell."""


def built(name: str, shape: int = 3) -> PieceMesh:
    block = Block(name, (5, 1, 7), 0, shape)
    piece = stadium_pieces().find(block)
    assert piece is not None
    return mesh_of(piece, block)


def height_at(mesh: PieceMesh, x_m: float, z_m: float) -> float:
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


@pytest.mark.parametrize(("name", "shape"), ALL)
def test_every_piece_is_a_block_of_the_game_and_can_be_built(name: str, shape: int | None) -> None:
    assert name in STADIUM_BLOCK_OFFSETS or name in UNLISTED
    mesh = built(name, 3 if shape is None else shape)
    piece = stadium_pieces().by_name[name, shape]
    assert piece.is_water or piece.is_scenery or piece.trigger_m is not None or len(mesh.surface) > 0
    assert mesh.corners_m.shape == (len(mesh.surface), 3, 3)
    assert np.isfinite(mesh.corners_m).all()
    assert len(mesh.surface) < 5000
    assert set(mesh.surface) <= set(map(int, Surface))
    width_m, depth_m = (32.0 * cells for cells in size_cells(name))
    if len(mesh.surface):
        assert mesh.corners_m[..., 0].min() >= -0.1
        assert mesh.corners_m[..., 0].max() <= width_m + 0.1
        assert mesh.corners_m[..., 2].min() >= -0.1
        assert mesh.corners_m[..., 2].max() <= depth_m + 0.1


LANED = [
    (name, shape)
    for name, shape in ALL
    if any(isinstance(s, LaneSweep) for s in stadium_pieces().by_name[name, shape].sweeps)
]


@pytest.mark.parametrize(("name", "shape"), LANED)
def test_roads_begin_and_end_in_the_middle_of_an_edge_at_their_lanes_height(name: str, shape: int | None) -> None:
    block = Block(name, (5, 1, 7), 0, 3 if shape is None else shape)
    mesh = built(name, block.flags)
    lanes = lanes_of(block)
    assert lanes
    corners_m = mesh.corners_m.reshape(-1, 3)
    for lane in lanes:
        for port in (lane.begin, lane.end):
            x_m, z_m = port_place(port, size_cells(name))
            middle_m = np.array((x_m, port.height_m + 0.3446, z_m))
            apart_m = corners_m - middle_m
            on_edge = np.abs(apart_m[:, [0, 2]] @ side_direction(port.side)) < 1e-6
            flat = np.unique(corners_m[on_edge & (np.linalg.norm(apart_m, axis=1) < 10.8)].round(6), axis=0)
            assert len(flat) >= 2  # where the level middle of the road ends
            assert flat.mean(axis=0) == pytest.approx(middle_m, abs=0.05)


def test_heights_are_as_measured() -> None:
    road = built("StadiumRoadMain")
    assert height_at(road, 16.0, 10.0) == pytest.approx(1.3446)
    assert height_at(road, 16.0 + 10.3, 25.0) == pytest.approx(1.3446)
    assert height_at(road, 16.0 - 10.8, 25.0) == pytest.approx(1.387, abs=0.005)
    assert height_at(road, 16.0 + 12.5, 3.0) == pytest.approx(1.3446)
    assert height_at(road, 16.0 + 13.0, 3.0) == pytest.approx(2.3446)
    assert set(built("StadiumRoadMainTurbo").surface) == {int(Surface.TURBO)}
    dead_end, start = built("StadiumRoadMain", 1), built("StadiumRoadMainStartLine")
    assert height_at(dead_end, 16.0, 1.0) == pytest.approx(1.0), "up from the grass at its back"
    assert height_at(start, 16.0, 11.2) == pytest.approx(2.0)
    assert height_at(start, 16.0, 31.9) == pytest.approx(1.3446), "down to the road's height"


@pytest.mark.parametrize(
    ("name", "first_x_m", "last_x_m"), [("StadiumLoopLeft", 16.0, 80.0), ("StadiumLoopRight", 80.0, 16.0)]
)
def test_a_loop_is_an_arc_that_is_tangent_to_the_road_and_moves_sideways(
    name: str, first_x_m: float, last_x_m: float
) -> None:
    loop = built(name)
    points_m = loop.corners_m.reshape(-1, 3)
    radius_m = np.hypot(points_m[:, 2], points_m[:, 1] - 44.0)
    assert radius_m.max() == pytest.approx(42.655 + 0.4)
    assert height_at(loop, first_x_m, 0.01) == pytest.approx(1.345, abs=0.002)
    at_top = points_m[points_m[:, 2] < 1e-6]
    assert at_top[at_top[:, 1] > 44.0][:, 0].mean() == pytest.approx(last_x_m, abs=0.5)
    a, b, c = np.moveaxis(loop.corners_m, 1, 0)
    on_road = np.abs(radius_m.reshape(-1, 3).mean(axis=1) - 42.655) < 1e-3
    inwards = np.array((0.0, 44.0, 0.0)) - a
    assert (np.einsum("ij,ij->i", np.cross(b - a, c - a), inwards)[on_road] > 0.0).all()


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ('[[pieces]]\nnames = ["A"]\nsweeps = [{ way = "lanes", cross_section = "lost" }]', "no file has"),
        ('[[pieces]]\nnames = ["A"]\n[[pieces]]\nnames = ["A"]', "twice"),
        (
            '[cross_sections.one]\nsurface = "asphalt"\nmirrored_m = [[1.0, 0.0], [2.0, 0.0]]\n'
            '[[pieces]]\nnames = ["A"]',
            "begins in the middle",
        ),
    ],
)
def test_a_wrong_catalogue_is_refused(pieces: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        catalogue_of({"made": f'source = "made up for a test, all of it"\n{pieces}'})
