"""Ghosts of the simulated car itself: windows follow them, whatever the samples leave out, and so does the tracker."""

from pathlib import Path

import numpy as np
import pytest

from research.replay_windows.ghost_motion import motion_of
from research.replay_windows.ghost_race import GhostRace, GhostRaceError, race_of_ghost
from research.replay_windows.tracker import TrackerSettings, follow
from research.replay_windows.windows import Kind, drive_window, window_at, windows_of
from trackmania_rl.gbx.replay import RACE_RUNNING, ControlEvent, Ghost, GhostSamples, read_replay
from trackmania_rl.simulator.physics.vehicle import TICK_MS, spawn_vehicle, tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.race_batch import RaceBatch, TrackForBatch
from trackmania_rl.simulator.tracks.world import Surface, Track, build_ribbon
from trackmania_rl.simulator.tracks.world_file import track_in_world
from trackmania_rl.track.block_tracks import arrays_of_map
from trackmania_rl.track.block_world import world_of
from trackmania_rl.track.placed_blocks import BlockGrid

from ..track.conftest import make_challenge
from ..track.test_block_tracks import CHECKPOINT, FINISH, LINE_M, ROAD, START

LEVEL_M = 41.3446
"""A height that a road of the game has."""


def plane(slope=0.0):
    """A straight road as wide as a field, along +z."""
    along = np.array([0.0, slope, 1.0]) / np.hypot(1.0, slope)
    line_m = np.arange(0.0, 600.0, 0.5)[:, None] * along + (0.0, LEVEL_M, 0.0)
    return build_ribbon(line_m, 1000.0, surface=Surface.ASPHALT)


def race_driven(ribbon, keys, end_ms) -> GhostRace:
    """Drive (time in ms, key, value) events; the race that a ghost of it tells."""
    car = spawn_vehicle(Track("plane", ribbon, (), 500.0), 200.0)
    held = {"Accelerate": 0.0, "Brake": 0.0, "SteerLeft": 0.0, "SteerRight": 0.0}
    events = [ControlEvent(0, RACE_RUNNING, 1), *(ControlEvent(*key) for key in keys)]
    rows = []
    for time_ms in range(0, end_ms + 1, TICK_MS):
        if time_ms % 100 == 0:
            speed_m_s = np.linalg.norm(car["velocity_m_s"][0])
            rows.append((time_ms, *car["position_m"][0], *car["quaternion"][0], speed_m_s))
        held |= {event.name: float(event.value) for event in events[1:] if event.time_ms == time_ms}
        steer = held["SteerRight"] - held["SteerLeft"]
        tick(car, held["Accelerate"], held["Brake"], steer, ribbon.road, STADIUM_CAR)
    table = np.array(rows)
    samples = GhostSamples(100, table[:, 0].astype(np.int64), table[:, 1:4], table[:, 4:8], table[:, 8])
    ghost = Ghost("driver", None, (), 0, samples, tuple(sorted(events, key=lambda event: event.time_ms)), "")
    return race_of_ghost(ghost, (), Path("driven.Ghost.Gbx"))


@pytest.fixture(scope="module")
def level_race() -> GhostRace:
    """Five seconds through two gear changes, with taps to both sides and a long corner."""
    keys = [
        (10, "Accelerate", 1),
        (700, "SteerLeft", 1),
        (820, "SteerLeft", 0),
        (2140, "SteerRight", 1),
        (2250, "SteerRight", 0),
        (3000, "SteerLeft", 1),
    ]
    return race_driven(plane(), keys, 5000)


def test_the_car_follows_itself_on_level_road(level_race):
    windows = [window for window in windows_of(level_race, 1000, 100) if window.start_ms >= 300]
    assert len(windows) == 38
    results = [drive_window(level_race, window) for window in windows if window.kind is Kind.LEVEL]
    assert len(results) >= 20
    ends_m = np.array([result.position_m[-1] for result in results])
    assert np.median(ends_m) < 0.02
    assert ends_m.max() < 0.15
    assert max(np.abs(result.speed_kmh).max() for result in results) < 0.4


def test_on_a_slope_the_ground_is_tilted():
    race = race_driven(plane(slope=0.2), [(10, "Accelerate", 1)], 4000)
    window = window_at(race, 2500, 3500)
    assert window.kind is Kind.SLOPE
    assert drive_window(race, window).position_m[-1] < 0.1


def test_the_car_follows_a_human_down_the_ramp_over_pads_and_over_grass(shared_data):
    replay = read_replay(shared_data / "replays" / "mydli_20.14.Replay.gbx")
    race = race_of_ghost(replay.best, replay.challenge.blocks, replay.path)
    for start_ms, end_ms, kind in ((0, 2500, Kind.START), (2600, 3900, Kind.PAD), (12_000, 12_800, Kind.GRASS)):
        window = window_at(race, start_ms, end_ms)
        assert window.kind is kind
        assert drive_window(race, window).position_m.max() < 0.2


def test_a_ghost_without_samples_is_named(tmp_path):
    with pytest.raises(GhostRaceError, match=r"empty\.Ghost\.Gbx: the ghost has no samples"):
        race_of_ghost(Ghost("driver", None, (), 0, None, (), ""), (), tmp_path / "empty.Ghost.Gbx")


TICKS = 600


@pytest.fixture(scope="module")
def track() -> Track:
    challenge = make_challenge(START, *ROAD, CHECKPOINT, FINISH)
    return track_in_world("made", LINE_M, arrays_of_map(challenge, world_of(challenge), LINE_M))


@pytest.fixture(scope="module")
def tracked_race(track: Track) -> GhostRace:
    """Of the simulated car itself, which steers to and fro."""
    for_batch, batch = TrackForBatch(track), RaceBatch(1)
    batch.begin(0, for_batch)
    steer = np.select([np.arange(TICKS) % 100 < 20, np.arange(TICKS) % 100 >= 80], [-0.6, 0.6], 0.0)
    controls = np.stack([np.ones(TICKS), np.zeros(TICKS), steer], axis=1)
    positions, quaternions = [batch.cars["position_m"][0].copy()], [batch.cars["quaternion"][0].copy()]
    for inputs in controls:
        tick(batch.cars, *inputs.tolist(), for_batch.world, STADIUM_CAR)
        positions.append(batch.cars["position_m"][0].copy())
        quaternions.append(batch.cars["quaternion"][0].copy())
    every = slice(None, None, 10)
    time_ms = np.arange(0, 10 * TICKS + 1, 100)
    speeds = np.linalg.norm(np.gradient(np.array(positions), 0.01, axis=0), axis=1)
    samples = GhostSamples(
        100, time_ms, np.array(positions, dtype=float)[every], np.array(quaternions, dtype=float)[every], speeds[every]
    )
    nothing = np.zeros(TICKS)
    flies = np.zeros(len(time_ms), dtype=np.bool_)
    return GhostRace(motion_of(samples), controls, (), nothing, nothing, nothing, nothing, flies, BlockGrid(()))


def test_it_comes_along_where_the_simulated_car_went(track: Track, tracked_race: GhostRace) -> None:
    settings = TrackerSettings(segments=8, plans=40, rounds=2)
    followed = follow(tracked_race, track, np.random.default_rng(0), settings)
    assert followed.is_finished
    assert followed.aside_m.max() < 1.0
    assert np.abs(followed.behind_ms).max() <= 60
    again = follow(tracked_race, track, np.random.default_rng(0), settings)
    np.testing.assert_array_equal(followed.controls, again.controls)
