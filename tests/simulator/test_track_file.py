"""Track files and reference lines: their contents arrive in the track, and errors are named."""

import numpy as np
import pytest

from trackmania_rl.simulator.tracks.track_design import (
    CHECKPOINT,
    TrackDesign,
    close_lap,
    lap_mismatch_m,
    lay_out,
    left,
    right,
    straight,
    turn_radius_m,
)
from trackmania_rl.simulator.tracks.track_file import TrackFileError, load_track, read_line
from trackmania_rl.simulator.tracks.world import Edge, Surface

STRAIGHT_LINE = np.stack([np.full(401, 100.0), np.full(401, 12.0), 100.0 + 0.5 * np.arange(401)], axis=1)


def write_track(folder, text="", line=STRAIGHT_LINE):
    np.save(folder / "line.npy", line.astype(np.float32))
    path = folder / "track.toml"
    path.write_text('name = "test"\nline = "line.npy"\n' + text, encoding="utf-8")
    return path


def at_station(values, ribbon, station_m):
    return values[int(np.searchsorted(ribbon.station_m, station_m - 1e-6))]


SECTIONS = """
width_m = 18
edge = "grass"
checkpoints_m = [50, 120.5]
[[section]]
from_m = 60
to_m = 100
surface = "dirt"
width_m = 30
edge = "drop"
banking_deg = 5
[[section]]
from_m = 140
to_m = 150
gap = true
"""


def test_defaults_and_sections_arrive_in_the_ribbon(tmp_path):
    path = write_track(tmp_path, SECTIONS)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as Windows writes it
    track = load_track(path)
    ribbon = track.ribbon

    def at(values, *stations_m):
        return [at_station(values, ribbon, station_m) for station_m in stations_m]

    assert (track.name, track.n_laps, track.checkpoint_stations_m) == ("test", 1, (50.0, 120.5))
    assert track.finish_station_m == pytest.approx(200.0, abs=0.01)
    assert at(ribbon.half_width_m, 20, 80, 200) == pytest.approx([9.0, 15.0, 9.0])
    assert np.abs(np.diff(ribbon.half_width_m)).max() < 0.8, "a wall does not step"
    asphalt, dirt = Surface.ASPHALT, Surface.DIRT
    assert at(ribbon.surface, 59.5, 60, 99.5, 100) == [asphalt, dirt, dirt, asphalt]
    assert at(ribbon.edge, 20, 80) == [Edge.GRASS, Edge.DROP]
    assert at(ribbon.left, 80)[0][1] < -0.05, "positive banking lowers the left border"
    assert [bool(is_there) for is_there in at(ribbon.has_road, 139.5, 140, 149.5, 150)] == [True, False, False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("widht_m = 3", r"unknown key \(did you mean 'width_m'\?\)"),
        ('surface = "asfalt"', r"did you mean 'asphalt'"),
        ("[[section]]\nfrom_m = 150\nto_m = 300", r"from 150.0 m to 300.0 m lies outside the line, which is 200.0 m"),
        ("[[section]]\nfrom_m = 30\nto_m = 20", r"to_m = 20.0 must be greater than from_m = 30.0"),
        ("[[section]]\nfrom_m = 0\nto_m = 30\ngap = true", r"gap from 0.0 m to 30.0 m touches the start"),
        ('world = "w.safetensors"\nwidth_m = 20', r"no road of its own: leave out width_m"),
        ("checkpoints_m = [80, 40]", r"40.0 m after 80.0 m"),
        ("laps = 2", r"laps = 2, but the line's laps lie up to 200.0 m apart"),
        ("width_m = = 3", r"not valid TOML"),
    ],
)
def test_mistakes_in_a_track_file_are_named(tmp_path, text, expected):
    path = write_track(tmp_path, text)
    with pytest.raises(TrackFileError, match=expected) as raised:
        load_track(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "key name is missing; the key line is missing"),
        (b'name = "a"\nline = "gone.npy"', r"gone\.npy: cannot be read"),
        (b'name = "\xe9"', "not UTF-8"),
    ],
)
def test_missing_keys_and_files_are_named(tmp_path, content, expected):
    (tmp_path / "track.toml").write_bytes(content)
    with pytest.raises(TrackFileError, match=expected):
        load_track(tmp_path / "track.toml")
    with pytest.raises(TrackFileError, match=r"nowhere\.toml: cannot be read"):
        load_track(tmp_path / "nowhere.toml")
    with pytest.raises(TrackFileError, match=r"not '.json'"):
        load_track(tmp_path / "track.json")


