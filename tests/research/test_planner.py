"""The yardsticks: every stored plan gives its time, and a search never loses what it began with."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER, FAST_DRIVER, DriverSettings
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe, generate_track
from trackmania_rl.simulator.tracks.world import Track, build_ribbon

SHIPPED = ("valley", "speedway", "hills", "kart", "rally", "jump", "ring")
GENERATED = ("generated_0.300_5", "generated_0.600_7")


@pytest.fixture(scope="module")
def records(repository_root) -> Path:
    return repository_root / "research" / "planner" / "records"


@pytest.fixture(scope="module")
def entries(repository_root) -> dict:
    file = repository_root / "benchmarks" / "driving" / "yardsticks.json"
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def bend() -> Track:
    """A right-angled bend between two short straights, two checkpoints."""
    steps_m = np.concatenate([np.full(140, 0.0), np.full(60, np.pi / 2 / 60), np.full(110, 0.0)])
    heading_rad = np.cumsum(steps_m)
    line_m = np.zeros((len(heading_rad) + 1, 3))
    line_m[1:, 0], line_m[1:, 2] = np.cumsum(0.5 * np.sin(heading_rad)), np.cumsum(0.5 * np.cos(heading_rad))
    return Track("bend", build_ribbon(line_m), (50.0, 110.0), 155.0)


def scripted_plan(track: Track, settings: DriverSettings = CAREFUL_DRIVER) -> np.ndarray:
    from research.planner.driver_tuning import scripted_race

    race = scripted_race(track, settings)
    assert race is not None
    return race[1]


def test_every_shipped_track_has_yardsticks(entries):
    assert {*SHIPPED, *GENERATED} == set(entries)


def stored_track(name: str, repository_root: Path) -> Track:
    recipe = TrackRecipe.from_name(name)
    if recipe is None:
        return load_track(repository_root / "maps" / f"{name}.toml")
    with tempfile.TemporaryDirectory() as made:
        generate_track(recipe).write(Path(made) / f"{name}.toml")
        return load_track(Path(made) / f"{name}.toml")


@pytest.mark.parametrize("name", [*SHIPPED, *GENERATED])
def test_a_record_replays_to_its_time_exactly(name, entries, records, repository_root):
    from research.planner.plans import actions_of_script, replay_ms, script_of_actions
    from research.planner.racing import ACTION_MS, drive_actions

    entry = entries[name]
    track = stored_track(name, repository_root)
    script = (records / f"{name}.inputs").read_text(encoding="utf-8")
    assert replay_ms(track, script) == entry["record_ms"]
    actions = actions_of_script(script, entry["record_ms"] // ACTION_MS + 1)  # an agent's keys at an agent's times
    assert drive_actions(track, actions).finish_ms == entry["record_ms"]
    assert script_of_actions(actions) == script
    assert entry["record_ms"] <= entry["scripted_tuned_ms"] <= entry["scripted_fast_ms"]
    assert entry["length_m"] == pytest.approx(track.finish_station_m, abs=0.1)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_record_with_a_wheel_replays_to_its_time_exactly(name, entries, records, repository_root):
    from research.planner.plans import replay_ms
    from research.planner.racing import ACTION_MS
    from research.planner.wheel import controls_of_script, drive_controls, script_of_controls

    wheel_ms = entries[name]["wheel_ms"]
    track = stored_track(name, repository_root)
    script = (records / f"{name}.wheel.inputs").read_text(encoding="utf-8")
    assert replay_ms(track, script) == wheel_ms <= entries[name]["record_ms"]
    controls = controls_of_script(script, wheel_ms // ACTION_MS + 1)
    assert drive_controls(track, controls).finish_ms == wheel_ms
    assert script_of_controls(controls) == script


@pytest.mark.parametrize("name", SHIPPED)
def test_the_scripted_drivers_take_their_stored_times(name, entries, repository_root):
    from research.planner.driver_tuning import scripted_race

    track = load_track(repository_root / "maps" / f"{name}.toml")
    drivers = {
        "scripted_careful_ms": CAREFUL_DRIVER,
        "scripted_fast_ms": FAST_DRIVER,
        "scripted_tuned_ms": DriverSettings(**entries[name]["scripted_tuned_settings"]),
    }
    for key, settings in drivers.items():
        race = scripted_race(track, settings)
        assert race is not None
        assert race[0] == entries[name][key], key


def test_a_script_gives_back_its_actions():
    from research.planner.plans import actions_of_script, script_of_actions

    actions = np.random.default_rng(3).integers(0, 12, 77).astype(np.int8)
    np.testing.assert_array_equal(actions_of_script(script_of_actions(actions), 77), actions)


@pytest.mark.parametrize("script", ["0.01 press up", "0.00 steer 65536", "0.00 press left; 0.00 press right"])
def test_a_script_of_other_inputs_than_actions_is_refused(script):
    from research.planner.plans import actions_of_script

    with pytest.raises(UserError, match="none of an agent's actions"):
        actions_of_script(script, 5)


def test_an_action_sequence_gives_the_same_race_as_its_script(bend):
    from research.planner.plans import replay_ms, script_of_actions
    from research.planner.racing import drive_actions

    plan = scripted_plan(bend)
    drive = drive_actions(bend, plan)
    assert drive.n_actions == len(plan) == len(drive.states.cars)
    assert drive.finish_ms // 50 + 1 == drive.n_actions
    assert replay_ms(bend, script_of_actions(plan)) == drive.finish_ms


def test_an_unfinished_race_has_no_time(bend):
    from research.planner.racing import drive_actions

    assert drive_actions(bend, np.zeros(11, dtype=np.int8)).finish_ms == -1


def test_a_script_that_goes_on_for_days_is_given_up(bend):
    from research.planner.plans import replay_ms

    assert replay_ms(bend, "25:00:00.00 press up\n") is None


def test_the_line_driver_begins_as_the_scripted_driver(bend):
    from research.planner.line_search import drive_line, line_driver

    actions = drive_line(bend, line_driver(bend, FAST_DRIVER), 300)
    np.testing.assert_array_equal(actions, scripted_plan(bend, FAST_DRIVER))
    assert len(drive_line(bend, line_driver(bend, FAST_DRIVER), 7)) == 0


@pytest.mark.parametrize("tolerance_ms", [0.0, 60.0])
@pytest.mark.parametrize("n_donors", [0, 3])
def test_searching_the_line_is_repeatable_and_never_for_the_worse(bend, tolerance_ms, n_donors):
    from research.planner.line_search import N_DRAWS, drive_line, improve_line, line_driver
    from research.planner.racing import drive_actions

    driver = line_driver(bend, CAREFUL_DRIVER)
    donors = [line_driver(bend, FAST_DRIVER)] * n_donors
    draws = np.random.default_rng(5).random((300, N_DRAWS))
    (best, actions), (again, actions_again) = (
        improve_line(bend, driver, donors, draws, np.full(300, tolerance_ms), 200.0, 300) for _ in range(2)
    )
    np.testing.assert_array_equal(actions, actions_again)
    np.testing.assert_array_equal(best.aside_m, again.aside_m)
    assert drive_actions(bend, actions).finish_ms < drive_actions(bend, scripted_plan(bend)).finish_ms
    assert not driver.aside_m.any(), "the driver that was given has changed"
    np.testing.assert_array_equal(drive_line(bend, best, 300), actions)


@pytest.mark.parametrize("tolerance_ms", [0.0, 60.0])
def test_changing_keys_is_repeatable_and_never_for_the_worse(bend, tolerance_ms):
    from research.planner import climbing
    from research.planner.racing import course_of, drive_actions

    plan = scripted_plan(bend)
    incumbent = drive_actions(bend, plan)
    draws = np.random.default_rng(7).random((500, climbing.N_DRAWS))
    first, again = (
        climbing.climb(course_of(bend), incumbent, plan, draws, np.full(500, tolerance_ms), 3.0) for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)
    drive = drive_actions(bend, first)
    assert 0 < drive.finish_ms < incumbent.finish_ms
    assert drive.n_actions == len(first)


def test_a_driver_is_read_as_it_was_written(bend, tmp_path):
    from research.planner import line_search

    driver = line_search.line_driver(bend, FAST_DRIVER)
    driver.aside_m[:] = np.linspace(-1.0, 1.0, len(driver.aside_m))
    file = tmp_path / "driver.npz"
    file.write_bytes(line_search.written_driver(driver))
    read = line_search.read_driver(file)
    assert read.settings == driver.settings
    for curve, expected in zip(read[1:], driver[1:], strict=True):
        np.testing.assert_array_equal(curve, expected)
    file.write_bytes(b"no archive")
    with pytest.raises(UserError, match="damaged"):
        line_search.read_driver(file)


@pytest.fixture
def jump_copy(repository_root, tmp_path) -> Path:
    """A track file that is none of the shipped ones."""
    for name in ("jump.toml", "jump_0.5m.npy"):
        (tmp_path / name.replace("jump.", "mine.")).write_bytes((repository_root / "maps" / name).read_bytes())
    return tmp_path / "mine.toml"


def test_the_command_makes_yardsticks_keeps_them_and_repeats_itself(jump_copy, tmp_path, capsys):
    from benchmarks.driving.score import read_yardsticks
    from research.planner.__main__ import main

    def run(folder: str, rounds: int) -> bytes:
        options = ["--trials", "30", "--tuning-drives", "9", "--output-folder", str(tmp_path / folder)]
        assert main([str(jump_copy), "--rounds", str(rounds), *options]) == 0
        return (tmp_path / folder / "records" / "mine.inputs").read_bytes()

    assert run("a", 8) == run("b", 8)  # a whole cycle
    before = read_yardsticks(tmp_path / "a" / "yardsticks.json", ["mine"])["mine"]
    assert before.record_ms <= before.scripted_tuned_ms
    kept = run("a", 0)
    assert kept == (tmp_path / "b" / "records" / "mine.inputs").read_bytes()
    run("a", 1)
    assert read_yardsticks(tmp_path / "a" / "yardsticks.json", ["mine"])["mine"].record_ms <= before.record_ms


def test_a_plan_of_another_track_is_not_kept(jump_copy, tmp_path, capsys):
    from research.planner.__main__ import main

    plan = tmp_path / "out" / "records" / "mine.inputs"
    plan.parent.mkdir(parents=True)
    plan.write_text("0.00 press up\n", encoding="utf-8")
    options = ["--trials", "30", "--tuning-drives", "9", "--output-folder", str(tmp_path / "out")]
    assert main([str(jump_copy), "--rounds", "0", *options]) == 0
    assert "does not finish" in capsys.readouterr().out
    assert "rel up" in plan.read_text(encoding="utf-8")


def test_tracks_are_shipped_ones_files_and_generated_ones(jump_copy, tmp_path):
    from benchmarks.driving.tracks import find_tracks

    files = find_tracks(["kart", str(jump_copy), "generated:0.25:7-8"], tmp_path / "made")
    assert [file.stem for file in files] == ["kart", "mine", "generated_0.250_7", "generated_0.250_8"]
    assert all(file.is_file() for file in files)


def test_an_unknown_track_is_named(capsys):
    from research.planner.__main__ import main

    assert main(["nowhere", "--rounds", "0"]) == 1
    assert "nowhere: no such track file" in capsys.readouterr().err


def test_the_search_begins_with_another_race(jump_copy, records, entries, tmp_path, capsys):
    from research.planner.__main__ import main

    def mine() -> dict:
        return json.loads((tmp_path / "out" / "yardsticks.json").read_text(encoding="utf-8"))["mine"]

    options = ["--trials", "30", "--tuning-drives", "9", "--output-folder", str(tmp_path / "out"), "--keys-only"]
    command = [str(jump_copy), *options]
    assert main([*command, "--rounds", "0", "--begin-with", str(records / "jump.inputs")]) == 0
    assert mine()["record_ms"] == entries["jump"]["record_ms"]
    assert mine()["record_by"] == "driver and search"
    assert main([*command, "--rounds", "1"]) == 0
    assert mine()["record_ms"] <= entries["jump"]["record_ms"]
    assert mine()["record_by"] == "driver and search"
    assert mine()["search_s"] > 0.0
    (tmp_path / "stands.inputs").write_text("0.00 press down\n", encoding="utf-8")
    assert main([*command, "--rounds", "0", "--begin-with", str(tmp_path / "stands.inputs")]) == 1
    assert "stands.inputs does not finish on mine" in capsys.readouterr().err
    assert main(["jump", "kart", *options, "--begin-with", str(tmp_path / "stands.inputs")]) == 1
    assert "--begin-with is about one track" in capsys.readouterr().err


def test_controls_of_keys_drive_as_the_actions_do(bend):
    from research.planner.plans import script_of_actions
    from research.planner.racing import drive_actions
    from research.planner.wheel import controls_of_script, drive_controls, script_of_controls

    plan = scripted_plan(bend)
    controls = controls_of_script(script_of_actions(plan), len(plan))
    with_keys, with_wheel = drive_actions(bend, plan), drive_controls(bend, controls)
    assert with_wheel.finish_ms == with_keys.finish_ms
    assert with_wheel.overshoot_m == with_keys.overshoot_m
    np.testing.assert_array_equal(controls_of_script(script_of_controls(controls), len(plan)), controls)
    with pytest.raises(UserError, match="none of an agent's"):
        controls_of_script("0.01 press up", 5)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance_ms", [0.0, 60.0])
def test_turning_the_wheel_is_repeatable_and_never_for_the_worse(bend, tolerance_ms):
    from research.planner import wheel
    from research.planner.plans import replay_ms, script_of_actions

    plan = scripted_plan(bend)
    controls = wheel.controls_of_script(script_of_actions(plan), len(plan))
    before = controls.copy()
    draws = np.random.default_rng(9).random((500, wheel.N_DRAWS))
    first, again = (wheel.climb_with_wheel(bend, controls, draws, np.full(500, tolerance_ms), 3.0) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(controls, before)
    finish_ms = wheel.drive_controls(bend, first).finish_ms
    assert 0 < finish_ms < wheel.drive_controls(bend, controls).finish_ms
    assert replay_ms(bend, wheel.script_of_controls(first)) == finish_ms


def test_the_record_with_a_wheel_begins_with_that_of_keys(jump_copy, records, tmp_path, capsys):
    from research.planner.__main__ import main

    def mine() -> dict:
        return json.loads((tmp_path / "out" / "yardsticks.json").read_text(encoding="utf-8"))["mine"]

    options = ["--trials", "300", "--tuning-drives", "9", "--output-folder", str(tmp_path / "out")]
    wheel = [str(jump_copy), "--wheel", *options]
    assert main([*wheel, "--rounds", "1"]) == 1
    assert "search without --wheel first" in capsys.readouterr().err
    assert main([str(jump_copy), *options, "--rounds", "0", "--begin-with", str(records / "jump.inputs")]) == 0
    assert main([*wheel, "--rounds", "0"]) == 0
    assert mine()["wheel_ms"] == mine()["record_ms"]
    assert main([*wheel, "--rounds", "2"]) == 0
    assert mine()["wheel_ms"] <= mine()["record_ms"]
    assert main([str(jump_copy), *options, "--rounds", "0"]) == 0
    assert "wheel_search_s" in mine(), "a search with keys keeps it"
