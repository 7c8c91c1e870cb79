"""Which settings a run has that is begun with settings instead of a file."""

import dataclasses
from pathlib import Path

import pytest

from trackmania_rl.settings import Settings, changed_settings, load_settings
from trackmania_rl.settings.of_run import AskedFor, RunConfiguration


@pytest.fixture(
    params=[
        "config.py",
        "config_many_tracks.py",
        "config_tmnf.py",
        "config_sac.py",
        "config_discrete_sac.py",
        "config_real_time.py",
    ]
)
def settings(request: pytest.FixtureRequest, repository_root: Path) -> Settings:
    return load_settings(repository_root / "config_files" / request.param, ["schedule_stretch=0.5"])


def test_the_runs_copy_is_what_was_asked_for(settings: Settings, tmp_path: Path) -> None:
    asked_for = AskedFor(settings, ["batch_size=77", "run_name=mine"])
    configuration = RunConfiguration(asked_for, tmp_path)
    assert configuration.is_new
    assert configuration.read() == asked_for.settings() == configuration.write()
    changes = changed_settings(settings, configuration.read())
    assert changes.keys() == {"batch_size", "run_name", "schedule_stretch"}
    assert changes["schedule_stretch"] == (0.5, 1.0), "the schedules are stretched already"


def test_schedules_that_were_stretched_can_be_stretched_again(settings: Settings, tmp_path: Path) -> None:
    asked_for = AskedFor(settings, ["schedule_stretch=3"])
    (first_frame, _), (last_frame, _) = settings.agent.lr_schedule[0], settings.agent.lr_schedule[-1]
    schedule = asked_for.settings().agent.lr_schedule
    assert (schedule[0][0], schedule[-1][0]) == (3 * first_frame, 3 * last_frame)
    assert RunConfiguration(asked_for, tmp_path).write() == asked_for.settings()


def test_a_run_that_exists_goes_on_with_its_own_copy(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked_for = AskedFor(settings)
    RunConfiguration(asked_for, tmp_path).write()
    again = RunConfiguration(asked_for, tmp_path)
    assert not again.is_new
    assert again.write() == asked_for.settings()
    assert not caplog.records
    other = settings.model_copy(update={"replay": settings.replay.model_copy(update={"batch_size": 77})})
    assert RunConfiguration(AskedFor(other), tmp_path).write() == asked_for.settings()
    assert "differs from the settings given in: batch_size (--update-config takes that)" in caplog.text
    updated = RunConfiguration(dataclasses.replace(asked_for, source=other, update=True), tmp_path)
    assert updated.write().replay.batch_size == 77
