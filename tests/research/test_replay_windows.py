"""Ghosts of the simulated car itself and of a human: windows follow them, whatever the samples leave out."""

from pathlib import Path

import numpy as np
import pytest

from research.replay_windows.ghost_race import GhostRace, GhostRaceError, race_of_ghost
from research.replay_windows.windows import drive_window, window_at, windows_of
from trackmania_rl.gbx.replay import RACE_RUNNING, ControlEvent, Ghost, GhostSamples, read_replay
from trackmania_rl.simulator.physics.vehicle import TICK_MS, tick
from trackmania_rl.simulator.physics.vehicle_parameters import STADIUM_CAR
from trackmania_rl.simulator.physics.vehicle_state import new_vehicle
from trackmania_rl.simulator.tracks.surface_mesh import SurfaceMesh, build_surface_mesh
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.block_world import mesh_of_world, world_of

LEVEL_M = 41.3446
"""A height that a road of the game has."""
CORNERS_M = ((-500.0, -100.0), (-500.0, 600.0), (500.0, 600.0), (500.0, -100.0))


def plane(slope: float = 0.0) -> SurfaceMesh:
    """A road as wide as a field, rising along +z."""
    corners_m = np.array([(x, LEVEL_M + slope * z, z) for x, z in CORNERS_M])[np.array([[0, 1, 2], [0, 2, 3]])]
    surface, forward = np.full(2, int(Surface.ASPHALT)), np.tile([0.0, 0.0, 1.0], (2, 1))
    return build_surface_mesh(corners_m, surface, forward, np.zeros((0, 0), dtype=np.bool_), 9.0)


def race_driven(world: SurfaceMesh, keys, end_ms) -> GhostRace:
    """Drive (time in ms, key, value) events; the race that a ghost of it tells."""
    car = new_vehicle()
    car["position_m"] = 0.0, LEVEL_M + float(STADIUM_CAR["spawn_height_m"][0]), 0.0
    held = {"Accelerate": 0.0, "Brake": 0.0, "SteerLeft": 0.0, "SteerRight": 0.0}
    events = [ControlEvent(0, RACE_RUNNING, 1), *(ControlEvent(*key) for key in keys)]
    rows = []
    for time_ms in range(0, end_ms + 1, TICK_MS):
        if time_ms % 100 == 0:
            speed_m_s = np.linalg.norm(car["velocity_m_s"][0])
            rows.append((time_ms, *car["position_m"][0], *car["quaternion"][0], speed_m_s))
        held |= {event.name: float(event.value) for event in events[1:] if event.time_ms == time_ms}
        steer = held["SteerRight"] - held["SteerLeft"]
        tick(car, held["Accelerate"], held["Brake"], steer, world, STADIUM_CAR)
    table = np.array(rows)
    samples = GhostSamples(100, table[:, 0].astype(np.int64), table[:, 1:4], table[:, 4:8], table[:, 8])
    ghost = Ghost("driver", None, (), 0, samples, tuple(sorted(events, key=lambda event: event.time_ms)), "")
    return race_of_ghost(ghost, (), Path("driven.Ghost.Gbx"))


def test_the_car_follows_itself_on_level_road():
    """Five seconds through two gear changes, with taps to both sides and a long corner."""
    keys = [
        (10, "Accelerate", 1),
        (700, "SteerLeft", 1),
        (820, "SteerLeft", 0),
        (2140, "SteerRight", 1),
        (2250, "SteerRight", 0),
        (3000, "SteerLeft", 1),
    ]
    world = plane()
    race = race_driven(world, keys, 5000)
    windows = [window for window in windows_of(race, 1000, 100) if window.start_ms >= 300]
    assert len(windows) == 38
    results = [drive_window(race, window, world) for window in windows]
    ends_m = np.array([result.position_m[-1] for result in results])
    assert np.median(ends_m) < 0.02
    assert ends_m.max() < 0.15
    assert max(np.abs(result.speed_kmh).max() for result in results) < 0.4


def test_the_car_follows_itself_up_a_slope():
    world = plane(slope=0.2)
    race = race_driven(world, [(10, "Accelerate", 1)], 4000)
    assert drive_window(race, window_at(race, 2500, 3500), world).position_m[-1] < 0.1


def test_the_car_follows_a_human_down_the_ramp_over_pads_and_over_grass(shared_data):
    replay = read_replay(shared_data / "replays" / "mydli_20.14.Replay.gbx")
    race = race_of_ghost(replay.best, replay.challenge.blocks, replay.path)
    world = mesh_of_world(world_of(replay.challenge))
    for start_ms, end_ms, block in (
        (0, 2500, "StadiumRoadMainStartLine"),
        (2600, 3900, "StadiumRoadMainTurbo"),
        (12_000, 12_800, ""),
    ):
        window = window_at(race, start_ms, end_ms)
        assert window.block == block
        assert drive_window(race, window, world).position_m.max() < 0.2


def test_a_ghost_without_samples_is_named(tmp_path):
    with pytest.raises(GhostRaceError, match=r"empty\.Ghost\.Gbx: the ghost has no samples"):
        race_of_ghost(Ghost("driver", None, (), 0, None, (), ""), (), tmp_path / "empty.Ghost.Gbx")
