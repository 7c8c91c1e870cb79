"""A run goes on although a later version has more settings: they are as they ship, and that is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trackmania_rl.settings import SettingsError, load_settings, settings_lacking
from trackmania_rl.settings.live import load_run_snapshot, write_snapshot
from trackmania_rl.settings.of_run import AskedFor, RunConfiguration


@pytest.fixture
def config(repository_root: Path) -> Path:
    return repository_root / "config_files" / "config.py"


@pytest.fixture
def snapshot(config: Path, tmp_path: Path) -> Path:
    """A run's own configuration, of a time before there were two settings."""
    file = write_snapshot(config, tmp_path / "config", ["seed=3"])
    file.write_text(re.sub(r"^(keep_checkpoints|hooks) = .*$", "", file.read_text(), flags=re.MULTILINE))
    return file


def test_what_a_run_lacks_is_as_it_ships(config: Path, snapshot: Path) -> None:
    with pytest.raises(SettingsError, match="keep_checkpoints is missing"):
        load_settings(snapshot)
    shipped = load_settings(config)
    assert settings_lacking(snapshot) == {"keep_checkpoints": shipped.run.keep_checkpoints, "hooks": ()}
    assert settings_lacking(config) == {}
    own = load_run_snapshot(snapshot, ["batch_size=7"])
    assert (own.run.keep_checkpoints, own.run.seed, own.replay.batch_size) == (shipped.run.keep_checkpoints, 3, 7)
    assert load_run_snapshot(snapshot, ["keep_checkpoints=9"]).run.keep_checkpoints == 9


def test_a_run_that_goes_on_has_them_from_then_on(
    config: Path, snapshot: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = RunConfiguration(AskedFor(config, ["seed=3"]), snapshot.parent)
    read = configuration.read()
    assert configuration.write() == read == load_settings(snapshot)
    assert "is of an earlier version; new settings are as they ship: hooks = (), keep_checkpoints = 3" in caplog.text
    caplog.clear()
    RunConfiguration(AskedFor(config, ["seed=3"]), snapshot.parent).write()
    assert "earlier version" not in caplog.text


def test_what_is_taken_anew_must_have_all(config: Path, snapshot: Path) -> None:
    with pytest.raises(SettingsError, match="keep_checkpoints is missing"):
        RunConfiguration(AskedFor(snapshot, update=True), snapshot.parent).read()
