"""The tracks that ship: they are what the road books say, lie where the game's maps lie, and can be driven."""

import numpy as np
import pytest

from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, FAST_DRIVER, drive
from trackmania_rl.simulator.tracks.track_design import lay_out
from trackmania_rl.simulator.tracks.track_file import load_track

TRACKS = ("valley", "speedway", "hills", "kart", "rally", "jump", "ring")


@pytest.fixture(scope="module")
def build_script(script_module):
    return script_module("tools/build_shipped_tracks")


@pytest.fixture(scope="module")
def maps_folder(repository_root):
    return repository_root / "maps"


def test_every_design_ships_and_follows_its_road_book(build_script, maps_folder):
    assert tuple(design.name for design in build_script.DESIGNS) == TRACKS
    for design in build_script.DESIGNS:
        laid_out = lay_out(design)
        shipped_m = np.load(maps_folder / build_script.line_name(design), allow_pickle=False)
        assert shipped_m.dtype == np.float32
        # Not bit for bit: sines may differ in the last place from machine to machine.
        np.testing.assert_allclose(shipped_m, laid_out.line_m, atol=1e-3)
        shipped_text = (maps_folder / f"{design.name}.toml").read_text(encoding="utf-8")
        assert shipped_text == build_script.track_file_text(design, laid_out), "run build_shipped_tracks.py"


@pytest.mark.parametrize("name", TRACKS)
def test_a_shipped_track_lies_inside_a_map_and_can_be_driven(name, maps_folder):
    track, path = load_track(maps_folder / f"{name}.toml"), maps_folder / f"{name}_0.5m.npy"
    line_m = np.load(path, allow_pickle=False)
    assert path.stat().st_size < 100_000
    assert 0.0 < line_m[:, [0, 2]].min() < line_m[:, [0, 2]].max() < 1000.0
    assert line_m[:, 1].min() >= 10.0
    np.testing.assert_allclose(np.linalg.norm(np.diff(line_m, axis=0), axis=1), 0.5, atol=3e-3)
    reports = [drive(track, settings) for settings in (CAREFUL_DRIVER, FAST_DRIVER, FAST_DRIVER)]
    for report in reports:
        assert report.race_time_ms is not None, f"stopped at {report.reached_m:.0f} m of {track.finish_station_m:.0f} m"
        assert (report.off_road_ms, report.wall_contact_ms) == (0, 0)
    careful, fast, again = reports
    assert fast.race_time_ms == again.race_time_ms
    np.testing.assert_array_equal(fast.keys, again.keys)
    np.testing.assert_array_equal(fast.speed_m_s, again.speed_m_s)
    if name == "valley":
        assert 27_000 < careful.race_time_ms < 33_000
        assert fast.race_time_ms < careful.race_time_ms - 4_000


def test_the_scripted_driver_reaches_the_end_of_a_real_line(shared_data):
    track = load_track(shared_data / "reference_lines" / "ESL-Hockolicious_0.5m_cl2.npy")
    assert 3900.0 < track.finish_station_m < 4050.0
    assert np.ptp(np.diff([0.0, *track.checkpoint_stations_m, track.finish_station_m])) < 1.0
    assert np.allclose(track.ribbon.half_width_m, 12.0)
    report = drive(track)
    assert report.race_time_ms is not None
    assert report.off_road_ms == 0
