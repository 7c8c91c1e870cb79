"""The yardsticks: every stored plan gives its time, and the planner's command keeps the best plan that it knows."""

import json
from pathlib import Path

import pytest

from benchmarks.driving.score import read_yardsticks
from benchmarks.driving.tracks import find_tracks
from research.planner.__main__ import main
from research.planner.driver_tuning import scripted_race
from research.planner.plans import actions_of_script, replay_ms, script_of_actions
from research.planner.racing import ACTION_MS, drive_actions
from research.planner.wheel import controls_of_script, drive_controls, script_of_controls
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, FAST_DRIVER, DriverSettings
from trackmania_rl.simulator.tracks.track_file import load_track

SHIPPED = ("valley", "speedway", "hills", "kart", "rally", "jump", "ring")
GENERATED = {"generated_0.300_5": "generated:0.3:5", "generated_0.600_7": "generated:0.6:7"}


@pytest.fixture(scope="module")
def records(repository_root) -> Path:
    return repository_root / "research" / "planner" / "records"


@pytest.fixture(scope="module")
def entries(repository_root) -> dict:
    file = repository_root / "benchmarks" / "driving" / "yardsticks.json"
    return json.loads(file.read_text(encoding="utf-8"))


def test_every_shipped_track_has_yardsticks(entries):
    assert {*SHIPPED, *GENERATED} == set(entries)


@pytest.mark.parametrize("name", [*SHIPPED, *GENERATED])
def test_records_replay_to_their_times_exactly(name, entries, records, tmp_path):
    entry = entries[name]
    [file] = find_tracks([GENERATED.get(name, name)], tmp_path)
    track = load_track(file)
    script = (records / f"{name}.inputs").read_text(encoding="utf-8")
    assert replay_ms(track, script) == entry["record_ms"]
    actions = actions_of_script(script, entry["record_ms"] // ACTION_MS + 1)  # an agent's keys at an agent's times
    assert drive_actions(track, actions).finish_ms == entry["record_ms"]
    assert script_of_actions(actions) == script
    assert entry["record_ms"] <= entry["scripted_tuned_ms"] <= entry["scripted_fast_ms"]
    assert entry["length_m"] == pytest.approx(track.finish_station_m, abs=0.1)
    if name in GENERATED:
        return
    script = (records / f"{name}.wheel.inputs").read_text(encoding="utf-8")
    assert replay_ms(track, script) == entry["wheel_ms"] <= entry["record_ms"]
    controls = controls_of_script(script, entry["wheel_ms"] // ACTION_MS + 1)
    assert drive_controls(track, controls).finish_ms == entry["wheel_ms"]
    assert script_of_controls(controls) == script
    drivers = {
        "scripted_careful_ms": CAREFUL_DRIVER,
        "scripted_fast_ms": FAST_DRIVER,
        "scripted_tuned_ms": DriverSettings(**entry["scripted_tuned_settings"]),
    }
    for key, settings in drivers.items():
        race = scripted_race(track, settings)
        assert race is not None
        assert race[0] == entry[key], key


@pytest.fixture
def plan(repository_root, tmp_path):
    """`plan("a", 3)`: the command's exit code after 3 rounds on a track that is not shipped, in folder a."""
    for name in ("jump.toml", "jump_0.5m.npy"):
        (tmp_path / name.replace("jump.", "mine.")).write_bytes((repository_root / "maps" / name).read_bytes())

    def run(folder: str, rounds: int, *options: str) -> int:
        words = [str(tmp_path / "mine.toml"), "--rounds", str(rounds), "--output-folder", str(tmp_path / folder)]
        return main([*words, "--trials", "30", "--tuning-drives", "9", *options])

    return run


@pytest.mark.slow
def test_the_command_makes_yardsticks_keeps_them_and_repeats_itself(plan, tmp_path):
    def record(folder: str) -> tuple[bytes, int]:
        yardstick = read_yardsticks(tmp_path / folder / "yardsticks.json", ["mine"])["mine"]
        assert yardstick.record_ms <= yardstick.scripted_tuned_ms
        return (tmp_path / folder / "records" / "mine.inputs").read_bytes(), yardstick.record_ms

    assert plan("a", 8) == plan("b", 8) == 0  # a whole cycle
    before = record("a")
    assert before == record("b")
    assert plan("a", 0) == 0
    assert record("a") == before
    assert plan("a", 1) == 0
    assert record("a")[1] <= before[1]


def test_the_search_begins_with_another_race(plan, records, entries, tmp_path, capsys):
    def mine() -> dict:
        return json.loads((tmp_path / "out" / "yardsticks.json").read_text(encoding="utf-8"))["mine"]

    kept = tmp_path / "out" / "records" / "mine.inputs"
    kept.parent.mkdir(parents=True)
    kept.write_text("0.00 press up\n", encoding="utf-8")
    assert plan("out", 0, "--keys-only", "--begin-with", str(records / "jump.inputs")) == 0
    assert "does not finish" in capsys.readouterr().out, "the plan of another track"
    assert mine()["record_ms"] == entries["jump"]["record_ms"]
    assert mine()["record_by"] == "driver and search"
    (tmp_path / "stands.inputs").write_text("0.00 press down\n", encoding="utf-8")
    assert plan("out", 0, "--begin-with", str(tmp_path / "stands.inputs")) == 1
    assert "stands.inputs does not finish on mine" in capsys.readouterr().err
    assert main(["nowhere", "--rounds", "0"]) == 1
    assert "nowhere: no such track file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_record_with_a_wheel_begins_with_that_of_keys(plan, records, tmp_path, capsys):
    def mine() -> dict:
        return json.loads((tmp_path / "out" / "yardsticks.json").read_text(encoding="utf-8"))["mine"]

    assert plan("out", 1, "--wheel") == 1
    assert "search without --wheel first" in capsys.readouterr().err
    assert plan("out", 0, "--begin-with", str(records / "jump.inputs")) == 0
    assert plan("out", 0, "--wheel") == 0
    assert mine()["wheel_ms"] == mine()["record_ms"]
    assert plan("out", 2, "--wheel") == 0
    assert mine()["wheel_ms"] <= mine()["record_ms"]
    assert plan("out", 0) == 0
    assert "wheel_search_s" in mine(), "a search with keys keeps it"
