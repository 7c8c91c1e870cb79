"""Real replays, told as the game tells them."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.gbx.reading import GbxError
from trackmania_rl.gbx.replay import Replay, read_replay

B13_FASTER = "B13-Obstacle_24.94_a.Replay.Gbx"
B13_SLOWER = "B13-Obstacle_24.95_a.Replay.gbx"
MYDLI = "mydli_20.14.Replay.gbx"
OTHER_CAR = "PlatformA3_33.66.Replay.gbx"


@pytest.fixture
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


def test_a_map_is_told_apart_from_a_replay(shared_data: Path) -> None:
    with pytest.raises(GbxError, match="no race is in it: it is a map"):
        read_replay(shared_data / "tracks" / "A01-Race.Challenge.Gbx")
