"""The best races that a run keeps."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.files import MOST_PYTHON_BYTES, read_bounded_text, replace_patiently, sync_file, sync_folder
from trackmania_rl.runs.errors import CheckpointError
from trackmania_rl.settings.without_machine import without_machine

log = logging.getLogger(__name__)


def save_best_run(
    best_runs_folder: Path,
    map_name: str,
    race_time_ms: int,
    input_script: str,
    q_values: npt.NDArray[np.float32],
    config_folder: Path,
) -> Path:
    """Keep a record: `{map}_{time}/` with `{map}_{time}.inputs`, `q_values.npy` and a copy of the configuration.

    Args:
        best_runs_folder: `RunFolder.best_runs`.
        map_name: the map cycle's name of the map.
        race_time_ms: the finish time.
        input_script: the race's inputs as TMInterface's `load` command reads them.
        q_values: (T, A) float32, the network's values of all actions at each decision.
        config_folder: the configuration in force; its Python files are copied, without this machine's paths and names.
            A file that is not valid Python, as during an edit, is left out with a warning.

    Returns:
        The record's folder. It appears complete, under its final name; one that exists already is left as it is.

    Raises:
        CheckpointError: if the disk is full or fails.
    """
    name = f"{map_name}_{race_time_ms}"
    folder, temporary = best_runs_folder / name, best_runs_folder / f".{name}.tmp"
    try:
        if folder.exists():
            return folder
        shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed here
        temporary.mkdir(parents=True)
        (temporary / f"{name}.inputs").write_text(input_script, encoding="utf-8")
        np.save(temporary / "q_values.npy", q_values, allow_pickle=False)
        (temporary / "config").mkdir()
        for file in sorted(config_folder.glob("*.py")):
            try:
                text = without_machine(read_bounded_text(file, MOST_PYTHON_BYTES))
            except (SyntaxError, ValueError, UserError) as error:
                log.warning("the record %s is kept without %s: %s", folder, file, error)
                continue
            (temporary / "config" / file.name).write_text(text, encoding="utf-8")
        for written in temporary.rglob("*"):
            (sync_folder if written.is_dir() else sync_file)(written)
        sync_folder(temporary)
        replace_patiently(temporary, folder)
        sync_folder(best_runs_folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"cannot keep the record {folder}: {error.strerror}") from error
    return folder
