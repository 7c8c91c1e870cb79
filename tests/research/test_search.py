"""The search over settings: its space, its trials, their files, and the command with Ray."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.driving.score import read_yardsticks
from benchmarks.driving.variants import Variant, find_tracks
from research.search.outcome import command_against_default, write_best
from research.search.space import Space, read_space, scaled
from research.search.trial import Plan, Trial, run_watched
from tests.keep_games_command import wait_until
from tests.research.fake_training import RACE_MS, fake_training, settings_of
from tests.run_log import write_races
from trackmania_rl.errors import UserError
from trackmania_rl.runs.reading import find_manifests, load_checkpoint
from trackmania_rl.settings import changed_settings, load_settings

ReadSpace = Callable[..., Space]


@pytest.fixture
def read(tmp_path: Path, repository_root: Path) -> ReadSpace:
    """`read(text, *overrides, clones=True)`: the space of a file with this text, around the default."""

    def read_text(text: str, *overrides: str, clones: bool = True) -> Space:
        file = tmp_path / "space.toml"
        file.write_text(text)
        return read_space(file, repository_root / "config_files" / "config.py", overrides, clones=clones)

    return read_text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('"lr_shedule*" = {low = 0.5, high = 2}', "did you mean lr_schedule?"),
        ("batch_size = {low = 0, high = 16}", "batch_size = 0: input should be greater than 0"),
        ("batch_size = {low = 16, high = 8}", "low = 16 is not below high = 8"),
        ("soft_update_tau = {low = 0, high = 1, log = true}", "log = true is for numbers above 0"),
        ("lr_schedule = {low = 0.5, high = 2}", 'multiply it: "lr_schedule*"'),
        ('lr_schedule = {choices = [[[0, 1]], [[0, 2]]]}\n"lr_schedule*" = {low = 0.5, high = 2}', "is there twice"),
        (
            '"epsilon_schedule*" = {low = 0.5, high = 2}',
            "epsilon_schedule.0.1 = 2.0: input should be less than or equal to 1",
        ),
        ("seed = {low = 0, high = 9}", "seed is each trial's or each machine's own"),
        ("float_hidden_dim = {low = 8, high = 16}", "shapes networks or memory, which with pbt are copied"),
        ("batch_size = {choices = [8]}", "at least 2 items"),
        ("batch_size = 8", "write {low = 0.1, high = 10.0, log = true}"),
        ("batch_size = ", "space.toml"),
        ("", "names no setting"),
    ],
)
def test_unsearchable_settings_are_refused(read: ReadSpace, text: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        read(text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_drawn_values_become_settings(read: ReadSpace) -> None:
    assert scaled(((0, 0.5), (70, 0.25)), 3.0) == ((0, 1.5), (70, 0.75)), "frame counts stay"
    assert scaled(((0, 7), (30, 10)), 1.5) == ((0, 10), (30, 15)), "whole numbers stay whole"
    space = read(
        '"lr_schedule*" = {low = 0.5, high = 2.0}', "schedule_stretch=2", "lr_schedule=((0, 1e-3), (50, 1e-4))"
    )
    assert space.settings_of({"lr_schedule*": 2.0})["lr_schedule"] == ((0, 2e-3), (50, 2e-4)), "not stretched twice"
    space = read("batch_size = {low = 8, high = 16}\nsoft_update_tau = {low = 0.01, high = 0.5}")
    assert space.within({"batch_size": 16.9, "soft_update_tau": 0.001}) == {"batch_size": 16, "soft_update_tau": 0.01}
    assert space.within({"batch_size": 9.4})["batch_size"] == 9


def test_the_spaces_that_ship_can_be_searched_by_pbt(repository_root: Path) -> None:
    files = sorted((repository_root / "research" / "search" / "spaces").glob("*.toml"))
    assert files
    for file in files:
        read_space(file, repository_root / "config_files" / "config.py", (), clones=True)


DRAWN = {"lr_schedule*": 1.0, "soft_update_tau": 0.02}
MakePlan = Callable[..., Plan]


@pytest.fixture
def make_plan(tmp_path: Path, repository_root: Path) -> MakePlan:
    """`make_plan(name="search", tracks=("valley",), more="")`: a plan whose folder is there."""

    def make(name: str = "search", tracks: tuple[str, ...] = ("valley",), more: str = "") -> Plan:
        file = tmp_path / "space.toml"
        file.write_text(
            '"lr_schedule*" = {low = 0.1, high = 10.0, log = true}\n'
            f"soft_update_tau = {{low = 0.01, high = 0.1}}\n{more}"
        )
        config, output = repository_root / "config_files" / "config.py", tmp_path / name
        output.mkdir()
        files = tuple(find_tracks(tracks, output / "generated"))
        yardsticks = read_yardsticks(repository_root / "benchmarks" / "driving" / "yardsticks.json", tracks)
        space = read_space(file, config, (), clones=True)
        return Plan(space, config, ("batch_size=32",), files, yardsticks, 7, 90.0, output, tmp_path)

    return make


def test_the_command_trains_with_the_drawn_settings(make_plan: MakePlan) -> None:
    plan = make_plan(more="constant_reward_per_ms = {low = -0.002, high = -0.001}")
    trial = Trial(plan, 3, {**DRAWN, "lr_schedule*": 2.0, "constant_reward_per_ms": -0.0015}, fake_training)
    command, settings = trial.command, settings_of(trial.command)
    assert command[0] == sys.executable
    assert command[command.index("--output-folder") + 1] == str(plan.output)
    assert "--update-config" in command  # a clone's settings are not those of its donor
    assert command[command.index("--accept-change") + 1] == "constant_reward_per_ms"
    assert settings["run_name"] == "trial_00003"
    assert settings["seed"] == 7
    assert settings["batch_size"] == 32
    assert settings["soft_update_tau"] == 0.02
    assert settings["lr_schedule"][0] == (0, 2e-3)  # type: ignore[index]
    assert [entry["is_explo"] for entry in settings["map_cycle"]] == [True, False]  # type: ignore[attr-defined]


def test_each_piece_goes_on_and_is_judged_by_its_own_races(make_plan: MakePlan) -> None:
    plan = make_plan()
    trial = Trial(plan, 0, DRAWN, fake_training)
    trial.begin(None)
    first = trial.drive()
    better = Trial(plan, 0, {**DRAWN, "lr_schedule*": 10.0}, fake_training).drive()
    assert first.frames == 100
    assert better.frames == 200
    assert first.n_greedy == better.n_greedy == 1
    assert better.score == pytest.approx(first.score / (1 + 2.302585), rel=1e-3)
    assert first.score * RACE_MS == pytest.approx(21_000, rel=0.1)  # the yardstick's time on valley


def newest_files(trial: Trial) -> dict[str, bytes]:
    """Content of the files of a trial's newest checkpoint."""
    return {file.name: file.read_bytes() for file in next(iter(find_manifests(trial.folder))).iterdir()}


