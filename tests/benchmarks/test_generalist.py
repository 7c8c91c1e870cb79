"""The benchmark on unseen tracks: races are kept, another driver is refused, and it tells where races ended."""

import json
from pathlib import Path

import pytest

from benchmarks.driving.score import read_yardsticks
from benchmarks.generalist.specialists import kept_times_ms, ratios, specialists_times_ms
from benchmarks.generalist.unseen_races import UnseenRace, drive, keep, kept_races, road_before
from trackmania_rl.errors import UserError
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry.learning_summary import NEEDED_KEYS
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


def test_a_line_that_a_kill_cut_short_is_driven_again(tmp_path: Path) -> None:
    file = tmp_path / "races.jsonl"
    races = [UnseenRace(0.3, seed, True, 20_000 + seed, 700.0, None, "") for seed in range(3)]
    for race in races:
        keep(file, "mine", race)
    content = file.read_bytes()
    for n_bytes in range(len(content) + 1):
        file.write_bytes(content[:n_bytes])
        n_lines = content[:n_bytes].count(b"\n")
        assert list(kept_races(file, "mine").values()) == races[: max(n_lines - 1, 0)]
        for race in races[max(n_lines - 1, 0) :]:
            keep(file, "mine", race)
        assert file.read_bytes() == content


def test_times_are_held_against_those_of_specialists(tmp_path: Path) -> None:
    def trained(track: str, seed: int, last_ms: list[int | None]) -> None:
        name = f"default_{track}_seed{seed}"
        note = {"track": track, "name": name, "is_complete": True, "started": name}
        (tmp_path / "runs").mkdir(exist_ok=True)
        (tmp_path / "runs" / f"{name}.json").write_text(json.dumps(note))
        (tmp_path / "save" / name).mkdir(parents=True)
        races = [
            dict.fromkeys(NEEDED_KEYS, 1)
            | {
                "map": track,
                "is_explo": is_explo,
                "race_finished": time_ms is not None,
                "race_time_ms": time_ms or 9_000,
            }
            for time_ms in last_ms
            for is_explo in (False, True)
        ]
        (tmp_path / "save" / name / "races.jsonl").write_text("".join(f"{json.dumps(race)}\n" for race in races))

    trained("generated_0.300_100000", 0, [None, *[20_000] * 4, 20_200, *[30_000] * 5])
    trained("generated_0.300_100001", 0, [*[20_000] * 5, *[None] * 5])
    trained("generated_0.500_100000", 0, [20_000] * 9)
    trained("generated_0.500_100001", 0, [*[20_000] * 5, 21_000, *[None] * 4])
    times_ms = specialists_times_ms(tmp_path)
    assert times_ms == {"generated_0.300_100000": 25_100, "generated_0.500_100001": 20_500}, "of the last ten races"
    races = [UnseenRace(0.3, 100_000 + number, True, 30_120, 700.0, None, "") for number in range(2)]
    assert ratios(races, times_ms) == pytest.approx([1.2])
    with pytest.raises(UserError, match="holds no complete training"):
        specialists_times_ms(tmp_path / "nowhere")


def test_the_kept_specialists_are_those_of_the_first_tracks(repository_root: Path) -> None:
    first = {TrackRecipe(100_000 + number, difficulty).name for difficulty in (0.3, 0.5, 0.8) for number in range(5)}
    assert kept_times_ms().keys() == first
    assert read_yardsticks(repository_root / "benchmarks" / "generalist" / "yardsticks.json", sorted(first))


def test_what_is_special_about_a_road_is_told(repository_root: Path) -> None:
    maps = repository_root / "maps"
    assert road_before(maps / "valley.toml", 50.0) == "plain road"
    assert road_before(maps / "jump.toml", 135.0) == "drop beside, gap"
