"""Tracks for a map cycle's generators: drawn from a seed, written on demand, bounded on the disk."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track
from trackmania_rl.track import generated_maps
from trackmania_rl.track.game_map import load_game_map
from trackmania_rl.track.generated_maps import GeneratedMaps


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


def test_files_are_bounded_and_those_used_last_stay(entry, tmp_path):
    folder = tmp_path / "tracks"
    folder.mkdir()
    for name in ("generated_0.300_99.toml", "generated_0.300_99_0.5m.npy", "of_the_user.toml"):
        (folder / name).write_text("")
    maps = GeneratedMaps(folder, np.random.SeedSequence(1), most_kept=3)
    recipes = [TrackRecipe(seed, 0.3) for seed in range(5)]
    for recipe in recipes[:3]:
        maps.concrete(entry, recipe)
    written_ns = (folder / f"{recipes[0].name}.toml").stat().st_mtime_ns
    maps.concrete(entry, recipes[0])  # used again, not written again
    for recipe in recipes[3:]:
        maps.concrete(entry, recipe)
    kept = {recipes[0].name, recipes[3].name, recipes[4].name}
    tracks = {f"{name}.toml" for name in kept} | {f"{name}_0.5m.npy" for name in kept}
    assert {path.name for path in folder.iterdir()} == tracks | {"of_the_user.toml"}
    assert (folder / f"{recipes[0].name}.toml").stat().st_mtime_ns == written_ns
    assert Path(maps.concrete(entry, recipes[1]).map_path).is_file(), "one that gave way is made anew"


def test_where_nothing_can_be_written_the_last_track_is_driven_once_more(entry, tmp_path, monkeypatch, caplog):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    maps = GeneratedMaps(tmp_path / "tracks", np.random.SeedSequence(1))
    with monkeypatch.context() as full:
        full.setattr(generated_maps, "generate_track", no_space)
        with pytest.raises(UserError, match=r"cannot write the generated track .*: No space left"):
            maps.draw(entry)
    last = [maps.draw(entry) for _ in range(2)][-1]
    with monkeypatch.context() as full:
        full.setattr(generated_maps, "generate_track", no_space)
        assert [maps.draw(entry) for _ in range(3)] == [last] * 3
    assert "driven once more" in caplog.text
    assert maps.draw(entry) != last
