"""Edits to a run's own configuration: applied, refused, or left for the next start."""

import logging
import os
from pathlib import Path

import pytest

from trackmania_rl.multiprocess.live_settings import LiveSettings, write_snapshot
from trackmania_rl.settings import load_settings


@pytest.fixture
def snapshot(tmp_path: Path, repository_root: Path) -> Path:
    return write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config", ["seed=3"])


def _edit(snapshot: Path, line: str) -> None:
    with snapshot.open("a") as file:
        file.write(line + "\n")
    os.utime(snapshot, ns=(snapshot.stat().st_mtime_ns + 1_000_000_000,) * 2)


def test_command_line_overrides_stand_in_the_snapshot(snapshot: Path) -> None:
    assert load_settings(snapshot).run.seed == 3
    assert "seed = 3" in snapshot.read_text()


def test_an_edit_is_applied_once_and_logged(snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = LiveSettings(snapshot, load_settings(snapshot), is_reporter=True)
    assert not live.refresh()
    _edit(snapshot, "n_collectors = 9\nadam_beta1 = 0.8")
    with caplog.at_level(logging.INFO):
        assert live.refresh()
    assert live.current.agent.adam_beta1 == 0.8
    assert live.current.game.n_collectors == 1
    assert "adam_beta1 = 0.8 (was 0.9)" in caplog.text
    assert "wait for the next start: n_collectors" in caplog.text
    assert not live.refresh()


@pytest.mark.parametrize("line", ["adam_beta1 = 7", "adam_bata1 = 0.8", "def ("])
def test_a_wrong_edit_leaves_the_last_good_settings(
    snapshot: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveSettings(snapshot, load_settings(snapshot), is_reporter=True)
    _edit(snapshot, line)
    assert not live.refresh()
    assert live.current.agent.adam_beta1 == 0.9
    assert "the last good one stays" in caplog.text
