"""A trial's command, its pieces, and what it hands on, with a training that takes no time."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from benchmarks.driving.score import read_yardsticks
from benchmarks.driving.tracks import find_tracks
from research.search.space import read_space
from research.search.trial import CLONES_FILE, Plan, Trial, TrialFailedError, run_watched, weights_of
from trackmania_rl.checkpoints import find_manifests, load_checkpoint

from .fake_training import RACE_MS, fake_training, settings_of

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


def test_the_command_trains_with_what_was_drawn(make_plan: MakePlan) -> None:
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


def test_several_tracks_are_driven_in_turns_and_their_scores_averaged(make_plan: MakePlan) -> None:
    plan = make_plan(tracks=("valley", "speedway"))
    trial = Trial(plan, 0, DRAWN, fake_training)
    cycle = settings_of(trial.command)["map_cycle"]
    assert [entry["map_name"] for entry in cycle] == ["valley", "valley", "speedway", "speedway"]  # type: ignore[attr-defined]
    trial.begin(None)
    of_valley = Trial(make_plan("one"), 0, DRAWN, fake_training)
    of_valley.begin(None)
    assert trial.drive().score == pytest.approx(of_valley.drive().score / 2)  # speedway was not driven


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


def test_a_clone_begins_with_its_donors_weights_to_the_byte(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan()
    donor, clone = Trial(plan, 1, DRAWN, fake_training), Trial(plan, 2, {**DRAWN, "lr_schedule*": 3.0}, fake_training)
    for trial in (donor, clone):
        trial.begin(None)
        trial.drive()
    handed_on = tmp_path / "handed_on"
    handed_on.mkdir()
    donor.hand_on(handed_on)
    files = {file.name: file.read_bytes() for file in next(iter(find_manifests(donor.folder))).iterdir()}
    of_donor = weights_of(donor.folder)
    assert weights_of(clone.folder) != of_donor
    donor.drive()  # goes on meanwhile, and deletes old checkpoints
    donor.drive()
    clone.begin(handed_on)
    assert weights_of(clone.folder) == of_donor
    assert {file.name: file.read_bytes() for file in next(iter(find_manifests(clone.folder))).iterdir()} == files
    assert len(find_manifests(clone.folder)) == 1  # nothing is left of what it had learned itself
    noted = json.loads((plan.output / CLONES_FILE).read_text())
    assert (noted["trial"], noted["donor"]) == ("trial_00002", "trial_00001")
    assert noted["weights"] == noted["donor_weights"] == of_donor
    state = load_checkpoint(clone.folder)
    assert state is not None
    begins_with = state["networks"]["online"]["w"]
    assert clone.drive().frames == 200
    after = load_checkpoint(clone.folder)
    assert after is not None
    torch.testing.assert_close(after["networks"]["online"]["w"], begins_with + 1)


def test_the_donor_does_not_see_what_its_clone_does(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan()
    donor, clone = Trial(plan, 1, DRAWN, fake_training), Trial(plan, 2, DRAWN, fake_training)
    donor.begin(None)
    donor.drive()
    handed_on = tmp_path / "handed_on"
    handed_on.mkdir()
    donor.hand_on(handed_on)
    before = weights_of(donor.folder), weights_of(handed_on), (donor.folder / "races.jsonl").read_bytes()
    clone.begin(handed_on)
    for _ in range(4):  # more than are kept
        clone.drive()
    assert (weights_of(donor.folder), weights_of(handed_on), (donor.folder / "races.jsonl").read_bytes()) == before


def test_a_trial_that_goes_on_is_no_clone(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan()
    trial = Trial(plan, 1, DRAWN, fake_training)
    trial.begin(None)
    trial.drive()
    handed_on = tmp_path / "handed_on"
    handed_on.mkdir()
    trial.hand_on(handed_on)
    trial.drive()  # is lost: Tune knows nothing of it
    again = Trial(plan, 1, DRAWN, fake_training)
    again.begin(handed_on)
    assert again.drive().frames == 200
    assert not (plan.output / CLONES_FILE).exists()


def test_a_new_trial_begins_with_nothing(make_plan: MakePlan) -> None:
    trial = Trial(make_plan(), 1, DRAWN, fake_training)
    trial.begin(None)
    trial.drive()
    trial.begin(None)  # it was interrupted before its first report
    assert trial.drive().frames == 100


def test_a_training_that_fails_says_what_it_said_last(make_plan: MakePlan) -> None:
    trial = Trial(make_plan("FAIL"), 1, DRAWN, fake_training)
    trial.begin(None)
    with pytest.raises(TrialFailedError, match=r"trial_00001 failed: error: no room \(.*trial_00001\.txt\)"):
        trial.drive()


def test_a_run_that_still_ends_is_waited_for(make_plan: MakePlan) -> None:
    trial = Trial(make_plan(), 1, DRAWN, fake_training)
    trial.begin(None)
    trial.drive()
    lock = FileLock(trial.folder / ".train.lock", thread_local=False)
    lock.acquire()
    ended = threading.Timer(0.3, lock.release)
    ended.start()
    trial.begin(None)
    assert not lock.is_locked
    ended.join()


def test_a_piece_lasts_from_its_first_race_on_and_ends_in_order(tmp_path: Path) -> None:
    said, log = tmp_path / "said.txt", tmp_path / "races.jsonl"
    log.write_text("an earlier race\n")
    script = (
        "import sys, time; time.sleep(1); open(sys.argv[1], 'a').write('a race\\n'); print('drives', flush=True); "
        "sys.stdin.buffer.read(); print('ends in order')"
    )
    began_s = time.monotonic()
    assert run_watched([sys.executable, "-c", script, str(log)], said, tmp_path, log, 0.5) == 0
    assert time.monotonic() - began_s > 1.5  # the piece begins with its first race
    assert said.read_text() == "drives\nends in order\n"
    assert run_watched([sys.executable, "-c", "raise SystemExit(3)"], said, tmp_path, log, 60.0) == 3
