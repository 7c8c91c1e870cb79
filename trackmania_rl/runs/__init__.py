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
        best_runs/{map}_{time}/    input script, Q values, settings of a record; driver of the best evaluation race
        good_runs/{map}_{time}/    the same of all races within threshold_to_save_all_runs_ms, without drivers
        drivers/{frames}.driver    drivers kept during the training, see keep_driver_every_s
        run.sqlite                 run log: races, figures, messages, status, see `trackmania_rl.runs.log`
        seeds.json                 seeds of the run and of the learner's parts
        diagnostics/               plots of values, quantiles, errors and expectations
        sessions.txt               number of starts of the run
        train.log                  messages as text
        evaluation/                output of scripts/evaluate.py
        live/                      newest states and races of the games, for the live page
        generated_tracks/          tracks that the collectors generated
    tensorboard/{run_name}/        event files

A checkpoint is written under a temporary name, flushed to the disk and renamed.
"""
