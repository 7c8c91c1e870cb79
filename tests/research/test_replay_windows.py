"""Windows of a ghost that the simulated car itself drove: the car must follow it, whatever the samples leave out."""

from pathlib import Path

import numpy as np
import pytest

from research.replay_windows.ghost_race import GhostRace, GhostRaceError, race_of_ghost
from research.replay_windows.windows import Kind, drive_window, window_at, windows_of
from trackmania_rl.gbx.replay import RACE_RUNNING, ControlEvent, Ghost, GhostSamples, read_replay
from trackmania_rl.simulator.physics.vehicle import TICK_MS, spawn_vehicle, tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.tracks.world import Surface, Track, build_ribbon

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
