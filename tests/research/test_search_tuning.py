"""The search with Ray itself: with a training that takes no time, and with two tiny real ones that are interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed: python -m pip install -r requirements-cluster.txt")

WITH_FAKES = """
import sys
from pathlib import Path
from benchmarks.driving.run import YARDSTICKS_FILE
from benchmarks.driving.score import read_yardsticks
from benchmarks.driving.tracks import find_tracks
from research.search.space import read_space
from research.search.trial import Plan
from research.search.tuning import ray_running, search
from tests.research.fake_training import fake_training

output, config, scheduler = Path(sys.argv[1]), Path("config_files/config.py").resolve(), sys.argv[2]
space = read_space(output / "space.toml", config, (), clones=True)
tracks = tuple(find_tracks(["valley"], output))
plan = Plan(space, config, (), tracks, read_yardsticks(YARDSTICKS_FILE, ["valley"]), 0, 30.0, output, Path.cwd())
with ray_running(None, 2):
    search(plan, scheduler, 4, 4, 1, fake_training)
"""
SPACE = '"lr_schedule*" = {low = 0.1, high = 10.0, log = true}\nbatch_size = {low = 8, high = 64}\n'
TINY = (
    *("--set", "use_torch_compile=False", "--set", "float_hidden_dim=11", "--set", "dense_hidden_dimension=18"),
    *("--set", "cutoff_race_longer_than_ms=4000", "--set", "memory_size_start_learn_schedule=((0, 40),)"),
)


@pytest.mark.parametrize(
    ("cores_of_nodes", "jobs", "asked"),
    [
        ([4], 2, 2),
        ([8, 8], 4, 4),  # four at a time, though eight would fit
        ([8, 8], 16, 2),
        ([16, 4, 0], 1, 16),
        ([1, 1], 2, 1),  # smaller than a trial would like
    ],
)
def test_a_trial_asks_for_so_much_that_the_right_number_fits(
    monkeypatch: pytest.MonkeyPatch, cores_of_nodes: list[int], jobs: int, asked: int
) -> None:
    from research.search import tuning

    nodes = [{"Alive": True, "Resources": {"CPU": float(n)} if n else {}} for n in cores_of_nodes]
    monkeypatch.setattr(tuning.ray, "nodes", lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 64.0}}])
    assert tuning.cores_for(jobs, 2) == asked


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("scheduler", ["pbt", "asha", "random"])
def test_a_search_runs_all_its_trials(tmp_path: Path, repository_root: Path, scheduler: str) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    environment = os.environ | {"PYTHONPATH": str(repository_root)}
    command = [sys.executable, "-c", WITH_FAKES, str(tmp_path), scheduler]
    ran = subprocess.run(command, cwd=repository_root, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    trials = json.loads((tmp_path / "trials.json").read_text())
    assert sorted(trials) == [f"trial_{number:05d}" for number in range(4)]
    assert {trial["status"] for trial in trials.values()} == {"complete"}
    assert all(8 <= trial["drawn"]["batch_size"] <= 64 for trial in trials.values())
    n_reports = [len(trial["scores"]) for trial in trials.values()]
    if scheduler == "random":
        assert n_reports == [4] * 4
    elif scheduler == "asha":
        assert max(n_reports) == 4
        assert min(n_reports) < 4  # the worse ones are ended early
    else:
        clones = [json.loads(line) for line in (tmp_path / "clones.jsonl").read_text().splitlines()]
        assert clones
        assert all(clone["weights"] == clone["donor_weights"] != {} for clone in clones)
        assert all(clone["trial"] != clone["donor"] for clone in clones)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_interrupted_search_of_real_trainings_goes_on(tmp_path: Path, repository_root: Path) -> None:
    space, output = tmp_path / "space.toml", tmp_path / "search"
    space.write_text(SPACE)
    options = ["--space", str(space), "--trials", "2", "--jobs", "2", "--minutes", "0.4", "--pieces", "2", *TINY]
    command = [sys.executable, "-u", "-m", "research.search", *options, "--output", str(output)]
    printed_file = tmp_path / "printed.txt"
    with printed_file.open("w") as printed:
        first = subprocess.Popen(command, cwd=repository_root, stdout=printed, stderr=printed)
        try:
            _wait_for(lambda: re.search(r"trial_0000\d: 1/2, score", printed_file.read_text()), first)
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


def _wait_for(condition: object, process: subprocess.Popen[bytes]) -> None:
    assert callable(condition)
    deadline_s = time.monotonic() + 400
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
