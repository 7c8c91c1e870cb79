"""Greedy races driven many at a time are those that are driven one by one."""

from pathlib import Path

from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.track.named_maps import map_entries
from trackmania_rl.training.evaluation import evaluate_map, first_races, load_driver

MAPS = ("ring", "valley", "kart", "jump", "speedway")


def test_they_are_the_same_as_one_by_one(repository_root: Path) -> None:
    driver = load_driver(repository_root / "drivers" / "ring.driver")
    maps = repository_root / "maps"
    entries = map_entries(driver.settings, maps, MAPS)
    together = {entry.map_name: stats for entry, stats in first_races(driver, maps, entries, n_at_a_time=2)}
    assert sorted(together) == sorted(MAPS)
    games = InProcessGames(1, driver.settings.game, driver.settings.observation, maps)
    for entry in entries:
        (alone,) = evaluate_map(driver, games, entry, 1).races
        stats = together[entry.map_name]
        assert (stats["race_finished"], stats["race_time_ms"]) == (alone.race_finished, alone.race_time_ms)
        assert stats["meters"] == alone.meters
    assert together["ring"]["race_finished"]
