"""Best races of a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackmania_rl.files import replace_patiently, sync_folder
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.settings import Settings
from trackmania_rl.settings.snapshot import SETTINGS_FILE, handed_on_text


def save_best_run(
    best_runs_folder: Path,
    map_name: str,
    race_time_ms: int,
    input_script: str,
    q_values: npt.NDArray[np.float32],
    settings: Settings,
) -> Path:
    """Write a record: `{map}_{time}/` with `{map}_{time}.inputs`, `q_values.npy` and `settings.toml`.

    Args:
        best_runs_folder: `RunFolder.best_runs`.
        map_name: the map cycle's name of the map.
        race_time_ms: the finish time.
        input_script: the race's inputs as TMInterface's `load` command reads them.
        q_values: (T, A) float32, the network's values of all actions at each decision.
        settings: in force; written without this machine's paths and names.

    Returns:
        The record's folder, complete. An existing one is left as it is.

    Raises:
        CheckpointError: if the disk is full or fails.
    """
    name = f"{map_name}_{race_time_ms}"
    folder, temporary = best_runs_folder / name, best_runs_folder / f".{name}.tmp"
    try:
        if folder.exists():
            return folder
        shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed
        temporary.mkdir(parents=True)
        (temporary / f"{name}.inputs").write_text(input_script, encoding="utf-8")
        np.save(temporary / "q_values.npy", q_values, allow_pickle=False)
        text = handed_on_text(settings, f"Settings of the race {name}")
        (temporary / SETTINGS_FILE).write_text(text, encoding="utf-8")
        for written in temporary.iterdir():
            with written.open("rb+") as opened:
                os.fsync(opened.fileno())
        sync_folder(temporary)
        replace_patiently(temporary, folder)
        sync_folder(best_runs_folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"cannot keep the record {folder}: {error.strerror}") from error
    return folder
