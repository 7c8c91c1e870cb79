"""Real maps and replays, told as the game tells them."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block, Gate, MedalTimes, plain_text, read_challenge, read_checkpoint_positions
from trackmania_rl.gbx.reading import GbxError
from trackmania_rl.gbx.replay import Replay, read_embedded_map, read_replay


def test_real_checkpoints_lie_on_the_real_line(shared_data: Path) -> None:
    positions = read_checkpoint_positions(shared_data / "tracks" / "ESL-Hockolicious.Challenge.Gbx")
    assert positions.shape == (15, 3)
    assert [22 * 32 + 16, 1 * 8, 24 * 32 + 16] in positions.tolist()  # the start line
    assert [20 * 32 + 16, 1 * 8, 21 * 32 + 16] in positions.tolist()  # the finish
    line = np.load(shared_data / "reference_lines" / "ESL-Hockolicious_0.5m_cl2.npy", allow_pickle=False)
    assert max(np.linalg.norm(line - position, axis=1).min() for position in positions) < 12


@pytest.mark.parametrize(
    ("name", "height_m"),
    [("StadiumRoadMainCheckpoint", 16), ("StadiumCheckpointHigh", 23), ("StadiumHighWayCheckpoint", 16)],
)
def test_a_high_block_carries_its_road_higher(name: str, height_m: float) -> None:
    assert Block(name, cell=(1, 2, 3), quarter_turns=0, flags=0).floor_center_m.tolist() == [48, height_m, 112]


def test_only_stadium_has_positions_of_checkpoints(shared_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "platform.Challenge.Gbx"
    path.write_bytes(read_embedded_map(shared_data / "replays" / "PlatformA3_33.66.Replay.gbx"))
    with pytest.raises(GbxError, match="environment is 'Speed'"):
        read_checkpoint_positions(path)


@pytest.mark.parametrize(
    ("file", "name", "n_blocks", "n_checkpoints", "times"),
    [
        ("A01-Race", "A01-Race", 397, 2, MedalTimes(24_540, 25_870, 29_190, 38_030)),
        ("B13-Obstacle", "B13-Obstacle", 216, 3, MedalTimes(25_650, 27_170, 31_150, 38_550)),
        ("ESL-Hockolicious", "ESL-Hockolicious", 317, 13, MedalTimes(55_100, 59_000, 67_000, 83_000)),
        ("test", "test", 20, 0, MedalTimes(None, None, None, None)),
    ],
)
def test_contents_of_a_real_map(
    shared_data: Path, file: str, name: str, n_blocks: int, n_checkpoints: int, times: MedalTimes
) -> None:
    challenge = read_challenge(shared_data / "tracks" / f"{file}.Challenge.Gbx")
    assert (challenge.plain_name, challenge.environment, challenge.n_laps) == (name, "Stadium", 1)
    assert challenge.size_cells == (32, 32, 32)
    assert len(challenge.blocks) == n_blocks
    assert challenge.times == times
    kinds = [gate.gate for gate in challenge.gates]
    assert kinds.count(Gate.CHECKPOINT) == n_checkpoints
    assert kinds.count(Gate.START) == kinds.count(Gate.FINISH) == 1
    if name == "B13-Obstacle":  # its start is turned three right angles: cars leave it along +x
        start = challenge.gates[kinds.index(Gate.START)]
        assert (start.cell, start.quarter_turns) == ((11, 1, 19), 3)


def test_gates_are_told_by_their_names() -> None:
    assert Gate.of_block("StadiumRoadMainStartFinishLine") is Gate.START_AND_FINISH
    assert Gate.of_block("StadiumPlatformMultilap") is Gate.of_block("StadiumRoadDirtMultiLap") is Gate.START_AND_FINISH
    assert Gate.of_block("StadiumCheckpointRingV") is Gate.CHECKPOINT
    assert Gate.of_block("StadiumCircuitLoopStart") is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("  $fffESL$000-$666Hockolicious", "ESL-Hockolicious"),
        ("$s$oBold$z 5$$", "Bold 5$"),
        ("$l[http://a.b]link$l", "link"),
        ("plain", "plain"),
        ("cut $", "cut"),
    ],
)
def test_names_are_read_without_their_colours(text: str, plain: str) -> None:
    assert plain_text(text) == plain


B13_FASTER = "B13-Obstacle_24.94_a.Replay.Gbx"
B13_SLOWER = "B13-Obstacle_24.95_a.Replay.gbx"
MYDLI = "mydli_20.14.Replay.gbx"
OTHER_CAR = "PlatformA3_33.66.Replay.gbx"


@pytest.fixture(scope="module")
def replays(shared_data: Path) -> dict[str, Replay]:
    return {name: read_replay(shared_data / "replays" / name) for name in (B13_FASTER, B13_SLOWER, MYDLI, OTHER_CAR)}


@pytest.mark.parametrize(
    ("name", "race_time_ms", "checkpoint_times_ms"),
    [
        (B13_FASTER, 24_940, (8_020, 14_680, 20_950, 24_940)),
        (B13_SLOWER, 24_950, (8_030, 14_680, 20_950, 24_950)),
        (MYDLI, 20_140, (7_690, 14_420, 20_140)),
        (OTHER_CAR, 33_660, (5_750, 8_550, 17_460, 25_250, 33_660)),
    ],
)
def test_times(replays: dict[str, Replay], name: str, race_time_ms: int, checkpoint_times_ms: tuple[int, ...]) -> None:
    best = replays[name].best
    assert best.race_time_ms == race_time_ms
    assert best.checkpoint_times_ms == checkpoint_times_ms


def test_who_and_where(replays: dict[str, Replay]) -> None:
    replay = replays[B13_FASTER]
    assert (replay.nickname, replay.best.login) == ("Gosu", "gosufighter")
    assert replay.challenge is not None
    assert (replay.challenge.plain_name, len(replay.challenge.blocks)) == ("B13-Obstacle", 216)
    assert replays[OTHER_CAR].challenge.environment == "Speed"  # another environment, so another car
    assert replays[MYDLI].best.n_respawns == 1


def test_samples_follow_the_car(replays: dict[str, Replay]) -> None:
    samples = replays[B13_FASTER].best.samples
    assert samples.period_ms == 100
    assert samples.time_ms[-1] == 100 * (len(samples.position_m) - 1) == 24_900
    np.testing.assert_allclose(samples.position_m[0], [11 * 32 + 16, 10.21, 19 * 32 + 16], atol=5.0)  # its start block
    np.testing.assert_allclose(np.linalg.norm(samples.rotation, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(samples.rotation[0], [0.7071, 0.0, 0.7071, 0.0], atol=2e-3)  # looks along +x
    # Speed is what positions say, where the car does not bounce: the median of relative errors is small.
    moved_m_s = np.linalg.norm(np.diff(samples.position_m, axis=0), axis=1) / 0.1
    middle_m_s = (samples.speed_m_s[1:] + samples.speed_m_s[:-1]) / 2
    assert np.median(np.abs(moved_m_s[10:] / middle_m_s[10:] - 1)) < 0.01


def test_inputs_are_complete(replays: dict[str, Replay]) -> None:
    events = replays[B13_FASTER].best.events
    assert len(events) == 322
    assert [(event.time_ms, event.name, event.value) for event in events[:3]] == [
        (0, "_FakeIsRaceRunning", 1),
        (10, "Accelerate", 1),
        (280, "Steer", 811),
    ]
    assert all(-65_536 <= event.value <= 65_536 for event in events)
    assert {event.name for event in replays[MYDLI].best.events} == {
        *("SteerLeft", "SteerRight", "Respawn", "Accelerate", "_FakeIsRaceRunning", "_FakeFinishLine")
    }
