"""Kept games: scripts/keep_games.py in a process of its own, and collectors that connect."""

import contextlib
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from benchmarks.delayed_link import DelayedLink
from trackmania_rl.processes import is_running
from trackmania_rl.race.actions import PolicyDecision
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager, GameKeepsFailingError
from trackmania_rl.tmi_interaction.launchers import kept_game
from trackmania_rl.tmi_interaction.launchers.kept_game import Greeting, KeptGame
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.tmi_interaction.tminterface2 import GameConnectionError

from ..keep_games_command import KeepGames

NEEDED_BY_WHAT_IS_NEEDED = {"annotated_types", "llvmlite", "pydantic_core", "typing_extensions", "typing_inspection"}
IMPORT_ONLY = """
import runpy, sys
from importlib.machinery import PathFinder
class OnlyWhatIsListed:
    def find_spec(self, name, path=None, target=None):
        is_listed = name.partition(".")[0] in sys.argv[1:]
        if not is_listed and "site-packages" in str(PathFinder.find_spec(name, path)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, OnlyWhatIsListed())
runpy.run_path("scripts/keep_games.py")
from pathlib import Path
from trackmania_rl.settings import load_settings
load_settings(Path("config_files/config_tmnf.py"))
"""


@pytest.fixture
def keep_games(straight_folder, tmp_path):
    """`keep_games(n_games, *options)` keeps simulated games that have a straight map; ends with the test."""
    with contextlib.ExitStack() as opened:

        def keep(n_games=1, *options):
            options = ("--set", f"maps_folder={str(straight_folder)!r}", *options)
            command = KeepGames(tmp_path, find_free_port(n_games), n_games, options)
            opened.callback(command.end)
            return command

        yield keep


@pytest.fixture
def make_manager(settings_without_image, straight_folder):
    """`make_manager(port)` plays on a kept game, as a collector of this machine or of another one."""
    with contextlib.ExitStack() as opened:

        def make(port, locks_folder=None):
            changes = {"game": "simulated", "games_are_kept": True, "maps_folder": str(straight_folder)}
            game = settings_without_image.game.model_copy(update={**changes, "tmi_protection_timeout_s": 60.0})
            launcher = KeptGame(port, straight_folder, locks_folder)
            manager = GameInstanceManager(game, settings_without_image.observation, launcher)
            opened.callback(manager.close)
            return manager

        yield make


@pytest.fixture
def race(straight):
    """`race(manager)` is the time of a race at full throttle."""

    def play(manager):
        policy = lambda frame, floats: PolicyDecision(0, True, np.zeros(12, np.float32))  # noqa: E731
        return manager.rollout(straight, policy)[0]["race_time"]

    return play


def test_races_go_on_while_kept_games_are_killed(keep_games, make_manager, race, is_gone):
    kept = keep_games(2)
    managers = [make_manager(kept.first_port + index) for index in range(2)]
    times_ms = [race(manager) for manager in managers]
    first, second = kept.games()
    first.kill()
    times_ms += [race(manager) for manager in managers]
    kept.wait_until_it_says(f"the game at port {kept.first_port} has ended")
    assert len({*times_ms}) == 1, times_ms
    assert kept.games()[1] == second, "the other game has nothing to do with it"
    third = kept.games()[0]
    managers[0].close()
    assert race(managers[0]) == times_ms[0]
    assert kept.games() == [third, second], "the same game, which the collector had left"
    kept.process.kill()
    assert is_gone(second.pid), "the command leaves no game behind"
    assert is_gone(third.pid)


def test_each_kept_game_is_for_one_collector_and_races_go_on_when_the_way_to_it_breaks(
    keep_games, make_manager, race, caplog, tmp_path
):
    kept = keep_games()
    first, second = (make_manager(kept.first_port) for _ in range(2))
    time_ms = race(first)
    with pytest.raises(GameKeepsFailingError, match="another collector of this machine plays on the kept game at port"):
        race(second)

    race(make_manager(kept.first_port, locks_folder=tmp_path))  # as from another machine
    assert "another collector has connected to it" not in caplog.text
    race(first)
    assert f"the kept game at port {kept.first_port} runs on, but had let go of this collector" in caplog.text
    assert "another collector has connected to it" in caplog.text
    first.close()

    link = DelayedLink(kept.first_port)
    manager = make_manager(link.port)
    assert race(manager) == time_ms
    link.close()
    caplog.clear()
    threading.Timer(1.5, DelayedLink, (kept.first_port, 0.0, link.port)).start()
    assert race(manager) == time_ms
    assert "either the way to it broke, or another collector" in caplog.text
    assert kept.output.count("is started") == 1
    (game,) = kept.games()
    assert kept.end() == 0
    assert not is_running(game)


def test_a_port_without_a_kept_game_is_told_with_what_to_run():
    port = find_free_port()
    with pytest.raises(GameConnectionError, match=rf"no kept game greets .*keep_games\.py --ports {port}"):
        KeptGame(port).wait_until_connectable(0.1)


def test_a_kept_game_of_another_version_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr(kept_game, "greet", lambda port, within_s: Greeting(1, is_in_menus=True))
    game = KeptGame(find_free_port())
    for _ in range(2):
        game.wait_until_connectable(10.0)
    assert caplog.text.count("runs version 1 of this project's plugin, and version") == 1


# The command.


def test_a_port_in_use_ends_the_command_in_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = KeepGames(tmp_path, server.getsockname()[1])
        assert kept.process.wait(60) == 75
    assert "error: port" in kept.output
    assert "--ports N (keep_games.py)" in kept.output
    assert "Traceback" not in kept.output


@pytest.mark.parametrize("words", [(), ("--ports", "8481-8478")])
def test_impossible_ports(script_module, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keep_games.py", *words])
    with pytest.raises(SystemExit) as ended:
        script_module("keep_games").main()
    assert ended.value.code == 2
    assert "--ports" in capsys.readouterr().err


def test_the_command_runs_with_the_packages_of_its_requirements_alone(repository_root):
    listed = (repository_root / "requirements-games.txt").read_text().splitlines()
    pinned = {line for line in listed if "==" in line}
    assert pinned <= {*(repository_root / "requirements.txt").read_text().splitlines()}
    allowed = {line.split("==")[0] for line in pinned} | NEEDED_BY_WHAT_IS_NEEDED | {"trackmania_rl", "config_files"}
    command = [sys.executable, "-c", IMPORT_ONLY, *allowed]
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
