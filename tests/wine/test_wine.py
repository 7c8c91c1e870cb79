"""The way into the real game under real Wine: stand_in.c takes the places of TMLoader.exe and TmForever.exe."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.training_command import TrainCommand
from trackmania_rl.errors import PlainError
from trackmania_rl.processes import is_running
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords, list_games
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.tmi_interaction.launchers.tmnf import TmnfLauncher

from ..lacking import lacks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMPILER = "x86_64-w64-mingw32-gcc"
TOOLS = ("wine", "wineserver", "Xvfb", "openbox", COMPILER)
BACKEND_PORT = 18400
READY_S = 60.0
STOPPED_S = 31.0  # longer than a game of a race may be silent
SERVE_A_GAME = """
import os, sys, threading
from pathlib import Path
from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.simulator.server.server import GameServer
server = GameServer(SimulatedGame(Path(sys.argv[1]), Path()), 0)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(server.port, flush=True)
server.run()
"""


def games():
    """The running stand-ins of this test."""
    return [game for game in list_games() if r"\TMLoader\TmForever.exe" in game.command_line]


def lend_a_game(lease, maps_folder, environment):
    """Run a simulated game until the connection of a TmForever.exe ends."""
    command = [sys.executable, "-c", SERVE_A_GAME, maps_folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
    with lease, subprocess.Popen(command, **pipes) as game, contextlib.suppress(OSError):
        lease.sendall(game.stdout.readline())
        lease.recv(1)
        game.kill()


def processes_of(home):
    """Wine's processes of a home."""
    found = psutil.process_iter(["name", "environ"])
    return [process for process in found if (process.info["environ"] or {}).get("HOME") == str(home)]


def end_services(home):
    """End the processes that a killed wineserver leaves."""
    for process in processes_of(home):
        with contextlib.suppress(psutil.Error):
            process.kill()


