"""Kept games: scripts/keep_games.py in a process of its own, and a collector's end that connects."""

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from benchmarks.delayed_link import DelayedLink
from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.settings import MapEntry
from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.simulator.server.server import GameServer
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager, GameKeepsFailingError
from trackmania_rl.tmi_interaction.launchers.choice import make_launcher
from trackmania_rl.tmi_interaction.launchers.kept_game import KeptGame
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.tmi_interaction.transport import GameConnectionError

from ..keep_games_command import KeepGames

LINE_M = 50


@pytest.fixture
def maps_folder(tmp_path):
    line_m = np.arange(0, LINE_M, 0.5)[:, None] * np.array([0.0, 0.0, 1.0]) + (0, 100, 0)
    np.save(tmp_path / "straight.npy", line_m)
    return tmp_path


@pytest.fixture
def keep_games(maps_folder):
    """`keep_games(n_games, *options)` keeps simulated games that have a straight map; ends with the test."""
    with contextlib.ExitStack() as opened:

        def keep(n_games=1, *options):
            options = ("--set", f"maps_folder={str(maps_folder)!r}", *options)
            command = KeepGames(maps_folder, find_free_port(n_games), n_games, options)
            opened.callback(command.end)
            return command

        yield keep


@pytest.fixture
def make_manager(settings, maps_folder):
    """`make_manager(port, timeout_s)` plays on a kept game."""
    with contextlib.ExitStack() as opened:

        def make(port, timeout_s=60.0):
            changes = {
                "game": "simulated",
                "games_are_kept": True,
                "maps_folder": str(maps_folder),
                "image_width_px": 0,
                "image_height_px": 0,
                "tmi_protection_timeout_s": timeout_s,
            }
            game = settings.game.model_copy(update=changes)
            manager = GameInstanceManager(
                game, settings.observation, make_launcher(game, settings.user, port, maps_folder)
            )
            opened.callback(manager.close)
            return manager

        yield make


def race(manager):
    straight = MapEntry(
        map_name="straight", map_path="straight.npy", reference_line="straight.npy", is_explo=True, fill_buffer=True
    )
    results, _ = manager.rollout(straight, lambda frame, floats: PolicyDecision(0, True, np.zeros(12, np.float32)))
    return results["race_time"]


def test_races_go_on_while_kept_games_are_killed(keep_games, make_manager):
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
    assert kept.games() == [third, second], "the same game, of which the collector had let go"
    assert kept.end() == 0
    assert not second.is_running()
    assert not third.is_running()


def test_races_go_on_when_the_way_to_the_game_breaks_and_is_back(keep_games, make_manager, caplog):
    kept = keep_games()
    link = DelayedLink(kept.first_port)
    manager = make_manager(link.port)
    times_ms = [race(manager)]
    link.close()
    threading.Timer(1.5, DelayedLink, (kept.first_port, 0.0, link.port)).start()
    times_ms += [race(manager)]
    assert len({*times_ms}) == 1
    assert "either the way to it broke, or another collector" in caplog.text
    assert kept.output.count("is started") == 1


@pytest.mark.slow
def test_races_go_on_when_a_kept_game_is_stopped(keep_games, make_manager, caplog):
    kept = keep_games(1, "--greets-within", "15")
    manager = make_manager(kept.first_port, timeout_s=15.0)
    times_ms = [race(manager), race(manager)]
    kept.games()[0].send_signal(signal.SIGSTOP)
    times_ms += [race(manager), race(manager)]
    assert len({*times_ms}) == 1, times_ms
    assert f"the game at port {kept.first_port} was silent for 15 s" in caplog.text
    assert f"the game at port {kept.first_port} holds on to a connection that was over 15 s ago" in kept.output


@pytest.mark.slow
def test_a_game_that_is_too_old_is_replaced_in_the_middle_of_its_races(keep_games, make_manager):
    kept = keep_games(1, "--set", "game_reboot_interval_s=20.0")
    manager = make_manager(kept.first_port)
    times_ms = set()
    while kept.output.count("has run for 20 s") < 2:
        times_ms.add(race(manager))
    assert len(times_ms) == 1


def test_keep_games_leaves_nothing_behind_when_it_is_killed(keep_games, is_gone):
    kept = keep_games()
    kept.wait_until_it_says("greets")
    game = kept.games()[0].pid
    kept.process.kill()
    assert is_gone(game)


def test_one_collector_for_each_kept_game(keep_games, make_manager, caplog):
    kept = keep_games()
    managers = [make_manager(kept.first_port) for _ in range(2)]
    race(managers[0])
    with pytest.raises(GameKeepsFailingError, match="another collector of this machine plays on the kept game at port"):
        race(managers[1])
    managers[0].close()
    race(managers[1])


