"""Checkpoints of real maps, and what damaged files say."""

import logging
import random
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import ChallengeError, is_challenge_file, read_checkpoint_positions


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


def test_a_high_block_carries_its_road_higher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pygbx.headers import MapBlock, Vector3

    from trackmania_rl.gbx import challenge

    def block(name: str) -> MapBlock:
        made = MapBlock()
        made.name, made.position = name, Vector3(1, 2, 3)
        return made

    names = ("StadiumRoadMainCheckpoint", "StadiumCheckpointHigh", "StadiumRoadMain")
    monkeypatch.setattr(challenge, "_read_blocks", lambda path: [block(name) for name in names])
    assert read_checkpoint_positions(tmp_path).tolist() == [[48, 16, 112], [48, 23, 112]]


@pytest.mark.parametrize("content", [b"", b"GBX", b"not a map at all" * 100])
def test_a_file_that_is_no_map_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.Challenge.Gbx"
    path.write_bytes(content)
    with pytest.raises(ChallengeError, match=r"damaged\.Challenge\.Gbx: not a readable"):
        read_checkpoint_positions(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChallengeError, match="no such file"):
        read_checkpoint_positions(tmp_path / "absent.Challenge.Gbx")


def test_a_replay_is_told_apart_from_a_map(shared_data: Path) -> None:
    with pytest.raises(ChallengeError, match="not of a map"):
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
        except ChallengeError:
            continue
        assert positions.ndim == 2
    assert logging.root.manager.disable == logging.NOTSET


def test_map_paths_are_told_from_track_files() -> None:
    assert is_challenge_file(Path("A01-Race.Challenge.Gbx"))
    assert not is_challenge_file(Path("valley.toml"))
