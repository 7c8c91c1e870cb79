"""The shipped configuration in a run folder of its own."""

import pytest

from trackmania_rl.runs.snapshot import LiveSettings, write_snapshot
from trackmania_rl.settings import load_settings


@pytest.fixture
def live(tmp_path, repository_root):
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", tmp_path)
    live = LiveSettings(snapshot, load_settings(snapshot))
    live.refresh()  # so that tests may replace `current`
    return live
