"""The world of a map's blocks: where real cars drove, what is not known, and lists of blocks that make no sense."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pygbx import STADIUM_BLOCK_OFFSETS

from trackmania_rl.gbx.challenge import Block, Challenge, Gate, read_challenge
from trackmania_rl.gbx.replay import read_replay
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.track.block_picture import scene_of
from trackmania_rl.track.block_world import BlockWorld, BlockWorldError, world_of
from trackmania_rl.track.ghost_gates import gate_times_ms
from trackmania_rl.track.ghost_motion import motion_of
from trackmania_rl.track.piece_catalogue import stadium_pieces

from .conftest import make_challenge


def test_what_is_known_is_built_where_it_stands_and_turned() -> None:
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


def test_gates_stand_across_their_road() -> None:
    world = world_of(
        make_challenge(
            Block("StadiumRoadMainStartLine", (5, 1, 5), 3, 0x1000),
            Block("StadiumRoadMainCheckpoint", (6, 1, 5), 3, 0x1000),
            Block("StadiumCheckpointRingV", (7, 1, 5), 3, 0x1000),
            Block("StadiumRoadMainFinishLine", (8, 1, 5), 1, 0x1000),
        )
    )
    assert [gate.kind for gate in world.gates] == [Gate.START, Gate.CHECKPOINT, Gate.CHECKPOINT, Gate.FINISH]
    start, checkpoint, ring, finish = world.gates
    assert start.spawn_m == pytest.approx((5 * 32 + 11.2, 8 + 2.21, 5 * 32 + 16.0))
    assert checkpoint.trigger_m is not None
    assert checkpoint.trigger_m[0] == pytest.approx((6 * 32 + 15.68, 8.0, 5 * 32 + 3.38))  # along +x
    assert ring.trigger_m is None
    assert finish.trigger_m is not None
    assert finish.trigger_m[1, 0] == pytest.approx(9 * 32 - 11.73)  # along -x


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
def test_what_makes_no_world_is_refused(challenge: Challenge, why: str) -> None:
    with pytest.raises(BlockWorldError, match=why):
        world_of(challenge)


@pytest.mark.parametrize(
    ("name", "least"),
    [("B13-Obstacle", 1.0), ("ESL-Hockolicious", 0.91), ("A01-Race", 0.45), ("TMN Race I-9 idea 1", 0.67)],
)
def test_shares_of_real_maps(name: str, least: float, shared_data: Path) -> None:
    world = world_of(read_challenge(shared_data / "tracks" / f"{name}.Challenge.Gbx"))
    assert world.known_share >= least
    assert all(gate.trigger_m is not None for gate in world.gates if gate.block.name != "StadiumCheckpointRingV")


@pytest.mark.parametrize(
    ("replay", "least"),
    [
        ("B13-Obstacle_24.94_a.Replay.Gbx", 0.95),
        ("mydli_20.14.Replay.gbx", 0.92),
    ],
)
def test_real_wheels_roll_on_the_surface(replay: str, least: float, shared_data: Path) -> None:
    """The lowest wheel of a car stands 1 cm in the road; the rest are flights, landings and starts."""
    read = read_replay(shared_data / "replays" / replay)
    assert read.challenge is not None
    assert read.ghosts[0].samples is not None
    motion, world = motion_of(read.ghosts[0].samples), world_of(read.challenge)
    bottoms_m = motion.wheel_bottoms_m(motion.rotation[:, :, 1])[::3]
    above_m = np.array([[_above_m(world, bottom_m) for bottom_m in of_sample] for of_sample in bottoms_m])
    lowest_m = above_m.min(axis=1)
    over_surface = np.isfinite(lowest_m) & (lowest_m < 0.15)
    assert over_surface.sum() > 0.7 * len(lowest_m)
    assert (np.abs(lowest_m[over_surface] + 0.01) <= 0.02).mean() >= least


@pytest.mark.parametrize(
    "replay", ["B13-Obstacle_24.94_a.Replay.Gbx", "B13-Obstacle_24.95_a.Replay.gbx", "mydli_20.14.Replay.gbx"]
)
def test_real_gates_are_triggered_within_one_tick_of_their_times(replay: str, shared_data: Path) -> None:
    read = read_replay(shared_data / "replays" / replay)
    assert read.challenge is not None
    assert read.ghosts[0].samples is not None
    gates = [gate for gate in world_of(read.challenge).gates if gate.kind is not Gate.START]
    measured_ms = read.ghosts[0].checkpoint_times_ms
    assert len(gates) == len(measured_ms)
    times_ms = gate_times_ms(motion_of(read.ghosts[0].samples), gates)
    np.testing.assert_allclose(sorted(times_ms), measured_ms, atol=10)


def _above_m(world: BlockWorld, point_m: np.ndarray) -> float:
    """Distance along the normal from the nearest triangle that a point is over, within 1 m."""
    near = ((world.corners_m.min(axis=1) - 1.0 < point_m) & (point_m < world.corners_m.max(axis=1) + 1.0)).all(axis=1)
    a, b, c = np.moveaxis(world.corners_m[near], 1, 0)
    normal = np.cross(b - a, c - a)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    above_m = np.einsum("ij,ij->i", point_m - a, normal)
    foot_m = point_m - above_m[:, None] * normal
    inside = np.ones(len(a), dtype=bool)
    for begin, end in ((a, b), (b, c), (c, a)):
        inside &= np.einsum("ij,ij->i", np.cross(end - begin, foot_m - begin), normal) >= -1e-9
    return min(above_m[inside], key=abs, default=np.inf)


NAMES = [*sorted({name for name, _ in stadium_pieces().by_name} | set(STADIUM_BLOCK_OFFSETS)), "Mystery", ""]
CELLS = (st.integers(0, 31), st.integers(0, 255), st.integers(-(2**31), 2**31))
BLOCKS = [
    st.builds(Block, st.sampled_from(NAMES), st.tuples(cell, cell, cell), st.integers(0, 3), st.integers(0, 2**32 - 1))
    for cell in CELLS
]
SIZES = st.one_of(st.just((32, 32, 32)), st.tuples(*[st.integers(-1, 300)] * 3))
PLACES = st.tuples(*[st.floats(-100.0, 1400.0)] * 3)


@given(st.one_of(*[st.lists(blocks, max_size=60) for blocks in BLOCKS]), SIZES, PLACES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_any_list_of_blocks_is_a_world_that_can_be_drawn_or_an_error(
    blocks: list[Block], size_cells: tuple[int, int, int], place_m: tuple[float, float, float]
) -> None:
    try:
        world = world_of(make_challenge(*blocks, size_cells=size_cells))
    except BlockWorldError:
        return
    assert np.isfinite(world.corners_m).all()
    assert world.corners_m.shape == (len(world.surface), 3, 3)
    frame = Renderer(scene_of(world)).render(np.array(place_m), np.eye(3), 0, 64, 48)
    assert (frame[..., 3] == 255).all()
