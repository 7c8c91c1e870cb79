"""The examples run as scripts: learning without a game, and training with other libraries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = {
    "torchrl_ppo.py": ("torchrl", "--frames 200 --games 2 --steps 50", r"200 frames, -?\d"),
    "sb3_ppo.py": ("stable_baselines3", "--timesteps 64 --games 2", r"driven greedily: \d+ m"),
    "rllib_ppo.py": ("ray.rllib", "--timesteps 300 --batch 256 --games 2", r"driven greedily: -?\d+ m"),
    "sb3_qrdqn.py": ("sb3_contrib", "--timesteps 120 --learning-starts 60", r"driven greedily: return -?\d"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_learns_a_little(name: str, repository_root: Path) -> None:
    library, options, printed = SCRIPTS[name]
    # ray without what RLlib needs is no missing module, but fails as it is imported
    pytest.importorskip(library, reason=f"{library} is not installed, see examples/{name}", exc_type=ImportError)
    ran = subprocess.run(
        [sys.executable, f"examples/{name}", *options.split()],
        cwd=repository_root,
        env=os.environ | {"PYTHONPATH": str(repository_root)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(printed, ran.stdout)


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


def test_a_recorded_race_is_imitated(repository_root: Path, tmp_path: Path) -> None:
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