def test_a_clone_begins_with_its_donors_weights_to_the_byte(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan()
    donor, clone = Trial(plan, 1, DRAWN, fake_training), Trial(plan, 2, {**DRAWN, "lr_schedule*": 3.0}, fake_training)
    for trial in (donor, clone):
        trial.begin(None)
        trial.drive()
    handed_on = tmp_path / "handed_on"
    handed_on.mkdir()
    donor.hand_on(handed_on)
    files, before = newest_files(donor), newest_files(clone)
    assert before["weights.safetensors"] != files["weights.safetensors"]
    donor.drive()  # goes on meanwhile, and deletes old checkpoints
    donor.drive()
    clone.begin(handed_on)
    assert newest_files(clone) == files
    assert len(find_manifests(clone.folder)) == 1  # nothing is left of its own learning
    state = load_checkpoint(clone.folder).state
    assert state is not None
    begins_with = state["agent"]["online"]["w"]
    assert clone.drive().frames == 200
    after = load_checkpoint(clone.folder).state
    assert after is not None
    torch.testing.assert_close(after["agent"]["online"]["w"], begins_with + 1)


def test_a_piece_lasts_from_its_first_race_on_and_ends_in_order(tmp_path: Path, repository_root: Path) -> None:
    said, log = tmp_path / "said.txt", tmp_path / "run.sqlite"
    race = {"wall_s": 1.0, "frames_total": 1, "map": "valley", "is_explo": True}
    write_races(log, [race])
    script = (
        "import pathlib, sys, time; from tests.run_log import write_races; time.sleep(1); "
        f"write_races(pathlib.Path(sys.argv[1]), [{race | {'session': 2}}]); print('drives', flush=True); "
        "sys.stdin.buffer.read(); print('ends in order')"
    )
    began_s = time.monotonic()
    assert run_watched([sys.executable, "-c", script, str(log)], said, repository_root, log, 0.5) == 0
    assert time.monotonic() - began_s > 1.5  # the piece begins with its first race
    assert said.read_text() == "drives\nends in order\n"
    assert run_watched([sys.executable, "-c", "raise SystemExit(3)"], said, tmp_path, log, 60.0) == 3


def test_the_best_is_a_configuration_and_a_command_compares_it_with_the_default(make_plan: MakePlan) -> None:
    plan = make_plan("the search")
    file = write_best(plan, {"lr_schedule*": 2.0, "soft_update_tau": 0.05}, 0.9123, "trial_00003")
    text = file.read_text()
    assert 'based_on = "config.py"' in text
    assert "score 0.9123" in text
    changed = changed_settings(load_settings(plan.config_file), load_settings(file))
    assert set(changed) == {"lr_schedule", "soft_update_tau"}
    assert changed["soft_update_tau"][1] == 0.05
    assert changed["lr_schedule"][1][0] == (0, 2e-3)
    words = shlex.split(command_against_default(plan, file, 2.5))
    assert words[:4] == ["python", "benchmarks/driving/run.py", "--tracks", "valley"]
    assert words[words.index("--minutes") + 1] == "3"
    variants = [words[at + 1] for at, word in enumerate(words) if word == "--variant"]
    default, best = (Variant.read(each, plan.config_file, [words[words.index("--set") + 1]]) for each in variants)
    assert (default.name, default.config_file) == ("default", plan.config_file)
    assert (best.name, best.config_file) == ("best", file), "though there is a space in its path"
    assert best.overrides == ("batch_size=32",)


NO_RAY = "ray is not installed: python -m pip install -r requirements-cluster.txt"
SPACE = '"lr_schedule*" = {low = 0.1, high = 10.0, log = true}\nbatch_size = {low = 8, high = 64}\n'
TINY = (
    *("--set", "use_torch_compile=False", "--set", "float_hidden_dim=11", "--set", "dense_hidden_dimension=18"),
    *("--set", "cutoff_race_longer_than_ms=4000", "--set", "memory_size_start_learn_schedule=((0, 40),)"),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_interrupted_search_of_real_trainings_goes_on(tmp_path: Path, repository_root: Path) -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    space, output = tmp_path / "space.toml", tmp_path / "search"
    space.write_text(SPACE)
    options = ["--space", str(space), "--trials", "2", "--jobs", "2", "--minutes", "0.4", "--pieces", "2", *TINY]
    command = [sys.executable, "-u", "-m", "research.search", *options, "--output", str(output)]
    printed_file = tmp_path / "printed.txt"
    with printed_file.open("w") as printed:
        first = subprocess.Popen(command, cwd=repository_root, stdout=printed, stderr=printed)
        try:
            piece = re.compile(r"trial_0000\d: 1/2, score")
            wait_until(lambda: first.poll() is not None or piece.search(printed_file.read_text()), "piece", 400)
            first.send_signal(signal.SIGINT)
            assert first.wait(200) == 1, printed_file.read_text()
        finally:
            first.kill()
    assert "the same command goes on" in printed_file.read_text()
    before = json.loads((output / "trials.json").read_text())

    other = subprocess.run([*command, "--seed", "1"], cwd=repository_root, capture_output=True, text=True, check=False)
    assert "was asked for otherwise" in other.stderr

    again = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr[-3000:]
    trials = json.loads((output / "trials.json").read_text())
    assert {trial["status"] for trial in trials.values()} == {"complete"}
    for name, trial in trials.items():
        n_before = len(before[name]["scores"]) if name in before else 0
        assert trial["scores"][:n_before] == (before[name]["scores"] if name in before else [])  # nothing is done again
        assert len(trial["scores"]) >= 2
        assert (output / "save" / name / "checkpoints").is_dir()
    assert (output / "best" / "best.py").is_file()
    assert "benchmarks/driving/run.py" in again.stdout
