"""The world of a map's blocks: where real cars drove, unknown blocks, and lists of blocks that make no sense."""

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block, Gate
from trackmania_rl.simulator.physics.gates import touches_box
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.physics.vehicle_state import new_vehicle
from trackmania_rl.track.block_world import BlockWorldError, world_of

from .conftest import make_challenge


def test_known_blocks_are_built_at_their_place_and_turned():
    world = world_of(
        make_challenge(
            Block("StadiumPlatformLoopStart", (9, 3, 4), 1, 0),
            Block("Mystery", (1, 1, 1), 0, 0),
            Block("StadiumTubeV4", (9, 9, 4), 1, 0),
        )
    )
    low_m, high_m = world.corners_m.min(axis=(0, 1)), world.corners_m.max(axis=(0, 1))
    # It looks along -x: the road enters at the cell's low x, and the wall stands at its high x.
    assert low_m == pytest.approx((288.0, 25.345, 128.0))
    assert high_m == pytest.approx((320.0 - 1.345, 24.0 + 32.0, 160.0))
    assert [block.name for block in world.unknown] == ["Mystery"]
    assert [block.name for block in world.scenery] == ["StadiumTubeV4"]
    assert world.known_share == 0.5, "scenery does not count"
    assert world.unknown_names == [("Mystery", 1)]
    assert set(world.block) == {0}


def test_gates_stand_across_their_road():
    world = world_of(
        make_challenge(
            Block("StadiumRoadMainStartLine", (5, 1, 5), 3, 0x1000),
            Block("StadiumRoadMainCheckpoint", (6, 1, 5), 3, 0x1000),
            Block("StadiumCheckpointRingV", (7, 1, 5), 3, 0x1000),
            Block("StadiumTrenchCheckpoint", (7, 1, 6), 3, 0x1000),
            Block("StadiumRoadMainFinishLine", (8, 1, 5), 1, 0x1000),
        )
    )
    assert [gate.kind for gate in world.gates] == [Gate.START, *3 * [Gate.CHECKPOINT], Gate.FINISH]
    start, checkpoint, ring, unknown, finish = world.gates
    assert start.spawn_m == pytest.approx((5 * 32 + 11.2, 8 + 2.21, 5 * 32 + 16.0))
    assert checkpoint.trigger_m[0] == pytest.approx((6 * 32 + 15.68, 8.0, 5 * 32 + 3.38))  # along +x
    assert ring.trigger_m[0] == pytest.approx((7 * 32 + 15.68, 8.0, 5 * 32 + 1.0)), "in the air"
    assert unknown.trigger_m == pytest.approx(np.array(((224, 8, 192), (256, 24, 224)))), "all of its cells"
    assert finish.trigger_m[1, 0] == pytest.approx(9 * 32 - 11.73)  # along -x


def test_roads_are_dug_into_fields_and_hills():
    field, hill = Block("StadiumDirt", (5, 0, 5), 0, 0), Block("StadiumDirtHill", (5, 1, 6), 2, 5)
    road, beside = Block("StadiumRoadDirt", (5, 1, 5), 0, 3), Block("StadiumDirt", (6, 0, 5), 0, 0)
    slope = Block("StadiumRoadDirtHillSlope2", (5, 1, 6), 0, 0)
    world = world_of(make_challenge(field, road, beside, hill, slope))
    assert world.replaced == (field, hill)
    assert {world.blocks[number] for number in world.block} == {road, beside, slope}
    assert not world.has_grass[5, 5:8].any()
    assert world.has_grass[4, 5]


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (make_challenge(environment="Speed"), "only the blocks of Stadium"),
        (make_challenge(size_cells=(32, 0, 32)), "damaged"),
        (make_challenge(size_cells=(10**9, 32, 10**9)), "damaged"),
        (make_challenge(Block("StadiumRoadMain", (3, 1, 256), 0, 3)), "outside of every map's grid"),
        (make_challenge(Block("StadiumRoadMain", (-1, 1, 6), 0, 3)), "outside of every map's grid"),
        (make_challenge(*[Block("Mystery", (3, 1, 6), 0, 3)] * 50_001), "at most 50000"),
        (make_challenge(*[Block("StadiumLoopLeft", (3, 1, 6), 0, 3)] * 5000), "triangles"),
    ],
    ids=str,
)
def test_blocks_without_a_world_are_refused(challenge, why):
    with pytest.raises(BlockWorldError, match=why):
        world_of(challenge)


@pytest.mark.parametrize("number", range(3))
def test_real_gates_are_triggered_within_one_tick_of_their_times(number, replays):
    read = replays[number]
    gates = [gate for gate in world_of(read.challenge).gates if gate.kind is not Gate.START]
    measured_ms = read.ghosts[0].checkpoint_times_ms
    assert len(gates) == len(measured_ms)
    times_ms = [_first_touch_ms(read.ghosts[0].samples, gate.trigger_m) for gate in gates]
    np.testing.assert_allclose(sorted(times_ms), measured_ms, atol=10)


def _first_touch_ms(samples, trigger_m):
    """The tick in which a car on a ghost's path first touches a box; between samples it is taken to go straight on."""
    car, rotation = new_vehicle(), samples.axes
    velocity_m_s = np.diff(samples.position_m, axis=0) / (0.001 * samples.period_ms)
    for time_ms in range(10, int(samples.time_ms[-1]) + 101, 10):
        at = min(time_ms // samples.period_ms, len(velocity_m_s) - 1)
        car["position_m"] = samples.position_m[at] + 0.001 * (time_ms - samples.time_ms[at]) * velocity_m_s[at]
        car["rotation"] = rotation[at]
        if touches_box(trigger_m[None], 0, car[0], STADIUM_CAR[0]):
            return time_ms - 10
    return -1