@pytest.fixture(scope="module")
def wine(tmp_path_factory, repository_root):
    """A home with a Wine prefix and the programs, on a display of its own; the variables for commands there."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        lacks(f"Wine is tested with {', '.join(TOOLS)}; {', '.join(missing)} is missing")
    home, own = tmp_path_factory.mktemp("home"), dict(os.environ)
    environment = own | {"HOME": str(home), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
    environment |= {"PYTHONPATH": str(repository_root)}
    programs = home / "TMLoader"
    programs.mkdir()
    for name in ("TMLoader.exe", "TmForever.exe", "Helper.exe"):
        source = ["-municode", "-mwindows", "-static", Path(__file__).with_name("stand_in.c"), "-lws2_32"]
        subprocess.run([COMPILER, "-O2", *source, "-o", programs / name], check=True)
    with contextlib.ExitStack() as at_end:
        reading, writing = os.pipe()
        screen = subprocess.Popen(["Xvfb", "-displayfd", str(writing), "-nolisten", "tcp"], pass_fds=[writing])
        at_end.callback(screen.kill)
        environment["DISPLAY"] = f":{os.read(reading, 10).decode().strip()}"
        at_end.callback(subprocess.Popen(["openbox"], env=environment).kill)
        at_end.callback(end_services, home)
        subprocess.run(["wineboot", "--init"], env=environment, check=True, capture_output=True, timeout=300)
        at_end.callback(subprocess.run, ["wineserver", "--kill"], env=environment, check=False)
        listener = at_end.enter_context(socket.create_server(("127.0.0.1", BACKEND_PORT)))

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    arguments = (listener.accept()[0], repository_root / "maps", own)
                    threading.Thread(target=lend_a_game, args=arguments, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield environment


@pytest.fixture
def make(wine, monkeypatch, repository_root, tmp_path):
    """`make(fault, port)` is a launcher whose next game has a fault."""
    for name in ("HOME", "DISPLAY", "WINEDEBUG", "WINEDLLOVERRIDES"):
        monkeypatch.setenv(name, wine[name])
    made = []

    def make_launcher(fault="", port=None):
        set_fault(wine, fault)
        user = UserSettings(game_command=f"sh {repository_root}/scripts/start_game_linux.sh {{port}}")
        made.append(TmnfLauncher(port or find_free_port(), user, records=GameRecords(tmp_path)))
        return made[-1]

    yield make_launcher
    for launcher in made:
        launcher.kill()
    assert not games()


def set_fault(wine, fault):
    file = Path(wine["HOME"], "TMLoader", "faults.txt")
    file.unlink(missing_ok=True)
    if fault:
        file.write_text(fault)


def started(launcher):
    launcher.start()
    launcher.wait_until_connectable(READY_S)
    return launcher


def test_a_game_starts_after_killed_and_left_behind_ones(make, tmp_path):
    port = find_free_port()
    for way in ("killed", "left behind", "ended") * 2:
        game = started(make(port=port))
        if way == "killed":
            os.kill(game.pid, signal.SIGKILL)
        elif way == "left behind":  # the owner of the record has ended
            record = tmp_path / f"{port}.json"
            record.write_text(record.read_text().replace(f"[{os.getpid()},", "[4194305,"))
        else:
            game.kill()


def test_a_game_that_starts_itself_again_is_followed_and_ends_with_its_helpers(make):
    for fault in ("again", "child"):
        game = make(fault)
        game.start()
        first = game.pid
        game.wait_until_connectable(READY_S)
        assert game.is_alive()
        assert (game.pid != first) == (fault == "again")
        game.kill()
        assert not games()
        helpers = [process for process in psutil.process_iter(["name"]) if process.info["name"] == "Helper.exe"]
        assert not any(map(is_running, helpers))


def test_failures_of_a_games_start_are_told_soon(make, monkeypatch):
    for fault, said in (("die", "it ended at once|ended while starting up"), ("", "DISPLAY is not set")):
        if not fault:
            monkeypatch.delenv("DISPLAY")
        game, began_s = make(fault), time.monotonic()
        with pytest.raises(PlainError, match=said):
            started(game)
        assert time.monotonic() - began_s < 30


def training(folder, wine, repository_root, *options, **settings):
    entry = {"map_name": "valley", "map_path": "valley.toml", "reference_line": "valley_0.5m.npy"}
    command = f"sh {repository_root}/scripts/start_game_linux.sh {{port}}"
    settings = {
        "game": "'tmnf'",
        "game_transport": "'socket'",
        "game_command": repr(command),
        "map_cycle": ({**entry, "is_explo": True, "fill_buffer": True},),
        "running_speed": 80,
        "n_collectors": 2,
        "games_per_collector": 1,
        "checkpoint_interval_s": 5,
        **settings,
    }
    return TrainCommand(folder, settings, options, wine)


def test_the_doctor_plays_a_game(wine, repository_root, tmp_path):
    set_fault(wine, "")
    entry = {"map_name": "valley", "map_path": "valley.toml", "reference_line": "valley_0.5m.npy"}
    settings = {
        "game_transport": "socket",
        "game_command": f"sh {repository_root}/scripts/start_game_linux.sh {{port}}",
        "map_cycle": ({**entry, "is_explo": True, "fill_buffer": True},),
        "base_tmi_port": find_free_port(),
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value!r}")]
    command = [
        sys.executable,
        repository_root / "scripts" / "doctor.py",
        "--preset",
        "tmnf",
        "--play",
        "--output-folder",
        tmp_path,
        *options,
    ]
    said = subprocess.run(command, cwd=tmp_path, env=wine, capture_output=True, text=True, timeout=300).stdout
    assert "play-drive: 5 s forward took the car" in said, said
    assert "0 problems" in said, said
    assert not games()


def wineservers(wine):
    return [process for process in processes_of(wine["HOME"]) if process.info["name"].startswith("wineserver")]


def test_two_games_train_through_kills_a_hang_and_a_resume(wine, repository_root, tmp_path):
    set_fault(wine, "hang")  # of one of them
    with training(tmp_path, wine, repository_root) as command:
        command.wait_for(lambda: len(command.races) >= 2, "first races", 180)
        command.wait_for(lambda: "was silent for 30 s" in command.output, "end of the game that hangs", 120)

        def races_go_on(what):
            n_races = len(command.races)
            command.wait_for(lambda: len(command.races) >= n_races + 4, f"races after {what}", 120)

        races_go_on("a hang")
        games()[0].identity.open().kill()
        races_go_on("the end of a game")
        for server in wineservers(wine):
            server.suspend()
        time.sleep(STOPPED_S)
        for server in wineservers(wine):
            server.resume()
        races_go_on("a standstill of Wine")
        for server in wineservers(wine):
            server.kill()
        races_go_on("the end of Wine")
        command.stop(signal.SIGINT)
        assert command.process.returncode == 0, command.output
        assert not games()
    with training(tmp_path, wine, repository_root, "--max-wall-s", "40") as command:
        command.process.wait(150)
        assert command.process.returncode == 0, command.output
        assert "frames" in command.output
    assert not games()
