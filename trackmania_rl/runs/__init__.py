"""Files of a run: its folder, checkpoints and best races.

::

    save/{run_name}/
        settings.toml              settings of the run; edits are applied while it trains
        checkpoints/
            000012/                a checkpoint; the newest three and the best one are kept
                manifest.json      versions, settings, counts; sizes and checksums of the files
                weights.safetensors    the networks: online, target, averaged
                state.pt           the rest: optimizer, random states, counters (torch.load with weights_only=True)
            memory/                rows of the replay memory, in .npz files that checkpoints share
        replay/                    files of a replay memory on disk (replay_storage), which checkpoints flush
        best_runs/{map}_{time}/    input script, Q values, settings and driver of each record
        good_runs/{map}_{time}/    the same of all races within threshold_to_save_all_runs_ms, without drivers
        drivers/{frames}.driver    drivers kept during the training, see keep_driver_every_s
        run.sqlite                 run log: races, see `trackmania_rl.runs.log`
        seeds.json                 seeds of the run and of the learner's parts
        diagnostics/               plots of values, quantiles, errors and expectations
        sessions.txt               number of starts of the run
        train.log                  log
        evaluation/                output of scripts/evaluate.py
        live/                      newest states of the games, for the live page
        generated_tracks/          tracks that the collectors generated
    tensorboard/{run_name}/        event files

A checkpoint is written under a temporary name, flushed to the disk and renamed.
"""

from __future__ import annotations

from typing import Final

from trackmania_rl.runs.folder import CHECKPOINTS as CHECKPOINTS
from trackmania_rl.runs.folder import RUN_LOG as RUN_LOG
from trackmania_rl.runs.folder import RunFolder as RunFolder
from trackmania_rl.runs.manifest import CheckpointError as CheckpointError
from trackmania_rl.runs.manifest import DiskTooFullError as DiskTooFullError
from trackmania_rl.runs.reading import LoadedCheckpoint as LoadedCheckpoint
from trackmania_rl.runs.reading import find_manifests as find_manifests
from trackmania_rl.runs.reading import load_checkpoint as load_checkpoint
from trackmania_rl.runs.store import CheckpointFacts as CheckpointFacts
from trackmania_rl.runs.store import CheckpointStore as CheckpointStore
from trackmania_rl.runs.store import require_disk as require_disk
from trackmania_rl.runs.store import save_best_run as save_best_run
from trackmania_rl.runs.store import save_checkpoint as save_checkpoint

FIRST_CHECKPOINT_AFTER_S: Final = 15.0
"""Time from a new run's first finish to its first checkpoint."""
