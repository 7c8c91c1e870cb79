"""The command that measures the observation: from races at random, from inputs, and from a run's memory."""

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.runs.snapshot import write_snapshot
from trackmania_rl.runs.store import save_checkpoint
from trackmania_rl.settings import load_settings

QUICK = ("--set", "games_per_collector=3", "--set", "cutoff_race_longer_than_ms=4000")


@pytest.fixture
def measure(script_module, tmp_path: Path) -> Callable[..., int]:
    """`measure(*words)` writes into new/state_normalization.py."""
    module = script_module("tools/observation_statistics")
    return lambda *words: module.main([*words, "--output", str(tmp_path / "new" / "state_normalization.py")])


def written(tmp_path: Path) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    return runpy.run_path(str(tmp_path / "new" / "state_normalization.py"))["state_normalization"]


def test_races_at_random_are_the_same_again(
    measure: Callable[..., int], tmp_path: Path, repository_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*QUICK, "--races", "5", "--map", "valley", "--map", "generated:0.3:1-2")
    assert measure(*words) == 0
    assert "states of 5 races at random on valley, generated_0.300_1, generated_0.300_2" in capsys.readouterr().out
    first = written(tmp_path)
    assert measure(*words) == 78
    assert "is there already" in capsys.readouterr().err
    assert measure(*words, "--force") == 0
    assert written(tmp_path) == first
    means, deviations = first["velocity_m_s"]
    assert 2 < means[2] < 40, "they drive"
    assert deviations[2] > 2
    config = shutil.copytree(repository_root / "config_files", tmp_path / "new", dirs_exist_ok=True) / "config.py"
    load_settings(config)


def test_inputs_are_driven(measure: Callable[..., int], tmp_path: Path) -> None:
    inputs = tmp_path / "race.inputs"
    inputs.write_text("0.00 press up\n3.00 rel up\n")
    assert measure(*QUICK, "--inputs", str(inputs), "--map", "kart") == 0
    means, _ = written(tmp_path)["previous_actions"]
    assert means[:4] == (pytest.approx(0.75, abs=0.15), 0.0, 0.0, 0.0)


def test_a_runs_memory(
    measure: Callable[..., int], tmp_path: Path, repository_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "run")
    layout = ObservationLayout(load_settings(snapshot).observation)
    floats = torch.from_numpy(np.random.default_rng(0).normal(4, 2, (300, layout.float_input_dim)).astype("f4"))
    buffers = {"ring": {"first_row": 0, "end_row": len(floats), "columns": {"state_floats": floats}}}
    save_checkpoint(tmp_path / "run", {"replay": {"memory": buffers}}, 0)
    run = str(tmp_path / "run")
    assert measure("--run", run) == 0
    means, deviations = written(tmp_path)["gear"]
    assert means == (pytest.approx(float(floats[:, layout["gear"].start].mean()), rel=1e-3),)
    assert deviations == (pytest.approx(float(floats[:, layout["gear"].start].std()), rel=1e-2),)
    save_checkpoint(tmp_path / "run", {"replay": {"memory": {"rollouts": []}}}, 1)
    assert measure("--run", run, "--force") == 78
    assert "its memory keeps no races" in capsys.readouterr().err
    write_snapshot(repository_root / "config_files" / "config_cartpole.py", tmp_path / "run")
    assert measure("--run", run, "--force") == 78
    assert "its environment is no race" in capsys.readouterr().err
