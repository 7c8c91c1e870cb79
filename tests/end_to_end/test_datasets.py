"""Learning without a game: a data set is recorded, learned from alone, driven, and exported again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import StartTraining

INPUTS = "research/planner/records/kart.inputs"


def command(repository_root: Path, environment: dict[str, str], script: str, *words: object) -> str:
    """Run a script; return what it printed."""
    done = subprocess.run(
        [sys.executable, repository_root / "scripts" / script, *map(str, words)],
        cwd=repository_root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_driver_is_cloned_without_a_game(
    repository_root: Path, tmp_path: Path, start_training: StartTraining
) -> None:
    minari = pytest.importorskip("minari", reason='python -m pip install "minari[hdf5]"')
    environment = {"MINARI_DATASETS_PATH": str(tmp_path / "minari"), "OMP_NUM_THREADS": "1"}
    told = command(
        repository_root, environment, "tools/dataset.py", "record", INPUTS, "--map", "kart", "--id", "tested/kart-v0"
    )
    assert "on kart: 0:17.250" in told
    settings = {
        "offline": "tested/kart-v0",
        "n_collectors": 0,
        "agent": "trackmania_rl.agents.behaviour_cloning:BehaviourCloning",
    }
    for n_updates in (40, 60):
        run = start_training(tmp_path, ("--max-updates", str(n_updates)), environment, **settings)
        run.process.wait(120)
        assert run.process.returncode == 0, run.output
        assert ("345 transitions" in run.output) == (n_updates == 40), "a run that goes on has them already"
    assert not run.races
    told = command(
        repository_root, environment, "tools/dataset.py", "export", run.run_folder, "--id", "tested/again-v0"
    )
    assert "1 races, 345 actions" in told
    figures = tmp_path / "figures.json"
    command(
        repository_root, environment, "evaluate.py", run.run_folder, "--map", "kart", "--no-video", "--json", figures
    )
    assert json.loads(figures.read_text())["frames_total"] > 0
    first, again = (
        minari.MinariDataset(tmp_path / "minari" / "tested" / name / "data")[0] for name in ("kart-v0", "again-v0")
    )
    for column in ("observations", "actions", "rewards", "terminations"):
        assert getattr(first, column).tobytes() == getattr(again, column).tobytes(), column
