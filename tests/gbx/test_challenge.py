"""Checkpoints of real maps, and what damaged files say."""

import logging
import random
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import (
    Block,
    Gate,
    MedalTimes,
    is_challenge_file,
    plain_text,
    read_challenge,
    read_checkpoint_positions,
)
from trackmania_rl.gbx.reading import GbxError
from trackmania_rl.gbx.replay import read_embedded_map


@pytest.fixture
def hockolicious(shared_data: Path) -> Path:
    return shared_data / "tracks" / "ESL-Hockolicious.Challenge.Gbx"


def test_checkpoints_of_a_real_map(hockolicious: Path) -> None:
    positions = read_checkpoint_positions(hockolicious)
    assert positions.shape == (15, 3)
    assert [22 * 32 + 16, 1 * 8, 24 * 32 + 16] in positions.tolist()  # the start line
    assert [20 * 32 + 16, 1 * 8, 21 * 32 + 16] in positions.tolist()  # the finish


def test_real_checkpoints_lie_on_the_real_line(hockolicious: Path, shared_data: Path) -> None:
    line = np.load(shared_data / "reference_lines" / "ESL-Hockolicious_0.5m_cl2.npy", allow_pickle=False)
    distances = [np.linalg.norm(line - position, axis=1).min() for position in read_checkpoint_positions(hockolicious)]
    assert max(distances) < 12


def test_a_high_block_carries_its_road_higher() -> None:
    def floor_center_m(name: str) -> list[float]:
        return Block(name, cell=(1, 2, 3), quarter_turns=0, flags=0).floor_center_m.tolist()

    assert floor_center_m("StadiumRoadMainCheckpoint") == [48, 16, 112]
    assert floor_center_m("StadiumCheckpointHigh") == [48, 23, 112]
    assert floor_center_m("StadiumHighWayCheckpoint") == [48, 16, 112]


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
def test_what_a_real_map_says(
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


def test_the_start_looks_where_the_first_road_goes(shared_data: Path) -> None:
    """B13's start is turned three right angles: cars leave it along +x (the replays' first heading)."""
    challenge = read_challenge(shared_data / "tracks" / "B13-Obstacle.Challenge.Gbx")
    (start,) = (gate for gate in challenge.gates if gate.gate is Gate.START)
    assert (start.cell, start.quarter_turns) == ((11, 1, 19), 3)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("StadiumRoadMainStartLine", Gate.START),
        ("StadiumRoadMainStartFinishLine", Gate.START_AND_FINISH),
        ("StadiumRoadMainFinishLine", Gate.FINISH),
        ("StadiumCheckpointRingV", Gate.CHECKPOINT),
        ("StadiumCircuitLoopStart", None),
    ],
)
def test_gates_are_told_by_their_names(name: str, kind: Gate | None) -> None:
    assert Gate.of_block(name) is kind


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


@pytest.mark.parametrize("content", [b"", b"GBX", b"not a map at all" * 100])
def test_a_file_that_is_no_map_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.Challenge.Gbx"
    path.write_bytes(content)
    with pytest.raises(GbxError, match=r"damaged\.Challenge\.Gbx: not a readable"):
        read_checkpoint_positions(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GbxError, match="no such file"):
        read_checkpoint_positions(tmp_path / "absent.Challenge.Gbx")


def test_a_replay_is_told_apart_from_a_map(shared_data: Path) -> None:
    with pytest.raises(GbxError, match="not of a map"):
        read_checkpoint_positions(shared_data / "replays" / "mydli_20.14.Replay.gbx")


def test_random_damage_never_escapes_as_another_error(hockolicious: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    original = hockolicious.read_bytes()
    path = tmp_path / "x.Challenge.Gbx"
    for _ in range(100):
        damaged = bytearray(original[: rng.randrange(1, len(original) + 1)])
        for _ in range(3):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            positions = read_checkpoint_positions(path)
        except GbxError:
            continue
        assert positions.ndim == 2
    assert logging.root.manager.disable == logging.NOTSET


def test_map_paths_are_told_from_track_files() -> None:
    assert is_challenge_file(Path("A01-Race.Challenge.Gbx"))
    assert not is_challenge_file(Path("valley.toml"))
