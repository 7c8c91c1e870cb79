"""The folder of a run, and its best races."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.checkpoints import CheckpointError, RunFolder, records, save_best_run

from .conftest import files_of


def test_a_best_run_holds_inputs_values_and_configuration(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "trial")
    (run.config / "config.py").write_text("seed = 1\n")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(2):  # the same time once more changes nothing
        folder = save_best_run(run.best_runs, "valley", 31_250, "0.00 press up\n", values, run.config)
    assert folder == tmp_path / "save/trial/best_runs/valley_31250"
    assert files_of(run.best_runs) == ["valley_31250"]
    assert (folder / "valley_31250.inputs").read_text() == "0.00 press up\n"
    np.testing.assert_array_equal(np.load(folder / "q_values.npy"), values)
    assert (folder / "config/config.py").read_text() == "seed = 1\n"


def test_a_best_run_that_cannot_be_kept_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(records.np, "save", fail)
    with pytest.raises(CheckpointError, match="valley_31250: No space left"):
        save_best_run(tmp_path, "valley", 31_250, "", np.zeros((1, 3), np.float32), tmp_path)
    assert files_of(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "save").write_text("a file is in the way")
    with pytest.raises(CheckpointError, match="cannot make the folder"):
        RunFolder.create(tmp_path, "trial")
