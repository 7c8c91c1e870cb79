"""The example of learning without a game records a race, imitates it and drives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = {
    "float_hidden_dim": 11,
    "dense_hidden_dimension": 18,
    "iqn_embedding_dimension": 7,
    "batch_size": 23,
    "use_torch_compile": False,
    "terminal_view": "off",
    "torch_device": "cpu",
    "learner_threads": 1,
}


def test_somebodys_race_is_imitated(repository_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("minari", reason='python -m pip install "minari[hdf5]"')
    inputs = repository_root / "research" / "planner" / "records" / "kart.inputs"
    words = [sys.executable, repository_root / "examples" / "offline_training.py", inputs, "--map", "kart"]
    words += ["--folder", tmp_path, "--max-updates", "30"]
    words += [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(repository_root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "the clone's best race on kart: kart_unfinished_" in done.stdout
    assert (tmp_path / "datasets" / "examples" / "expert-v0" / "data" / "metadata.json").is_file()
