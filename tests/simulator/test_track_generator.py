"""Generated tracks: the same recipe gives the same files, all are within bounds, and all can be driven."""

import sys

import numpy as np
import pytest

from trackmania_rl.simulator.physics.scripted_driver import drive
from trackmania_rl.simulator.tracks.track_design import LINE_SPACING_M, find_crossing, turn_radius_m
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.track_generator import (
    LARGEST_EXTENT_M,
    LONGEST_TRACK_M,
    SHORTEST_TRACK_M,
    TIGHTEST_CREST_PER_M,
    TrackRecipe,
    generate_track,
)
from trackmania_rl.simulator.tracks.track_phrases import Character

DIFFICULTIES = (0.0, 0.5, 1.0)


@pytest.fixture(scope="module")
def tracks():
    return {(seed, d): generate_track(TrackRecipe(seed, d)) for d in DIFFICULTIES for seed in range(6)}


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_same_recipe_gives_the_same_bytes(difficulty, tracks, tmp_path):
    written = []
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        track_file = tmp_path / folder / "track.toml"
        line_file = generate_track(TrackRecipe(5, difficulty)).write(track_file)
        written.append((track_file.read_bytes(), line_file.read_bytes()))
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == [line_file.name, "track.toml"]
    assert written[0] == written[1]
    np.testing.assert_array_equal(np.load(line_file), tracks[5, difficulty].laid_out.line_m)


def test_lengths_checkpoints_and_places_are_sensible(tracks):
    for track in tracks.values():
        line_m = track.laid_out.line_m
        assert line_m.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(np.diff(line_m, axis=0), axis=1), LINE_SPACING_M, atol=5e-3)
        assert SHORTEST_TRACK_M <= track.length_m <= LONGEST_TRACK_M
        assert np.ptp(line_m[:, [0, 2]], axis=0).max() <= LARGEST_EXTENT_M
        assert line_m[:, [0, 2]].min() > 0.0
        assert line_m[:, 1].min() >= 10.0
        between_m = np.diff([0.0, *track.laid_out.checkpoints_m, track.length_m])
        assert 60.0 < between_m.min() < between_m.max() < 600.0
    assert len({track.laid_out.line_m.tobytes() for track in tracks.values()}) == len(tracks)


def test_roads_are_within_bounds_and_can_be_driven(tracks, tmp_path):
    """The ribbon that the game builds of the files is what counts, not the generator's own figures."""
    for (_, difficulty), generated in tracks.items():
        generated.write(tmp_path / "track.toml")
        track = load_track(tmp_path / "track.toml")
        ribbon, inside = track.ribbon, slice(*np.searchsorted(track.ribbon.station_m, [0.0, track.finish_station_m]))
        line_m, half_width_m = ribbon.center_m[inside], ribbon.half_width_m[inside]
        has_road = ribbon.has_road[inside]
        assert (turn_radius_m(line_m) - half_width_m).min() > 2.0
        assert find_crossing(line_m, half_width_m + 3.0, is_closed=False) is None, "borders stay 6 m apart"
        character = Character.of_difficulty(difficulty)
        on_road = has_road[1:] & has_road[:-1]
        slopes = np.diff(line_m[:, 1]) / LINE_SPACING_M
        assert np.abs(slopes[on_road]).max() < max(character.steepest, 4.0 / 35.0 if difficulty > 0.6 else 0.0) + 0.02
        changes_per_m = np.diff(slopes) / LINE_SPACING_M
        assert np.abs(changes_per_m[on_road[1:] & on_road[:-1]]).max() <= TIGHTEST_CREST_PER_M
        assert 2.0 * half_width_m.min() >= 10.0
        report, name = drive(track), generated.recipe.name
        assert report.race_time_ms is not None, f"{name}: stopped at {report.reached_m:.0f} m"
        assert report.off_road_ms == 0, name
        assert 10_000 < report.race_time_ms < 60_000, name


def test_a_harder_track_is_narrower_and_tighter_and_has_more_in_it(tracks):
    def tightest_m(track):
        return float(turn_radius_m(track.laid_out.line_m.astype(np.float64)).min())

    for figure in (tightest_m, lambda track: track.design.width_m):
        means = [np.mean([figure(track) for (_, d), track in tracks.items() if d == hard]) for hard in DIFFICULTIES]
        assert means[0] > means[1] > means[2]
    styles = {hard: set() for hard in DIFFICULTIES}
    for (_, hard), track in tracks.items():
        for section in track.laid_out.sections:
            styles[hard] |= set(section.style.values())
    assert styles[1.0] >= {"dirt", "grass", "concrete", "turbo", "drop", True}
    assert not {"dirt", "drop", True} & styles[0.0]


def test_a_name_gives_its_recipe_again():
    for recipe in (TrackRecipe(0, 0.0), TrackRecipe(2**63 - 1, 1.0), TrackRecipe(7, 1 / 3)):
        assert TrackRecipe.from_name(recipe.name) == recipe
    for name in ("valley", "generated_0.5_7", "generated_1.500_7", "generated_0.500_9999999999999999999", "generated_"):
        assert TrackRecipe.from_name(name) is None


@pytest.fixture(scope="module")
def script(script_module):
    return script_module("generate_track")


def test_the_command_writes_track_and_picture(script, tmp_path, monkeypatch, capsys):
    track_file, picture = tmp_path / "new" / "mine.toml", tmp_path / "mine.png"
    arguments = ["--seed", "7", "--difficulty", "0.9", "--output", str(track_file), "--picture", str(picture)]
    monkeypatch.setattr(sys, "argv", ["generate_track.py", *arguments])
    assert script.main() == 0
    assert "wrote" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert load_track(track_file).name == "mine"
    np.testing.assert_array_equal(
        np.load(tmp_path / "new" / "mine_0.5m.npy"), generate_track(TrackRecipe(7, 0.9)).laid_out.line_m
    )


def test_the_command_overwrites_nothing_else(script, tmp_path, monkeypatch, capsys):
    track_file = tmp_path / "mine.toml"

    def run(seed, *options):
        arguments = ["generate_track.py", "--seed", str(seed), "--output", str(track_file), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        return script.main()

    (tmp_path / "mine_0.5m.npy").write_bytes(b"the line of somebody's replay")
    assert run(7) == 78
    assert "mine_0.5m.npy is there already" in capsys.readouterr().err
    assert not track_file.exists()
    assert run(7, "--force") == 0
    assert run(7) == 0  # the very same files
    assert run(8) == 78
