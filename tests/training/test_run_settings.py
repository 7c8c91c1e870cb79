"""The settings of a run that is begun with `Settings` instead of a file."""

import dataclasses
from pathlib import Path

import pytest

from trackmania_rl.settings import load_settings
from trackmania_rl.settings.of_run import AskedFor, RunConfiguration


@pytest.mark.parametrize("name", ["config.py", "config_many_tracks.py", "config_sac.py"])
def test_a_run_keeps_the_settings_it_was_begun_with(
    name: str, repository_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load_settings(repository_root / "config_files" / name, ["schedule_stretch=0.5"])
    asked_for = AskedFor(settings, ["run_name=mine", "schedule_stretch=3"])
    configuration = RunConfiguration(asked_for, tmp_path)
    assert configuration.is_new
    assert configuration.read() == asked_for.settings() == configuration.write()
    assert configuration.read().run.run_name == "mine"
    assert configuration.read().agent.lr_schedule[-1][0] == 3 * settings.agent.lr_schedule[-1][0], "stretched once more"

    again = RunConfiguration(asked_for, tmp_path)
    assert not again.is_new
    assert again.write() == asked_for.settings()
    assert not caplog.records
    changed = settings.model_copy(update={"replay": settings.replay.model_copy(update={"batch_size": 77})})
    other = dataclasses.replace(asked_for, source=changed)
    assert RunConfiguration(other, tmp_path).write() == asked_for.settings()
    assert "differs from the settings given in: batch_size (--update-config takes that)" in caplog.text
    updated = RunConfiguration(dataclasses.replace(other, update=True), tmp_path)
    assert updated.write().replay.batch_size == 77
