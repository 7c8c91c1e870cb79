"""The default configuration, and the settings of a run that began with it."""

import pytest

from trackmania_rl.runs.snapshot import write_snapshot


@pytest.fixture(scope="session")
def config(repository_root):
    return repository_root / "config_files" / "config.py"


@pytest.fixture
def snapshot(config, tmp_path):
    return write_snapshot(config, tmp_path / "run")
