"""Lines from blocks alone: chains of road pieces, turned all ways; branches, gaps, laps; real maps."""

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.track import block_lines
from trackmania_rl.track.block_lines import BlockLineError, line_from_blocks
from trackmania_rl.track.pieces import size_cells

from .conftest import make_challenge

GRID = 32
# As on ESL-Hockolicious, whose first bends these are, with a checkpoint and a finish behind them.
CHAIN = (
    Block("StadiumRoadMainStartLine", (22, 1, 24), 1, 0x1000),
    Block("StadiumRoadMainTurbo", (21, 1, 24), 1, 0x1000),
    Block("StadiumRoadMain", (20, 1, 24), 2, 0x1002),
    Block("StadiumRoadMainCheckpoint", (20, 1, 23), 2, 0x1000),
    Block("StadiumRoadMainBiSlopeStart", (20, 1, 21), 2, 0x1000),
    Block("StadiumRoadMainSlopeStraight", (20, 2, 20), 2, 0),
    Block("StadiumRoadMainBiSlopeEnd", (20, 3, 18), 2, 0),
    Block("StadiumRoadMainGTCurve2", (19, 4, 16), 0, 0),
    Block("StadiumRoadMainFinishLine", (18, 4, 16), 1, 0),
)


def without(*indices):
    return [block for index, block in enumerate(CHAIN) if index not in indices]


def turned(block):
    """The block in a map that was turned to the right by a quarter: +z becomes -x."""
    size = size_cells(block.name)
    depth = size[1] if block.quarter_turns % 2 == 0 else size[0]
    x, y, z = block.cell
    return Block(block.name, (GRID - z - depth, y, x), (block.quarter_turns + 1) % 4, block.flags)


@pytest.mark.parametrize("quarter_turns", range(4))
def test_a_chain_gives_its_line_however_the_map_is_turned(quarter_turns):
    blocks, expected_m = list(CHAIN), line_from_blocks(make_challenge(*CHAIN)).points_m
    for _ in range(quarter_turns):
        blocks = [turned(block) for block in blocks]
        expected_m = np.stack((32.0 * GRID - expected_m[:, 2], expected_m[:, 1], expected_m[:, 0]), axis=1)
    same_road = Block("StadiumRoadMain", blocks[3].cell, blocks[3].quarter_turns, 0x1002)
    line = line_from_blocks(make_challenge(same_road, *reversed(blocks), same_road))
    assert line.points_m == pytest.approx(expected_m, abs=1e-6)
    assert [block.name for block in line.blocks] == [block.name for block in CHAIN]
    assert line.gap is None


def test_the_chains_line_lies_where_the_blocks_are():
    points_m = line_from_blocks(make_challenge(*CHAIN)).points_m
    assert points_m[0] == pytest.approx((23 * 32 - 11.2, 9.36, 24 * 32 + 16), abs=0.3)
    assert points_m[-1] == pytest.approx((18 * 32 + 15, 33.36, 16 * 32 + 16), abs=0.3)
    steps_m = np.linalg.norm(np.diff(points_m, axis=0), axis=1)
    assert steps_m == pytest.approx(0.5, abs=0.01)
    slope = np.diff(points_m[:, 1]) / steps_m
    assert slope.min() > -1e-6
    assert slope.max() == pytest.approx(np.sin(np.arctan(0.25)), abs=0.002)
    flat_m, arc_m = 20.8 + 32 + 32 + 17, (16 + 48) * np.pi / 2
    slope_m = 2 * 64 * 1.0104 + np.hypot(32, 8)  # a parabola over 64 m that climbs 8
    assert len(points_m) * 0.5 == pytest.approx(flat_m + arc_m + slope_m, abs=1.0)


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        (without(0), ["no start block"]),
        (without(5), ["StadiumRoadMainBiSlopeStart at cell (20, 1, 21)", "(20, 2, 20)", "1 of 1 checkpoints"]),
        (without(8), ["StadiumRoadMainGTCurve2 at cell (19, 4, 16)", "(18, 4, 16)", "jump"]),
        ([*CHAIN, Block("StadiumRoadMainCheckpoint", (3, 1, 5), 0, 0)], ["past the checkpoints at cells (3, 1, 5)"]),
        ([*without(5), Block("StadiumRoadMainTurbo", (20, 2, 20), 1, 0)], ["(20, 2, 20) is next, which has no road"]),
        ([Block("StadiumGrassStartLine", (3, 1, 5), 0, 0)], ["not in the catalogue", "(3, 1, 5)"]),
    ],
)
def test_where_no_way_leads_through_the_error_names_block_cell_and_remedy(blocks, told):
    with pytest.raises(BlockLineError) as raised:
        line_from_blocks(make_challenge(*blocks))
    for text in (*told, "replay"):
        assert text in str(raised.value)


def test_other_environments_and_endless_searches_are_refused(monkeypatch):
    with pytest.raises(BlockLineError, match="environment is Island"):
        line_from_blocks(make_challenge(*CHAIN, environment="Island"))
    monkeypatch.setattr(block_lines, "MOST_SEARCH_STEPS", 5)
    with pytest.raises(BlockLineError, match="branch so often"):
        line_from_blocks(make_challenge(*CHAIN))


def test_two_ways_to_the_finish_are_refused():
    # Straight on, or round three sides of a square from one T to the other.
    ring = (
        Block("StadiumRoadMainStartLine", (10, 1, 10), 0, 0),
        Block("StadiumRoadMain", (10, 1, 11), 0, 4),  # joins right (9), back (10, 10) and front (10, 12)
        Block("StadiumRoadMain", (10, 1, 12), 0, 3),
        Block("StadiumRoadMain", (10, 1, 13), 0, 4),
        Block("StadiumRoadMainFinishLine", (10, 1, 14), 0, 0),
        Block("StadiumRoadMain", (9, 1, 11), 3, 2),  # joins +z and +x
        Block("StadiumRoadMain", (9, 1, 12), 0, 3),
        Block("StadiumRoadMain", (9, 1, 13), 2, 2),  # joins +x and -z
    )
    with pytest.raises(BlockLineError, match="more than one way"):
        line_from_blocks(make_challenge(*ring))
    part = line_from_blocks(make_challenge(*ring), as_far_as_possible=True)
    assert [block.cell for block in part.blocks] == [(10, 1, 10)]


def test_the_part_of_a_real_map_lies_along_the_real_line(hock):
    challenge, real_m = hock
    points_m = line_from_blocks(challenge, as_far_as_possible=True).points_m
    apart_m = np.linalg.norm(points_m[:, None] - real_m[None, :400], axis=2).min(axis=1)
    assert apart_m.mean() < 3.0
    assert apart_m.max() < 9.0
