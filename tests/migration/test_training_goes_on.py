"""An imported run is one that the training command resumes."""

import subprocess
import sys

import pytest

from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.settings import load_settings

from .conftest import SMALL, write_run

SETTINGS = (
    *SMALL,
    "use_layer_norm=False",
    "expected_reward_per_action=0.0",
    "quantile_factors_multiply=features",
    "fourier_wavelengths={}",
    "terminal_view=off",
    "batch_size=24",
    "games_per_collector=2",
    "memory_size_schedule=((0, 2000),)",
    "memory_size_start_learn_schedule=((0, 300),)",
    "cutoff_race_longer_than_ms=10000",
)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_train_resumes_an_imported_run(repository_root, tmp_path, tool):
    config = repository_root / "config_files" / "config.py"
    run = write_run(tmp_path / "linesight", load_settings(config, SETTINGS))
    words = [word for text in SETTINGS for word in ("--set", text)]
    output = tmp_path / "save" / "mine"
    assert tool("import_linesight", run.folder, "--output", output, "--config", config, *words) == 0
    command = [sys.executable, repository_root / "scripts" / "train.py", "--set", "run_name=mine"]
    command += ["--output-folder", tmp_path, "--max-frames", str(1_234_567 + 3000), "--max-wall-s", "300"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    assert "resumed" in said
    assert "at frame 1,234,567" in said
    assert "starts with an empty state" not in said
    state = load_checkpoint(output).state
    assert state["statistics"]["frames_total"] >= 1_234_567 + 3000
    assert state["agent"]["updates"] > 71_234
    assert state["agent"]["step"]["optimizer"]["step"] > 7