def _with_point(index, value):
    line = STRAIGHT_LINE.copy()
    line[index, 2] += value
    return line


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (STRAIGHT_LINE[:, :2], r"shape \(401, 2\)"),
        (STRAIGHT_LINE[:10], "at least 20.0 m"),
        (_with_point(7, np.nan), "point 7 is not finite"),
        (_with_point(7, 5.0), "points 6 and 7 are 5.500 m apart"),
        (2.0 * STRAIGHT_LINE, "are 1.000 m apart.* line --resample"),
        (np.full((401, 3), "x"), "no .npy file of numbers"),
    ],
)
def test_lines_that_are_no_lines_are_refused(tmp_path, array, expected):
    np.save(tmp_path / "line.npy", array)
    with pytest.raises(TrackFileError, match=expected):
        load_track(tmp_path / "line.npy")


def test_a_line_with_single_uneven_steps_is_resampled(tmp_path):
    np.save(tmp_path / "line.npy", np.delete(STRAIGHT_LINE, (50, 51), axis=0))
    np.testing.assert_allclose(read_line(tmp_path / "line.npy"), STRAIGHT_LINE, atol=1e-6)


def test_a_turn_tighter_than_the_road_is_wide_is_refused(tmp_path):
    laid_out = lay_out(TrackDesign("tight", "", (straight(50), left(90, radius_m=8, easing_m=4), straight(50))))
    with pytest.raises(TrackFileError, match="inner border would fold over"):
        load_track(write_track(tmp_path, "width_m = 20", laid_out.line_m))
    load_track(write_track(tmp_path, "width_m = 10", laid_out.line_m))


def test_a_crossing_is_refused_unless_meant_or_a_bridge(tmp_path):
    loop = (straight(100), left(270, radius_m=40), straight(100))
    flat = lay_out(TrackDesign("eight", "", loop)).line_m
    with pytest.raises(TrackFileError, match="runs into itself"):
        load_track(write_track(tmp_path, "", flat))
    load_track(write_track(tmp_path, "allow_crossing = true", flat))
    climbing = (straight(100), left(270, radius_m=40, climb_m=12), straight(100))
    load_track(write_track(tmp_path, "", lay_out(TrackDesign("bridge", "", climbing)).line_m))


def test_laps_repeat_and_their_lines_count_as_checkpoints(tmp_path):
    pieces = close_lap(
        (
            *(straight(100), left(90, radius_m=30), straight(80), left(90, radius_m=40)),
            CHECKPOINT,
            *(straight(90), left(90, radius_m=30), straight(80), left(90, radius_m=30)),
        ),
        first_straight=0,
        second_straight=2,
    )
    laid_out = lay_out(TrackDesign("ring", "", pieces, laps=2))
    assert lap_mismatch_m(laid_out.line_m.astype(np.float64), 2) < 0.5
    mark_m = laid_out.checkpoints_m[0]
    text = f"laps = 2\ncheckpoints_m = [{mark_m}]\n[[section]]\nfrom_m = 10\nto_m = 20\nsurface = 'turbo'"
    track = load_track(write_track(tmp_path, text, laid_out.line_m))
    lap_m = track.finish_station_m / 2
    assert track.n_laps == 2
    assert track.checkpoint_stations_m == pytest.approx((mark_m, lap_m, lap_m + mark_m))
    for station_m in (15.0, lap_m + 15.0):
        assert at_station(track.ribbon.surface, track.ribbon, station_m) == Surface.TURBO


def test_turns_have_the_angle_radius_and_side_asked_for():
    for piece, sign in ((left(90, radius_m=40), 1.0), (right(90, radius_m=40), -1.0)):
        line_m = lay_out(TrackDesign("turn", "", (straight(50), piece, straight(50)))).line_m.astype(np.float64)
        start, end = line_m[1] - line_m[0], line_m[-1] - line_m[-2]
        # Heading 0 looks along +z; a left turn leads towards +x.
        assert np.allclose(start, (0.0, 0.0, 0.5), atol=1e-4)
        assert np.allclose(end, (0.5 * sign, 0.0, 0.0), atol=1e-3)
        assert turn_radius_m(line_m).min() == pytest.approx(40.0, rel=0.01)
