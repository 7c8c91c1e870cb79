"""Game processes: started, found, killed, and never left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from trackmania_rl.tmi_interaction.launchers import launcher as launchers
from trackmania_rl.tmi_interaction.launchers.launcher import PortInUseError, SimulatedGameLauncher, check_port_is_free
from trackmania_rl.tmi_interaction.transport import GameConnectionError

LISTENING_GAME = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
time.sleep(60)
"""
STUBBORN_GAME = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LISTENING_GAME
SILENT_GAME = "import time; time.sleep(60)"
FAILING_GAME = "import sys; sys.exit('error: the track is made of cheese')"


@pytest.fixture
def free_port():
    return launchers.find_free_port()


@pytest.fixture
def make_launcher(tmp_path, monkeypatch, free_port):
    """A launcher whose game is a script of a few lines."""
    made = []

    def make(program):
        script = tmp_path / "game.py"
        script.write_text(program)
        monkeypatch.setattr(launchers, "SIMULATED_GAME_SCRIPT", script)
        made.append(SimulatedGameLauncher(free_port, tmp_path))
        return made[-1]

    yield make
    for launcher in made:
        launcher.kill()


def test_a_game_is_started_found_and_killed(make_launcher):
    launcher = make_launcher(LISTENING_GAME)
    assert not launcher.is_alive()
    launcher.start()
    launcher.wait_until_connectable(10)
    assert launcher.is_alive()
    first = launcher.pid
    launcher.kill()
    launcher.start()
    launcher.wait_until_connectable(10)
    assert launcher.pid != first
    assert not psutil.pid_exists(first)
    second = launcher.pid
    launcher.kill()
    assert not launcher.is_alive()
    assert not psutil.pid_exists(second)
    launcher.kill()


def test_a_game_that_ignores_sigterm_is_killed(make_launcher, monkeypatch):
    monkeypatch.setattr(launchers, "TERMINATE_WITHIN_S", 0.2)
    launcher = make_launcher(STUBBORN_GAME)
    launcher.start()
    launcher.wait_until_connectable(10)
    pid = launcher.pid
    launcher.kill()
    assert not psutil.pid_exists(pid)


def test_a_game_that_ends_at_once_is_quoted(make_launcher):
    launcher = make_launcher(FAILING_GAME)
    launcher.start()
    with pytest.raises(GameConnectionError, match="ended while starting up: error: the track is made of cheese"):
        launcher.wait_until_connectable(10)
    assert not launcher.is_alive()


def test_a_game_that_never_listens_is_given_up(make_launcher):
    launcher = make_launcher(SILENT_GAME)
    launcher.start()
    with pytest.raises(GameConnectionError, match=r"does not listen at port \d+ after 0\.2 s"):
        launcher.wait_until_connectable(0.2)


def test_a_port_in_use_names_who_uses_it(make_launcher, free_port):
    launcher = make_launcher(LISTENING_GAME)
    with socket.create_server(("127.0.0.1", free_port)), pytest.raises(PortInUseError) as caught:
        launcher.start()
    assert f"port {free_port} is in use" in str(caught.value)
    assert f"process {os.getpid()}" in str(caught.value)
    assert "base_tmi_port" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_free_ports_are_in_a_row_and_nobody_is_given_them_by_chance():
    first = launchers.find_free_port(3)
    with contextlib.ExitStack() as stack:
        for port in range(first, first + 3):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
    assert first + 2 < 32_768  # the first of those that Linux gives to whoever binds to port 0


def test_a_port_is_free_again_right_after_a_connection(free_port):
    with socket.create_server(("127.0.0.1", free_port)) as server:
        client = socket.create_connection(("127.0.0.1", free_port))
        accepted, _ = server.accept()
        accepted.close()  # the listener's side closes first, so the port lingers in TIME_WAIT
        client.close()
    check_port_is_free(free_port)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel ends orphans on Linux only")
def test_the_game_dies_with_the_process_that_started_it(tmp_path, free_port, repository_root, is_gone):
    game = tmp_path / "game.py"
    game.write_text(STUBBORN_GAME)
    parent_program = f"""
import pathlib, time
from trackmania_rl.tmi_interaction.launchers import launcher as launchers
launchers.SIMULATED_GAME_SCRIPT = pathlib.Path({str(game)!r})
launcher = launchers.SimulatedGameLauncher({free_port}, pathlib.Path("."))
launcher.start()
launcher.wait_until_connectable(10)
print(launcher.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_program], stdout=subprocess.PIPE, text=True, cwd=repository_root
    )
    assert parent.stdout is not None
    with parent.stdout:
        game_pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert is_gone(game_pid)


def test_a_game_that_is_a_child_of_the_process_started_is_found(make_launcher, tmp_path):
    (tmp_path / "listening.py").write_text(LISTENING_GAME)
    launcher = make_launcher(
        "import subprocess, sys\n"  # as a virtual environment's Python on Windows
        f"subprocess.run([sys.executable, {str(tmp_path / 'listening.py')!r}, *sys.argv[1:]])\n"
    )
    launcher.start()
    launcher.wait_until_connectable(10)
    children = psutil.Process(launcher.pid).children()
    launcher.kill()
    for child in children:  # Windows ends it together with its parent
        child.kill()


def test_ctrl_c_does_not_reach_the_game_on_any_system(make_launcher, monkeypatch):
    started = []
    monkeypatch.setattr(launchers, "OWN_PROCESS_GROUP", 0x200)
    monkeypatch.setattr(launchers.subprocess, "Popen", lambda command, **options: started.append(options))
    make_launcher(SILENT_GAME).start()
    assert started[0]["creationflags"] == 0x200  # Windows
    assert started[0]["start_new_session"] is True  # elsewhere
