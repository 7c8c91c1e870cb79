"""What a run leaves on disk: its folder, its checkpoints and its best races.

::

    save/{run_name}/
        settings.toml              the run's own settings, edits of which are applied while it trains
        checkpoints/
            000012/                everything needed to go on; the newest few are kept, and the best one
                manifest.json      what is in it: every file with its size and check sum, every tensor, the settings
                online.safetensors, target.safetensors, averaged.safetensors    the networks
                tensors.safetensors    all other tensors: the optimizer's, random states
                state.json         everything else: counters, statistics
            memory/                the rows of the replay memory, in files that checkpoints share
        best_runs/{map}_{time}/    input script, Q values and settings of each record, and the best one's driver
        drivers/{frames}.driver    the driver on the way, see keep_driver_every_s
        races.jsonl                one line for each race
        races.undone.jsonl         those that a run which was killed does not count any more
        seeds.json                 the run's seed, and those of the learner's parts
        settings_in_force.json     the settings that were in force last
        diagnostics/               plots of values, quantiles, errors and expectations
        sessions.txt               how often the run was started
        train.log                  what was logged
        evaluation/                what scripts/evaluate.py wrote
        live/                      what can be seen of the games while it trains
        generated_tracks/          tracks that the collectors made for themselves
    tensorboard/{run_name}/        event files

A checkpoint is a folder that is complete or not there: it is written under a temporary name, flushed to the disk and
then renamed. It holds no code, and what is in it is bounded by the sizes of its files (`reading`).
"""

from __future__ import annotations

from typing import Final

from trackmania_rl.runs.errors import CheckpointError, DiskTooFullError
from trackmania_rl.runs.reading import (
    OLD_FILES,
    LoadedCheckpoint,
    find_manifests,
    is_checkpoint,
    load_checkpoint,
    load_newest,
    read_checkpoint,
)
from trackmania_rl.runs.records import save_best_run
from trackmania_rl.runs.store import CheckpointFacts, CheckpointStore, require_disk, save_checkpoint
from trackmania_rl.settings.run_folder import CHECKPOINTS, RACES_FILE, RunFolder

FIRST_CHECKPOINT_AFTER_S: Final = 15.0
"""How long after a new run's first finish its first checkpoint is written."""

__all__ = [
    "CHECKPOINTS",
    "FIRST_CHECKPOINT_AFTER_S",
    "OLD_FILES",
    "RACES_FILE",
    "CheckpointError",
    "CheckpointFacts",
    "CheckpointStore",
    "DiskTooFullError",
    "LoadedCheckpoint",
    "RunFolder",
    "find_manifests",
    "is_checkpoint",
    "load_checkpoint",
    "load_newest",
    "read_checkpoint",
    "require_disk",
    "save_best_run",
    "save_checkpoint",
]
