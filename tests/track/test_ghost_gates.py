"""When replays' cars pass the gates of their map, by the triggers of its blocks, beside what the game measured."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block, Gate
from trackmania_rl.gbx.replay import GhostSamples, read_replay
from trackmania_rl.track.block_world import GateBox, world_of
from trackmania_rl.track.ghost_gates import NOT_PASSED, gate_times_ms, poses_at
from trackmania_rl.track.ghost_motion import GhostMotion, motion_of

TICK_MS = 10


def straight_motion(speed_m_s: float = 20.0, n_samples: int = 12) -> GhostMotion:
    """Along +z, a sample every 0.1 s."""
    time_ms = 100 * np.arange(n_samples)
    position_m = np.stack((np.full(n_samples, 5.0), np.full(n_samples, 9.35), speed_m_s * time_ms / 1000.0), axis=1)
    rotation = np.tile(np.eye(3), (n_samples, 1, 1))
    quaternion = np.tile((1.0, 0.0, 0.0, 0.0), (n_samples, 1))
    velocity = np.tile((0.0, 0.0, speed_m_s), (n_samples, 1))
    zero = np.zeros((n_samples, 3))
    run = np.zeros(n_samples, dtype=np.int64)
    return GhostMotion(time_ms, position_m, quaternion, rotation, velocity[:, 2], velocity, zero, run)


def gate_at(z_m: float) -> GateBox:
    block = Block("StadiumRoadMainCheckpoint", (0, 1, 0), 0, 0)
    return GateBox(block, Gate.CHECKPOINT, np.array(((0.0, 8.0, z_m), (25.0, 19.0, z_m + 0.8))), None)


def test_the_time_is_that_at_the_beginning_of_the_tick_in_which_the_nose_arrives() -> None:
    nose_m = 1.7821 + 0.364
    gates = [gate_at(10.0 + nose_m - 0.01), gate_at(10.0 + nose_m + 0.01), gate_at(1000.0)]
    # At 20 m/s the origin is at 10 m at 0.5 s: the tick from 0.49 s on ends there.
    assert gate_times_ms(straight_motion(), gates).tolist() == [490, 500, NOT_PASSED]
    unknown = GateBox(gates[0].block, Gate.CHECKPOINT, None, None)
    assert gate_times_ms(straight_motion(), [unknown]).tolist() == [NOT_PASSED]
    assert gate_times_ms(straight_motion(), []).tolist() == []


def test_between_samples_a_car_moves_evenly_and_behind_the_last_it_goes_straight_on() -> None:
    motion = straight_motion()
    position_m, rotation = poses_at(motion, np.array([0, 130, 1100, 1150]))
    np.testing.assert_allclose(position_m[:, 2], [0.0, 2.6, 22.0, 23.0], atol=1e-9)
    np.testing.assert_allclose(rotation, np.tile(np.eye(3), (4, 1, 1)), atol=1e-12)


def test_samples_are_where_the_path_leads_and_turns_are_rotations(shared_data: Path) -> None:
    motion = motion_of(real_samples(shared_data, "B13-Obstacle_24.94_a.Replay.Gbx")[0])
    position_m, rotation = poses_at(motion, motion.time_ms)
    np.testing.assert_allclose(position_m, motion.position_m, atol=1e-9)
    np.testing.assert_allclose(rotation, motion.rotation, atol=1e-5)
    _, between = poses_at(motion, motion.time_ms[:-1] + 37)
    np.testing.assert_allclose(
        between @ np.swapaxes(between, 1, 2), np.tile(np.eye(3), (len(between), 1, 1)), atol=1e-5
    )


def real_samples(shared_data: Path, replay: str) -> tuple[GhostSamples, tuple[int, ...], list[GateBox]]:
    """A replay's samples, the times that the game measured, and the gates of its map but the start."""
    read = read_replay(shared_data / "replays" / replay)
    assert read.challenge is not None
    assert read.ghosts[0].samples is not None
    gates = [gate for gate in world_of(read.challenge).gates if gate.kind is not Gate.START]
    return read.ghosts[0].samples, tuple(read.ghosts[0].checkpoint_times_ms), gates


@pytest.mark.parametrize(
    "replay", ["B13-Obstacle_24.94_a.Replay.Gbx", "B13-Obstacle_24.95_a.Replay.gbx", "mydli_20.14.Replay.gbx"]
)
def test_real_gates_are_triggered_within_one_tick_of_their_times(replay: str, shared_data: Path) -> None:
    samples, measured_ms, gates = real_samples(shared_data, replay)
    assert len(gates) == len(measured_ms)
    np.testing.assert_allclose(sorted(gate_times_ms(motion_of(samples), gates)), measured_ms, atol=TICK_MS)
