"""Tracks of maps and lines: the road by its blocks, checkpoints, loops rolled out, real maps driven."""

import numpy as np
import pytest

from trackmania_rl.gbx.challenge import Block
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, drive
from trackmania_rl.simulator.tracks.track_design import write_track
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.world import Surface
from trackmania_rl.track.line_building import build_line, path_of_ghost
from trackmania_rl.track.map_tracks import MapTrackError, track_of_map

from .conftest import make_challenge

# Along +z from cell (9, 1, 3): a turbo, a field, a slope that ends banked, a checkpoint in the bank.
STRAIGHT = (
    Block("StadiumRoadMainStartLine", (9, 1, 3), 0, 0),
    Block("StadiumRoadMainTurbo", (9, 1, 4), 2, 0),
    Block("StadiumPlatformRoad", (9, 1, 5), 0, 0),
    Block("StadiumRoadMain", (9, 1, 6), 0, 3),
    Block("StadiumRoadTiltStraight", (9, 1, 7), 0, 0),
    Block("StadiumRoadMainCheckpointRight", (9, 1, 8), 0, 0),
    Block("StadiumRoadTiltStraight", (9, 1, 9), 2, 0),
    Block("StadiumRoadMainFinishLine", (9, 1, 12), 0, 0),
    Block("StadiumRoadMainCheckpoint", (20, 1, 20), 0, 0),
)


def straight_line(z_from_m, z_to_m):
    z_m = np.arange(z_from_m, z_to_m, 0.5)
    return np.stack((np.full(len(z_m), 9 * 32.0 + 16.0), np.full(len(z_m), 9.36), z_m), axis=1)


def written(challenge, line_m, folder):
    made = track_of_map(challenge, line_m, "made")
    write_track(made.design, made.laid_out, folder / "made.toml", "a test")
    return load_track(folder / "made.toml")


def at(track, field, z_m):
    section = int(np.abs(track.ribbon.center_m[:, 2] - z_m).argmin())
    return getattr(track.ribbon, field)[section]


def test_the_road_is_as_the_blocks_under_the_line_say(tmp_path):
    line_m = straight_line(3 * 32 + 11, 12 * 32 + 17)
    made = track_of_map(make_challenge(*STRAIGHT), line_m, "made")
    track = written(make_challenge(*STRAIGHT), line_m, tmp_path)
    assert track.finish_station_m == pytest.approx(0.5 * (len(line_m) - 1), abs=0.5)
    surfaces = {z_cell: Surface(at(track, "surface", (z_cell + 0.5) * 32)) for z_cell in range(3, 12)}
    assert surfaces[4] is Surface.TURBO
    assert at(track, "surface", 4 * 32 + 5) == Surface.TURBO  # pads cover the whole block
    assert surfaces[5] is Surface.CONCRETE
    assert surfaces[6] is surfaces[3] is Surface.ASPHALT
    assert surfaces[10] is surfaces[11] is Surface.GRASS
    assert at(track, "half_width_m", 3.5 * 32) == pytest.approx(13.0)
    assert at(track, "half_width_m", 5.5 * 32) == pytest.approx(16.0)
    # High on the left in the world, cells 7 and 8; the block at 9 is turned round, so it is high on the right.
    assert at(track, "left", 8 * 32)[1] == pytest.approx(np.sin(np.arctan(0.25)), abs=0.02)
    assert at(track, "left", 9.7 * 32)[1] == pytest.approx(-np.sin(np.arctan(0.25)), abs=0.03)
    assert at(track, "left", 4 * 32)[1] == pytest.approx(0.0, abs=1e-6)
    assert track.checkpoint_stations_m == pytest.approx((8.5 * 32 - (3 * 32 + 11),), abs=0.6)
    assert any("(20, 1, 20)" in note for note in made.notes)
    assert "made by me" in made.design.description


def test_the_start_line_of_a_circuit_counts_once_a_lap(tmp_path):
    angle = np.arange(0.0, 3 * 2 * np.pi, 0.5 / 50.0)
    line_m = np.stack((400 + 50 * np.cos(angle), np.full(len(angle), 9.36), 400 + 50 * np.sin(angle)), axis=1)
    blocks = [
        Block("StadiumRoadMainStartFinishLine", (14, 1, 12), 0, 0),
        Block("StadiumRoadMainCheckpoint", (10, 1, 12), 2, 0),
    ]
    track = written(make_challenge(*blocks, n_laps=3), line_m, tmp_path)
    lap_m = 50 * 2 * np.pi
    assert track.checkpoint_stations_m == pytest.approx([lap_m * share for share in (0.5, 1, 1.5, 2, 2.5)], abs=12.0)


@pytest.mark.parametrize(
    ("line_m", "told"),
    [
        (straight_line(3 * 32, 3 * 32 + 5), "30 m"),
        (straight_line(3 * 32, 12 * 32) - np.array((5000.0, 0.0, 0.0)), "outside map made"),
        (straight_line(3 * 32, 12 * 32) + np.array((400.0, 0.0, 0.0)), "from the start of map made"),
    ],
)
def test_lines_of_other_places_are_refused(line_m, told):
    with pytest.raises(MapTrackError, match=told):
        track_of_map(make_challenge(*STRAIGHT), line_m, "made")


def assert_the_careful_driver_finishes(track):
    race = drive(track, CAREFUL_DRIVER)
    assert race.race_time_ms is not None
    assert race.wall_contact_ms == 0


def test_the_careful_driver_finishes_hockolicious(hock, tmp_path):
    challenge, line_m = hock
    track = written(challenge, line_m, tmp_path)
    assert len(track.checkpoint_stations_m) == 13
    middle_m = track.ribbon.center_m[80:-600]
    assert np.abs(middle_m - line_m[np.linspace(0, len(line_m) - 1, len(middle_m)).astype(int)]).max() < 2.0
    assert set(np.unique(track.ribbon.surface)) >= {Surface.ASPHALT, Surface.GRASS, Surface.CONCRETE, Surface.TURBO}
    assert_the_careful_driver_finishes(track)


def test_the_careful_driver_finishes_b13_with_its_loops_rolled_out(replays, tmp_path):
    replay = replays[0]
    line_m = build_line([path_of_ghost(replay.best, "best")], replay.challenge).points_m
    made = track_of_map(replay.challenge, line_m, "made")
    assert any("rolled out" in note and note.count(" to ") == 5 for note in made.notes)  # two walls, two double loops
    track = written(replay.challenge, line_m, tmp_path)
    assert len(track.checkpoint_stations_m) == 3
    assert_the_careful_driver_finishes(track)
