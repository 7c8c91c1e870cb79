"""Tracks for a map cycle's generators: drawn from a seed, written on demand, bounded on the disk."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.simulator.tracks.track_design import TrackDesign, left, straight
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track
from trackmania_rl.track import map_sources
from trackmania_rl.track.game_map import load_game_map
from trackmania_rl.track.map_sources import (
    ORIGIN,
    GeneratedMaps,
    MapSource,
    check_map_sources,
    generated_track,
    generator_key,
    track_of,
)


@pytest.fixture
def entry():
    generator = {"difficulty": (0.2, 0.6), "first_seed": 7, "last_seed": 11}
    return MapEntry(map_name="made", generator=generator, is_explo=True, fill_buffer=True, repeat=3)


def test_a_drawn_map_is_a_recipes_track_under_the_entrys_name(entry, repository_root, tmp_path):
    maps = GeneratedMaps(tmp_path / "tracks", np.random.SeedSequence(1))
    drawn = maps.draw(entry)
    assert (drawn.map_name, drawn.is_explo, drawn.fill_buffer, drawn.generator) == ("made", True, True, None)
    MapEntry.model_validate(drawn.model_dump())
    recipe = TrackRecipe.from_name(Path(drawn.map_path).stem)
    assert 7 <= recipe.seed <= 11
    assert 0.2 <= recipe.difficulty <= 0.6
    expected_m = generate_track(recipe).laid_out.line_m
    np.testing.assert_array_equal(np.load(drawn.reference_line), expected_m)
    track = load_track(Path(drawn.map_path))
    assert track.finish_station_m == 0.5 * (len(expected_m) - 1)
    observation = load_settings(repository_root / "config_files" / "config.py").observation
    assert load_game_map(drawn, Path("/elsewhere"), observation).name == "made"


def test_files_are_bounded_and_those_used_last_stay(tmp_path):
    folder = tmp_path / "tracks"
    folder.mkdir()
    for name in ("of_before.toml", "of_before_0.5m.npy", "of_the_user.toml"):
        (folder / name).write_text(f"# Written by {ORIGIN}" if name == "of_before.toml" else "")
    maps = GeneratedMaps(folder, np.random.SeedSequence(1), most_kept=3)

    def draw(seed):
        generator = {"difficulty": 0.3, "first_seed": seed, "last_seed": seed}
        one_track = MapEntry(map_name="made", generator=generator, is_explo=True, fill_buffer=True)
        return Path(maps.draw(one_track).map_path)

    first, second, _ = [draw(seed) for seed in range(3)]
    written_ns = first.stat().st_mtime_ns
    draw(0)  # used again, not written again
    kept = {first.stem, draw(3).stem, draw(4).stem}
    tracks = {f"{name}.toml" for name in kept} | {f"{name}_0.5m.npy" for name in kept}
    assert {path.name for path in folder.iterdir()} == tracks | {"of_the_user.toml"}
    assert first.stat().st_mtime_ns == written_ns
    assert not second.exists()
    assert draw(1) == second, "one that gave way is made anew"
    assert second.is_file()


def test_where_nothing_can_be_written_the_last_track_is_driven_once_more(entry, tmp_path, monkeypatch, caplog):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    maps = GeneratedMaps(tmp_path / "tracks", np.random.SeedSequence(1))
    with monkeypatch.context() as full:
        full.setattr(map_sources, "write_track", no_space)
        with pytest.raises(UserError, match=r"cannot write the generated track .*: No space left"):
            maps.draw(entry)
    last = [maps.draw(entry) for _ in range(2)][-1]
    with monkeypatch.context() as full:
        full.setattr(map_sources, "write_track", no_space)
        assert [maps.draw(entry) for _ in range(3)] == [last] * 3
    assert "driven once more" in caplog.text
    assert maps.draw(entry) != last


def entry_of(part, **changes):
    return MapEntry(map_name="own", generator=part, **{"is_explo": True, "fill_buffer": True, **changes})


def test_a_source_of_a_users_own_is_one_class(tmp_path):
    maps = GeneratedMaps(tmp_path / "tracks", np.random.SeedSequence(1))
    drawn = [maps.draw(entry_of("examples.bends:Bends")) for _ in range(12)]
    names = [Path(entry.map_path).stem for entry in drawn]
    assert names == [name for name in names[::4] for _ in range(4)], "four races on each"
    assert len({*names}) == 3
    assert all(load_track(Path(entry.map_path)).finish_station_m > 100 for entry in drawn)
    continued = GeneratedMaps(
        tmp_path / "others", np.random.SeedSequence(1), n_begun={generator_key("examples.bends:Bends"): 4}
    )
    assert Path(continued.draw(entry_of("examples.bends:Bends")).map_path).stem == names[4]


class OftenFails(MapSource):
    """Every other track fails to be made, or runs into itself."""

    n_drawn = 0

    def draw(self, rng):
        self.n_drawn += 1
        if self.n_drawn == 2:
            return self.tracks[0]
        turn_deg = 330 if self.n_drawn % 4 == 0 else 90
        return TrackDesign(f"{self.n_drawn}", "", (straight(50), left(turn_deg, radius_m=30), straight(100)))


def test_a_source_that_fails_at_times_costs_a_track_and_no_collector(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(map_sources, "map_source", lambda _: OftenFails())
    maps = GeneratedMaps(tmp_path / "tracks", np.random.SeedSequence(1))
    names = [Path(maps.draw(entry_of("my_tracks:OftenFails")).map_path).stem for _ in range(5)]
    assert names == ["1", "1", "3", "3", "5"]
    assert "OftenFails.draw fails: AttributeError" in caplog.text
    assert caplog.text.count("driven once more") == 2


def test_a_run_finds_its_tracks_by_name(tmp_path):
    """A page or film has a track's name only: a file in the run, or a recipe, from which the track is made again."""
    maps = GeneratedMaps(tmp_path / "generated_tracks" / "collector-0", np.random.SeedSequence(1))
    drawn = Path(maps.draw(entry_of("examples.bends:Bends")).map_path)
    assert generated_track(drawn.stem, tmp_path) == str(drawn)
    recipe = TrackRecipe(3, 0.0)
    track = track_of(generated_track(recipe.name, tmp_path))
    np.testing.assert_allclose(track.line_m, generate_track(recipe).laid_out.line_m, atol=1e-3)
    for name in ("valley", f"../collector-0/{drawn.stem}", "*", ""):
        assert generated_track(name, tmp_path) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ZeroDivisionError('nothing left')", "draw fails: ZeroDivisionError: nothing left"),
        ("return 'oval'", "returned a str in place of a TrackDesign"),
        ("pass\n    races_per_track = 0", "races_per_track is 0, not 1 or more"),
        ("return TrackDesign('a/b', '', (straight(100),))", "a generated track's name 'a/b'"),
        ("return TrackDesign('loop', '', (straight(50), left(330, radius_m=30), straight(100)))", "loop"),
    ],
)
def test_a_source_that_does_not_work_is_refused_before_any_race(body, message, repository_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = f"broken_{abs(hash(body))}"
    (tmp_path / f"{module}.py").write_text(
        "from trackmania_rl.simulator.tracks.track_design import TrackDesign, left, straight\n"
        "from trackmania_rl.track.map_sources import MapSource\n"
        f"class Broken(MapSource):\n    def draw(self, rng):\n        {body}\n"
    )
    cycle = [{"map_name": "own", "generator": f"{module}:Broken", "is_explo": True, "fill_buffer": True}]
    settings = load_settings(repository_root / "config_files" / "config.py", {"map_cycle": cycle})
    with pytest.raises(UserError, match=message):
        check_map_sources(settings)
