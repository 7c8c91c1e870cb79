"""The benchmark on unseen tracks: races are kept, another driver is refused, and it tells where races ended."""

from pathlib import Path

import pytest

from benchmarks.generalist.unseen_races import drive, keep, kept_races, road_before
from trackmania_rl.errors import UserError
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.training.evaluation import load_driver


def test_races_are_kept_for_the_driver_that_drove_them(repository_root: Path, tmp_path: Path) -> None:
    driver = load_driver(repository_root / "drivers" / "ring.driver")
    recipes = [TrackRecipe(100_000 + number, 0.3) for number in range(3)]
    races = list(drive(driver, recipes, tmp_path, repository_root / "maps"))
    assert {(race.difficulty, race.seed) for race in races} == {(0.3, 100_000), (0.3, 100_001), (0.3, 100_002)}
    assert all(race.road == "" if race.is_finished else race.road != "" for race in races)
    file = tmp_path / "races.jsonl"
    assert kept_races(file, "mine") == {}
    for race in races:
        keep(file, "mine", race)
    assert kept_races(file, "mine") == {TrackRecipe(race.seed, race.difficulty): race for race in races}
    with pytest.raises(UserError, match="another driver"):
        kept_races(file, "somebody's")


def test_what_is_special_about_a_road_is_told(repository_root: Path) -> None:
    maps = repository_root / "maps"
    assert road_before(maps / "valley.toml", 50.0) == "plain road"
    assert road_before(maps / "jump.toml", 135.0) == "drop beside, gap"
