"""Evaluated races that are kept: which ones, what is in their files, and who is told."""

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.hooks import figures, recordings
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.recordings import RecordEvaluations

from .conftest import LocalRun, MakeRace, MakeRun, edit


class KeepingLogger:
    """Keeps what it is told of kept races."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int]] = []

    def log_film(self, name: str, film: Path, step: int) -> None:
        assert film.is_file()
        self.told.append((name, film.name, step))

    def log_recording(self, name: str, recording: Path, step: int) -> None:
        self.told.append((name, recording.name, step))

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> KeepingLogger:
    logger = KeepingLogger()
    monkeypatch.setattr(figures, "open_loggers", lambda *_: [logger])
    return logger


def wait_for_film(run: LocalRun) -> None:
    hook = run.hook(RecordEvaluations)
    if hook._filming is not None:
        hook._filming.process.wait(150)  # it gives way to all others
    hook.tick()


def test_every_second_evaluated_race_is_kept_and_handed_on(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger
) -> None:
    edit(live, record_every_n_evaluations=2)
    run = make_run()
    kept = make_race(23, True, is_explo=False)
    for race in (
        make_race(10, True),
        make_race(11, True, is_explo=False, map_name="kart"),
        make_race(12, True, is_explo=False),
        make_race(13, True, is_explo=False, is_demonstration=True),
        kept,
    ):
        run.train_on([race])
        wait_for_film(run)
    name = "000000000069_valley"
    assert logger.told == [("recording/valley", f"{name}.pt", 69), ("rollout/film/valley", f"{name}.mp4", 69)]
    folder = run.context.folder.recordings
    assert sorted(file.name for file in folder.iterdir()) == [f"{name}.gif", f"{name}.mp4", f"{name}.pt"]
    recording = TensorDict(torch.load(folder / f"{name}.pt", weights_only=True), batch_size=[23])
    floats = kept.rollout_results["state_float"]
    np.testing.assert_array_equal(recording["state_float"].numpy(), floats[:-1])
    np.testing.assert_array_equal(recording["next", "state_float"].numpy(), floats[1:])
    assert recording["actions"].shape == (23,)
    assert "frames" not in recording


def test_a_race_of_the_simulated_game_is_driven_again_for_its_film(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger, repository_root: Path
) -> None:
    edit(live, record_every_n_evaluations=1)
    run = make_run()
    run.context.maps_folder = repository_root / "maps"
    run.train_on([make_race(23, False, is_explo=False, inputs="0.00 press up\n")])
    wait_for_film(run)
    endings = {file.name.partition(".")[2] for file in run.context.folder.recordings.iterdir()}
    assert endings == {"pt", "inputs", "mp4", "gif"}
    assert [name for name, _, _ in logger.told] == ["recording/valley", "rollout/film/valley"]


def test_a_film_that_fails_is_told_and_the_recording_is_handed_on(
    live: LiveSettings,
    make_run: MakeRun,
    make_race: MakeRace,
    logger: KeepingLogger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(RecordEvaluations, "_track", lambda _: "nowhere.toml")
    edit(live, record_every_n_evaluations=1)
    run = make_run()
    run.train_on([make_race(23, False, is_explo=False, inputs="0.00 press up\n")])
    run.hook(RecordEvaluations).end()
    assert "no film of the evaluated race 000000000023_valley could be made: error: " in caplog.text
    assert [name for name, _, _ in logger.told] == ["recording/valley"]


def test_a_race_is_kept_now_and_then_by_the_clock(
    live: LiveSettings,
    make_run: MakeRun,
    make_race: MakeRace,
    logger: KeepingLogger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(RecordEvaluations, "_film_command", lambda *_: None)
    edit(live, record_every_s=60.0)
    run = make_run()
    for after_s in (0, 50, 20, 50, 20):
        now_s += after_s
        run.train_on([make_race(20, True, is_explo=False)])
    kept = sorted(file.name for file in run.context.folder.recordings.iterdir())
    assert kept == ["000000000060_valley.pt", "000000000100_valley.pt"]


def test_one_film_at_a_time_and_only_the_newest_are_kept(
    live: LiveSettings,
    make_run: MakeRun,
    make_race: MakeRace,
    logger: KeepingLogger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recordings, "MOST_KEPT", 2)
    monkeypatch.setattr(RecordEvaluations, "_film_command", lambda *_: None)
    edit(live, record_every_n_evaluations=1)
    run = make_run()
    for n_actions in (20, 21, 22):
        run.train_on([make_race(n_actions, True, is_explo=False)])
    kept = sorted(file.name for file in run.context.folder.recordings.iterdir())
    assert kept == ["000000000041_valley.pt", "000000000063_valley.pt"]
    under_way = SimpleNamespace(process=SimpleNamespace(poll=lambda: None), began_s=time.monotonic())
    run.hook(RecordEvaluations)._filming = under_way  # type: ignore[assignment]
    run.train_on([make_race(23, True, is_explo=False)])
    run.hook(RecordEvaluations)._filming = None
    assert len(logger.told) == 3
    assert run.hook(SaveCheckpoints).try_to_save()
    resumed = make_run()
    assert resumed.hook(RecordEvaluations).state_dict() == {"since_last": {"valley": 1}}


def test_nothing_is_kept_by_default(
    make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run()
    with caplog.at_level(logging.WARNING):
        run.train_on([make_race(23, True, is_explo=False)])
    assert not run.context.folder.recordings.exists()
    assert not caplog.records
