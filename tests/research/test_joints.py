"""Blocks join without steps: every edge of every piece that another piece continues, on a map made of all of them."""

from __future__ import annotations

from collections import defaultdict

from research.joints import CLOSE_M, STEPS, borders_of, heights_at, joints_of, place_of, report
from tests.track.conftest import make_challenge
from trackmania_rl.gbx.challenge import Block
from trackmania_rl.track.block_world import world_of
from trackmania_rl.track.pieces import stadium_pieces


def driven():
    for (name, shape), piece in sorted(stadium_pieces().by_name.items(), key=str):
        if not (piece.is_scenery or piece.is_ground or piece.is_water):
            yield Block(name, (0, 0, 0), 0, shape or 0)


def beside(one, border, other, other_border, layer):
    """The other block, turned and placed so that its border is at the first one's."""
    x, z, side = place_of(one, border)
    turns = (side + 2 - other_border[0]) % 4
    turned = Block(other.name, (0, layer, 0), turns, other.flags)
    at_x, at_z, _ = place_of(turned, other_border)
    step_x, step_z = STEPS[side]
    return Block(other.name, (x + step_x - at_x, layer, z + step_z - at_z), turns, other.flags)


def test_every_piece_is_continued_by_another_without_a_step():
    ends, alike = {}, defaultdict(list)  # lowest height of each edge; edges by that height within their cell
    for block in driven():
        for border in borders_of(block.name):
            heights_m = [height_m for at_place in heights_at(block.name, block.flags)[border] for height_m in at_place]
            if heights_m:
                ends[block, border] = min(heights_m)
                alike[round(min(heights_m) % 8.0, 1)].append((block, border))
    blocks = {}
    for (block, border), height_m in ends.items():
        for other, other_border in alike[round(height_m % 8.0, 1)]:
            if block in blocks or other == block:
                continue
            layer = 40 + round((height_m - ends[other, other_border]) / 8.0)
            one = Block(
                block.name, (20 * (len(blocks) % 12) + 10, 40, 20 * (len(blocks) // 12 % 12) + 10), 0, block.flags
            )
            pair = one, beside(one, border, other, other_border, layer)
            apart_m = [joint.apart_m for joint in joints_of(world_of(make_challenge(*pair, size_cells=(256,) * 3)))]
            if apart_m and max(apart_m) <= CLOSE_M:
                blocks[block] = pair
    assert {block.name for block, _ in ends} - {block.name for block in blocks} == set()
    for first in range(0, len(blocks), 144):
        some = [block for pair in list(blocks.values())[first : first + 144] for block in pair]
        joints = list(joints_of(world_of(make_challenge(*some, size_cells=(256,) * 3))))
        assert len(joints) >= len(some) // 2
        assert max(joint.apart_m for joint in joints) <= CLOSE_M


def test_a_step_is_reported():
    road, circuit = Block("StadiumRoadMain", (5, 1, 5), 0, 3), Block("StadiumCircuitBase", (5, 0, 6), 0, 0)
    lines = report([make_challenge(road, circuit, Block("StadiumRoadMain", (5, 1, 4), 0, 3))]).splitlines()
    assert lines[0] == "1 maps, 2 joints: 50.0 % within 0.05 m"
    assert "1.34 m  StadiumCircuitBase back - StadiumRoadMain front" in lines[1]
