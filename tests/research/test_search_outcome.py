"""What a search came to, on disk: the trials, the best one as a configuration, and the command that measures it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from benchmarks.driving.tracks import find_tracks
from benchmarks.driving.variants import Variant
from research.search.outcome import Outcome, command_against_default, table, write_best
from research.search.space import read_space
from research.search.trial import CLONES_FILE, Plan
from trackmania_rl.errors import UserError
from trackmania_rl.settings import changed_settings, load_settings


@pytest.fixture
def plan(tmp_path: Path, repository_root: Path) -> Plan:
    file = tmp_path / "space.toml"
    file.write_text('"lr_schedule*" = {low = 0.1, high = 10.0}\nbatch_size = {low = 8, high = 64}')
    config, output = repository_root / "config_files" / "config.py", tmp_path / "the search"
    output.mkdir()
    space = read_space(file, config, (), clones=True)
    return Plan(
        space, config, ("n_collectors=2",), tuple(find_tracks(["valley"], output)), {}, 0, 60.0, output, tmp_path
    )


def test_trials_are_remembered(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path)
    outcome.add("trial_00000", {"batch_size": 8}, 0.25, 100)
    outcome.add("trial_00001", {"batch_size": 9}, 0.75, 100)
    outcome.add("trial_00000", {"batch_size": 10}, 0.5, 200)  # it has become a clone
    outcome.end("trial_00000", "complete")
    outcome.end("trial_00002", "failed", "no room")
    again = Outcome(tmp_path)
    assert again.trials == outcome.trials
    assert again.trials["trial_00000"].scores == [0.25, 0.5]
    assert again.trials["trial_00000"].drawn == {"batch_size": 10}
    best = again.best()
    assert best is not None
    assert best[0] == "trial_00001"
    lines = table(again).splitlines()
    assert [line.split()[0] for line in lines] == ["trial_00001", "trial_00000", "trial_00002"]
    assert "0.250 0.500" in lines[1]


def test_a_search_without_a_report_has_no_best(tmp_path: Path) -> None:
    assert Outcome(tmp_path).best() is None


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "trials.json").write_text("{")
    with pytest.raises(UserError, match=r"trials\.json is damaged"):
        Outcome(tmp_path)


def test_the_best_is_a_configuration_based_on_the_default(plan: Plan) -> None:
    (plan.output / CLONES_FILE).write_text(json.dumps({"trial": "trial_00003", "donor": "trial_00001"}) + "\n")
    file = write_best(plan, {"lr_schedule*": 2.0, "batch_size": 24}, 0.9123, "trial_00003")
    text = file.read_text()
    assert 'based_on = "config.py"' in text
    assert "score 0.9123" in text
    assert "came from trial_00001" in text
    assert "# lr_schedule, times 2." in text
    changed = changed_settings(load_settings(plan.config_file), load_settings(file))
    assert set(changed) == {"lr_schedule", "batch_size"}
    assert changed["batch_size"][1] == 24
    assert changed["lr_schedule"][1][0] == (0, 2e-3)


def test_the_command_compares_it_with_the_default(plan: Plan) -> None:
    file = write_best(plan, {"lr_schedule*": 2.0, "batch_size": 24}, 0.9, "trial_00003")
    words = shlex.split(command_against_default(plan, file, 2.5))
    assert words[:4] == ["python", "benchmarks/driving/run.py", "--tracks", "valley"]
    assert words[words.index("--minutes") + 1] == "3"
    variants = [words[at + 1] for at, word in enumerate(words) if word == "--variant"]
    read = [Variant.read(text, plan.config_file, [words[words.index("--set") + 1]]) for text in variants]
    assert [one.name for one in read] == ["default", "best"]
    assert read[0].config_file == plan.config_file
    assert read[1].config_file == file  # though there is a space in its path
    assert read[1].overrides == ("n_collectors=2",)
