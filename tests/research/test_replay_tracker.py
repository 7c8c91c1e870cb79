"""The tracker comes along where the simulated car went before, and B13's human through loops and walls."""

import numpy as np
import pytest

from research.replay_windows.ghost_motion import motion_of
from research.replay_windows.ghost_race import GhostRace
from research.replay_windows.tracker import TrackerSettings, follow
from trackmania_rl.gbx.replay import GhostSamples
from trackmania_rl.simulator.physics.vehicle import tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.race_batch import RaceBatch, TrackForBatch
from trackmania_rl.simulator.tracks.world import Track
from trackmania_rl.simulator.tracks.world_file import track_in_world
from trackmania_rl.track.block_tracks import arrays_of_map
from trackmania_rl.track.block_world import world_of
from trackmania_rl.track.placed_blocks import BlockGrid

from ..track.conftest import make_challenge
from ..track.test_block_tracks import CHECKPOINT, FINISH, LINE_M, ROAD, START

TICKS = 600


@pytest.fixture(scope="module")
def track() -> Track:
    challenge = make_challenge(START, *ROAD, CHECKPOINT, FINISH)
    return track_in_world("made", LINE_M, arrays_of_map(challenge, world_of(challenge), LINE_M))


@pytest.fixture(scope="module")
def race(track: Track) -> GhostRace:
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


def test_it_comes_along_where_the_simulated_car_went(track: Track, race: GhostRace) -> None:
    settings = TrackerSettings(segments=8, plans=40, rounds=2)
    followed = follow(race, track, np.random.default_rng(0), settings)
    assert followed.is_finished
    assert followed.aside_m.max() < 1.0
    assert np.abs(followed.behind_ms).max() <= 60
    again = follow(race, track, np.random.default_rng(0), settings)
    np.testing.assert_array_equal(followed.controls, again.controls)
