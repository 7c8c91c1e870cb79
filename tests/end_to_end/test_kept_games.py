"""Training on games that scripts/keep_games.py keeps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from trackmania_rl.exit_codes import ExitCode
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port

from ..keep_games_command import KeepGames
from .conftest import StartTraining


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[KeepGames]:
    """Two kept games."""
    command = KeepGames(tmp_path, find_free_port(2), 2)
    yield command
    command.end()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_collectors_start_nothing_and_drive_on_when_kept_games_die(
    start_training: StartTraining, tmp_path: Path, kept: KeepGames
) -> None:
    settings = {"game_transport": "'socket'", "games_are_kept": True, "base_tmi_port": kept.first_port}
    command = start_training(tmp_path / "first", **settings)
    command.wait_for_races(3)
    assert not command.games()
    for game in kept.games():
        game.kill()
    command.wait_for_races(6)
    assert "closed the connection" in command.output or "reset by peer" in command.output
    assert kept.output.count("has ended: it is started again") == 2

    second = start_training(tmp_path / "second", **settings)
    assert second.process.wait(120) == ExitCode.TRY_AGAIN
    assert f"another collector of this machine plays on the kept game at port {kept.first_port}" in second.output

    games = kept.games()
    command.stop(signal.SIGINT, whole_group=True)
    assert command.process.returncode == 0
    assert "Traceback" not in command.output, command.output
    assert kept.games() == games, "they are not the training's to end"
