"""Recordings of evaluation races: which ones are kept, their files and films, and their records in loggers."""

import numpy as np
import torch

from trackmania_rl.training.hooks import recordings
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.recordings import RecordEvaluations

from .conftest import edit


def told(logger):
    """The logged films and recordings: name, file and frames."""
    return [(name, file.name, frames) for name, file, frames in logger.of("film", "recording")]


def test_every_second_evaluated_race_is_kept_with_a_film_and_handed_on(
    live, make_run, make_race, logger, monkeypatch, caplog
):
    run = make_run()
    hook, folder = run.hook(RecordEvaluations), run.context.folder.recordings
    run.train_on([make_race(9, False, is_explo=False)])
    assert not folder.exists(), "nothing is kept by default"
    edit(live, record_every_n_evaluations=2)
    monkeypatch.setattr(RecordEvaluations, "_track", lambda *_: None)  # the film shows frames, without the simulator
    kept = make_race(23, True, is_explo=False, inputs="0.00 press up\n")
    of_another_map = make_race(11, True, is_explo=False, map_name="kart")
    demonstration = make_race(13, True, is_explo=False, is_demonstration=True)
    run.train_on([make_race(10, True), of_another_map, demonstration, kept])
    hook._filming.join(150)  # it gives way to all others
    name = "000000000066_valley"
    assert told(logger) == [("recording/valley", f"{name}.pt", 66), ("rollout/film/valley", f"{name}.mp4", 66)]
    assert {file.name for file in folder.iterdir()} == {f"{name}.{end}" for end in ("gif", "mp4", "pt", "inputs")}
    recording = torch.load(folder / f"{name}.pt", weights_only=True)
    np.testing.assert_array_equal(recording["state_float"].numpy(), kept.columns["state_float"])
    assert recording["actions"].shape == recording["rewards"].shape == (23,)
    assert "frames" not in recording
    monkeypatch.setattr(RecordEvaluations, "_track", lambda *_: "nowhere.toml")
    run.train_on(make_race(24, False, is_explo=False, inputs="0.00 press up\n") for _ in range(2))
    hook.end()
    assert "no film of the evaluation race 000000000114_valley could be made: nowhere.toml" in caplog.text
    assert [name for name, _, _ in told(logger)][2:] == ["recording/valley"]


def test_only_the_newest_recordings_stay(live, make_run, make_race, logger, monkeypatch):
    monkeypatch.setattr(recordings, "MOST_KEPT", 2)
    monkeypatch.setattr(RecordEvaluations, "_begin_film", lambda *_: None)
    edit(live, record_every_n_evaluations=2)
    run = make_run()
    for _ in range(6):
        run.train_on([make_race(20, True, is_explo=False)])
    kept = sorted(file.name for file in run.context.folder.recordings.iterdir())
    assert kept == ["000000000080_valley.pt", "000000000120_valley.pt"]
    assert len(told(logger)) == 3
    run.train_on([make_race(20, True, is_explo=False)])
    assert run.hook(SaveCheckpoints).try_to_save()
    resumed = make_run().hook(RecordEvaluations).state_dict()
    assert resumed == run.hook(RecordEvaluations).state_dict()
    assert resumed["since_last"] == {"valley": 1}


def test_recordings_are_kept_by_training_time(live, make_run, make_race, logger, monkeypatch):
    monkeypatch.setattr(RecordEvaluations, "_begin_film", lambda *_: None)
    edit(live, record_every_s=60.0)
    run = make_run()
    for training_s in (0.0, 59.0, 61.0, 100.0, 130.0):
        monkeypatch.setattr(type(run.context.statistics), "training_s", training_s)
        run.train_on([make_race(20, True, is_explo=False)])
    assert len(told(logger)) == 2