def test_who_takes_a_game_from_another_machine_is_told_of(keep_games, make_manager, caplog, tmp_path):
    kept = keep_games()
    managers = [make_manager(kept.first_port) for _ in range(2)]
    managers[1]._launcher = KeptGame(kept.first_port, tmp_path, tmp_path / "locks of another machine")
    race(managers[0])
    race(managers[1])
    assert "another collector has connected to it" not in caplog.text
    race(managers[0])
    assert "closed the connection" in caplog.text or "reset" in caplog.text
    assert f"the kept game at port {kept.first_port} runs on, but had let go of this collector" in caplog.text
    assert "another collector has connected to it" in caplog.text


# What listens, but is no kept game of ours.


@pytest.fixture
def answering(request):
    """A port at which somebody listens who says this to everybody, and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer():
        with contextlib.suppress(OSError):
            while True:
                with server.accept()[0] as client:
                    client.sendall(request.param)

    threading.Thread(target=answer, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.mark.parametrize(
    ("answering", "reason"),
    [(b"", "closed the connection"), (b"SSH-2.0-OpenSSH_9.2\r\n", "sent message id")],
    ids=["ssh that nobody listens behind", "another program"],
    indirect=["answering"],
)
def test_what_does_not_greet_is_told_in_one_line(answering, reason):
    game = KeptGame(answering)
    with pytest.raises(GameConnectionError) as error:
        game.wait_until_connectable(1.0)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(f"no kept game greets at port {answering} (")
    assert reason in text
    assert f"python scripts/keep_games.py --ports {answering}" in text
    assert f"ssh -N -R {answering}:127.0.0.1:{answering} USER@THIS_MACHINE" in text


def test_a_port_that_nobody_listens_at(settings):
    with pytest.raises(GameConnectionError, match=r"\(no game accepts connections .*games_are_kept = True: run python"):
        KeptGame(find_free_port(1)).wait_until_connectable(0.5)


class OlderGame(GameServer):
    """Of version 1."""

    def _is_in_menus(self, client):
        client.write(messages.pack_in_menus_answer(self.game.race is None, int(client.asks_for_version)))
        client.asks_for_version = False


def test_a_kept_game_of_another_version_is_told_once(maps_folder, caplog):
    server = OlderGame(SimulatedGame(maps_folder), 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        game = KeptGame(server.port, maps_folder)
        for _ in range(2):
            game.wait_until_connectable(10)
    finally:
        server.stop()
        thread.join()
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(told) == 1
    expected = f"runs version 1 of this project's plugin, and version {LINK_VERSION} is what this training was made for"
    assert expected in told[0]


# The command.


def test_a_port_in_use_ends_the_command_in_one_line(keep_games):
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = KeepGames(Path(keep_games.__closure__[0].cell_contents), server.getsockname()[1])
        assert kept.process.wait(60) == 1
    assert "error: port" in kept.output
    assert "--ports N (keep_games.py)" in kept.output
    assert "Traceback" not in kept.output


def test_no_torch_is_needed(repository_root):
    code = (
        "import runpy, sys\n"
        "for name in ('torch', 'torchrl', 'tensordict', 'ray', 'cv2', 'gymnasium', 'matplotlib', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "runpy.run_path('scripts/keep_games.py')\n"
        "from pathlib import Path\n"
        "from trackmania_rl.settings import load_settings\n"
        "load_settings(Path('config_files/config_tmnf.py'))\n"
        "files = {name.split('.')[0]: str(getattr(module, '__file__', '')) for name, module in sys.modules.items()}\n"
        "print(*(name for name, file in files.items() if 'site-packages' in file))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository_root, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    own = {"annotated_types", "llvmlite", "pydantic_core", "typing_extensions", "typing_inspection", "_distutils_hack"}
    listed = (repository_root / "requirements-games.txt").read_text().splitlines()
    needed = {line.split("==")[0] for line in listed if "==" in line}
    assert {*done.stdout.split()} - own - {"yaml"} <= needed
    assert {line for line in listed if "==" in line} <= {
        *(repository_root / "requirements.txt").read_text().splitlines()
    }


@pytest.mark.parametrize("words", [(), ("--ports", "8481-8478"), ("--ports", "80"), ("--ports", "8478-")])
def test_impossible_ports(repository_root, words):
    script = repository_root / "scripts" / "keep_games.py"
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "--ports" in done.stderr


def test_kept_games_need_sockets(settings):
    changes = {"game": "simulated", "game_transport": "in_process", "games_are_kept": True}
    with pytest.raises(ValueError, match=r"games_are_kept = True is for games that .* set game_transport = .socket"):
        type(settings.game)(**{**settings.game.model_dump(), **changes})
