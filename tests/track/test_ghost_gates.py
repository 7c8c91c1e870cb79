"""When replays' cars pass the gates of their map, by the triggers of its blocks, beside what the game measured."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block, Gate
from trackmania_rl.gbx.replay import read_replay
from trackmania_rl.track.block_world import GateBox, world_of
from trackmania_rl.track.ghost_gates import NOT_PASSED, gate_times_ms
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
    np.testing.assert_allclose(sorted(times_ms), measured_ms, atol=TICK_MS)
