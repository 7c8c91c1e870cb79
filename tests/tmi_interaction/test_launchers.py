"""Launchers with fake games: processes that start as the simulated game, TMLoader and Wine do, and never stay behind.

The real game's stand-in is a process that Linux and psutil call TmForever.exe.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers import launcher as launchers
from trackmania_rl.tmi_interaction.launchers import make_launcher, tmnf
from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords, ProcessIdentity
from trackmania_rl.tmi_interaction.launchers.kept_game import KeptGame
from trackmania_rl.tmi_interaction.launchers.launcher import PortInUseError, SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.launchers.tmnf import (
    TmnfLauncher,
    find_tmloader,
    split_game_command,
    start_command,
)
from trackmania_rl.tmi_interaction.tminterface2 import GameConnectionError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in for the game needs Linux")

GENEROUS_S = 60.0
GAME = """
import socket, subprocess, sys, time
if "again" in sys.argv:  # as a copy protection does
    time.sleep(0.5)
    subprocess.Popen([word for word in [EXECUTABLE, "-S", "-E", *sys.argv] if word != "again"])
    sys.exit()
port = next(word for word in sys.argv[1:] if word.isdigit())
server = None if "silent" in sys.argv else socket.create_server(("127.0.0.1", int(port)))
time.sleep(600)
"""
SILENT_GAME = "import time; time.sleep(600)"
STUBBORN_GAME = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + GAME
FAILING_GAME = "import sys; sys.exit('error: the track is made of cheese')"
HAND_OVER = """
import os, subprocess, sys
environment = dict(os.environ)
if "forget" in sys.argv:
    environment.pop("TRACKMANIA_RL_GAME")
if os.fork() == 0:
    os.setsid()
    subprocess.Popen(sys.argv[sys.argv.index("--") + 1:], env=environment)
    os._exit(0)
"""
NO_USER = UserSettings(
    game_command="", trackmania_base_path="", tmloader_path="", tmloader_profile_name="default", username=""
)
DEAD_PID = 2**22 + 1
"""A process number that Linux never gives."""


@pytest.fixture
def game(tmp_path):
    """The command of a TmForever.exe."""
    program = tmp_path / "TmForever.exe"
    program.symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "game.py").write_text(f"EXECUTABLE = {str(program)!r}\n{GAME}")
    return [str(program), "-S", "-E", str(tmp_path / "game.py")]


@pytest.fixture
def hand_over(tmp_path):
    """A starter that ends at once and leaves the game to init, as Wine does."""
    (tmp_path / "hand_over.py").write_text(HAND_OVER)
    return [sys.executable, str(tmp_path / "hand_over.py")]


@pytest.fixture
def records_folder(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    return folder


@pytest.fixture
def records(records_folder):
    return GameRecords(records_folder)


@pytest.fixture
def make(records, tmp_path):
    """`make(words, port, ...)` is a launcher of the real game that runs a command, and finds this test's games."""
    made = []

    def list_own_games():
        return [game for game in tmnf.list_games() if str(tmp_path) in game.command_line]

    def make_launcher_of(words, port=None, find_games=list_own_games, **user):
        port = port or find_free_port()
        settings = NO_USER.model_copy(update={"game_command": shlex.join(words), **user})
        made.append(TmnfLauncher(port, settings, records=records, find_games=find_games))
        return made[-1]

    yield make_launcher_of
    for launcher in made:
        launcher.kill()


@pytest.fixture
def make_simulated(tmp_path, monkeypatch):
    """`make_simulated(program, port)` is a launcher of the simulated game, whose script is replaced by a program."""
    made = []

    def make(program, port=None):
        script = tmp_path / "simulated_game.py"
        script.write_text(program)
        monkeypatch.setattr(launchers, "SIMULATED_GAME_SCRIPT", script)
        made.append(SimulatedGameLauncher(port or find_free_port(), tmp_path))
        return made[-1]

    yield make
    for launcher in made:
        launcher.kill()


def started(launcher):
    launcher.start()
    launcher.wait_until_connectable(GENEROUS_S)
    return launcher


# Games of any kind.


@pytest.mark.parametrize("way", ["simulated", "directly", "handed over", "handed over without the mark"])
def test_a_game_is_started_found_and_killed(make, make_simulated, game, hand_over, records, is_gone, way):
    starter = {"directly": [], "handed over": [*hand_over, "--"]}.get(way, [*hand_over, "forget", "--"])
    launcher = make_simulated(GAME) if way == "simulated" else make([*starter, *game, "{port}"])
    assert not launcher.is_alive()
    pids = []
    for _ in range(2):
        started(launcher)
        assert launcher.is_alive()
        assert way == "simulated" or psutil.Process(launcher.pid).name() == "TmForever.exe"
        pids.append(launcher.pid)
        launcher.kill()
        assert not launcher.is_alive()
        assert is_gone(pids[-1])
    assert pids[0] != pids[1]
    launcher.kill()
    assert records.left_behind(launcher.port) is None


def test_a_game_that_never_listens_is_given_up(make, make_simulated, game, is_gone):
    for launcher in (make_simulated(SILENT_GAME), make([*game, "silent", "{port}"])):
        launcher.start()
        with pytest.raises(GameConnectionError, match=r"does not listen at port \d+ after 0\.2 s"):
            launcher.wait_until_connectable(0.2)
    os.kill(launcher.pid, signal.SIGKILL)
    assert is_gone(launcher.pid)
    assert not launcher.is_alive()
    with pytest.raises(GameConnectionError, match="ended while starting up"):
        launcher.wait_until_connectable(GENEROUS_S)


def test_a_port_in_use_is_named_before_anything_starts(make, make_simulated, game):
    first = started(make([*game, "{port}"]))
    for launcher in (make_simulated(GAME, first.port), make([*game, "{port}"], port=first.port)):
        with pytest.raises(PortInUseError, match=f"port {first.port} is in use by TmForever.* .process {first.pid}.*"):
            launcher.start()
    assert first.is_alive()


def test_a_port_that_a_dead_game_keeps_for_a_moment_is_waited_for(make, game):
    launcher = make([*game, "{port}"])
    held = socket.create_server(("127.0.0.1", launcher.port))
    threading.Timer(0.5, held.close).start()
    assert started(launcher).is_alive()


def test_under_wine_the_game_at_a_port_is_named_and_not_wines_server(monkeypatch):
    game = tmnf.GameProcess(ProcessIdentity(5, 0.0), "TmForever.exe /configstring=set custom_port 8478")
    monkeypatch.setattr(launchers.psutil.Process, "name", lambda _: "wineserver64")
    with socket.create_server(("127.0.0.1", 0)) as held:
        for port, games in ((8478, [game]), (held.getsockname()[1], [])):
            monkeypatch.setattr(launchers, "list_games", lambda games=games: games)
            said = launchers._listener_text(port)
            assert said.startswith("a program under Wine" if not games else "the game TmForever.exe (process 5)")


def test_a_game_that_starts_itself_again_is_followed_and_ended(make, game, hand_over, records, is_gone):
    launcher = make([*hand_over, "--", *game, "again", "{port}"])
    launcher.start()
    first = launcher.pid
    launcher.wait_until_connectable(GENEROUS_S)
    assert launcher.is_alive()
    assert is_gone(first)
    assert launcher.pid != first
    second = launcher.pid
    launcher.kill()
    assert is_gone(second)
    assert records.left_behind(launcher.port) is None


# The simulated game.


def test_a_game_that_ends_at_once_is_quoted(make_simulated):
    with pytest.raises(GameConnectionError, match="ended while starting up: error: the track is made of cheese"):
        started(make_simulated(FAILING_GAME))


def test_a_game_that_ignores_sigterm_is_killed(make_simulated, monkeypatch, is_gone):
    monkeypatch.setattr(launchers, "TERMINATE_WITHIN_S", 0.2)
    launcher = started(make_simulated(STUBBORN_GAME))
    pid = launcher.pid
    launcher.kill()
    assert is_gone(pid)


# Which process is the real game.


def test_a_starter_that_fails_or_starts_no_game_or_two_is_told_and_ended(make, game, monkeypatch):
    with pytest.raises(GameConnectionError, match=r"ended with exit code 1: no TMLoader; run it by hand .* SystemExit"):
        make([sys.executable, "-c", "raise SystemExit('no TMLoader')", "{port}"]).start()
    monkeypatch.setattr(tmnf, "APPEARS_WITHIN_S", 0.3)
    with pytest.raises(GameConnectionError, match=r"appeared within 0\.3 s after the command ended .* at once: x;"):
        make([sys.executable, "-c", "import sys; sys.stderr.write('x\\n0024:fixme:a:b\\n')", "{port}"]).start()
    monkeypatch.setattr(tmnf, "FIND_WITHIN_S", 0.5)
    silent = [sys.executable, "-c", SILENT_GAME, "{port}"]
    launcher = make(silent)
    with pytest.raises(GameConnectionError, match=r"no process TmForever\.exe appeared within 0\.5 s"):
        launcher.start()
    children = [process.as_dict(["cmdline"]) for process in psutil.Process().children()]  # zombies have no command
    assert not any(str(launcher.port) in (child["cmdline"] or ()) for child in children)
    by_hand = [subprocess.Popen([*game, "silent", "1"]) for _ in range(2)]
    several = [tmnf.GameProcess(ProcessIdentity.of(psutil.Process(process.pid))) for process in by_hand]
    launcher = make(silent, find_games=iter([(), *[several] * 9]).__next__)
    try:
        with pytest.raises(GameConnectionError, match=f"several games .* the one for port {launcher.port}"):
            launcher.start()
        assert [process.poll() for process in by_hand] == [None, None]
    finally:
        for process in by_hand:
            process.kill()
            process.wait()


def test_several_that_start_at_once_each_find_their_own_and_leave_one_started_by_hand_alone(make, game, hand_over):
    by_hand = subprocess.Popen([*game, "silent", "1"])
    try:
        several = [make([*hand_over, "forget", "--", *game, "{port}"]) for _ in range(3)]
        threads = [threading.Thread(target=launcher.start) for launcher in several]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for launcher in several:
            launcher.wait_until_connectable(GENEROUS_S)
            assert psutil.Process(launcher.pid).cmdline()[-1] == str(launcher.port)
        several[1].kill()
        assert [launcher.is_alive() for launcher in several] == [True, False, True]
        assert by_hand.poll() is None
    finally:
        by_hand.kill()
        by_hand.wait()


# Games on record.


def test_a_game_whose_owner_is_killed_ends_at_the_latest_before_its_port_is_used_again(
    make, game, hand_over, records, records_folder, repository_root, is_gone
):
    port = find_free_port()
    program = f"""
import pathlib, time
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords
from trackmania_rl.tmi_interaction.launchers.tmnf import TmnfLauncher
user = UserSettings(game_command={shlex.join([*hand_over, "--", *game, "{port}"])!r}, trackmania_base_path="",
                    tmloader_path="", tmloader_profile_name="", username="")
records = GameRecords(pathlib.Path({str(records_folder)!r}))
launcher = TmnfLauncher({port}, user, records=records)
launcher.start()
launcher.wait_until_connectable({GENEROUS_S})
print(launcher.pid, flush=True)
time.sleep(600)"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=repository_root)
    with owner.stdout:
        pid = int(owner.stdout.readline())
        assert records.left_behind(port) is None  # its owner still runs
        owner.kill()
        owner.wait()
    assert records.left_behind(port).pid == pid
    started(make([*game, "{port}"], port=port))
    assert is_gone(pid)


def test_games_end_with_their_owner_and_no_others(make, game, records, records_folder):
    of_the_dead, own, of_another = (started(make([*game, "{port}"])) for _ in range(3))
    other = subprocess.Popen([sys.executable, "-c", SILENT_GAME])
    owners = ((of_the_dead, [DEAD_PID, 0.0]), (of_another, ProcessIdentity.of(psutil.Process(other.pid))))
    for launcher, owner in owners:
        file = records_folder / f"{launcher.port}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "owner": owner}))
    records.end_games_of(DEAD_PID)
    assert [launcher.is_alive() for launcher in (of_the_dead, own, of_another)] == [False, True, True]
    records.end_games_of(os.getpid())
    assert [launcher.is_alive() for launcher in (of_the_dead, own, of_another)] == [False, False, True]
    other.kill()
    other.wait()


def test_a_record_never_ends_a_process_that_is_no_game(records, records_folder):
    record = {"game": ProcessIdentity.of(psutil.Process()), "owner": [DEAD_PID, 0.0]}
    (records_folder / "9000.json").write_text(json.dumps(record))
    assert records.end_left_behind(9000) is None


def test_one_game_starts_at_a_time(records, records_folder):
    with (
        GameRecords(records_folder).starting(),
        pytest.raises(GameConnectionError, match=r"has been starting a game for 0\.1 s"),
        records.starting(0.1),
    ):
        pass
    with records.starting(0.1):
        pass


# Settings of users.


def test_the_launcher_that_a_game_and_a_system_need(settings, tmp_path):
    def launcher_of(game, platform, are_kept=False):
        changes = {"game": game, "games_are_kept": are_kept}
        return make_launcher(settings.game.model_copy(update=changes), NO_USER, 9000, tmp_path, platform)

    assert isinstance(launcher_of("simulated", "darwin"), SimulatedGameLauncher)
    assert isinstance(launcher_of("tmnf", "darwin", are_kept=True), KeptGame)
    for platform, told in (("win32", "TMLoader"), ("linux", "game_command")):
        with pytest.raises(UserError, match=told):
            launcher_of("tmnf", platform).start()
    with pytest.raises(UserError, match="not for darwin"):
        launcher_of("tmnf", "darwin")


def test_commands_and_maps_of_a_new_game(make, game, tmp_path):
    launcher = make([*game, "{port}"])
    assert launcher.commands_on_connect == ("toggle_console",)
    assert launcher.map_argument(r"My\A01.Challenge.Gbx") == "My/A01.Challenge.Gbx"
    windows = TmnfLauncher(9000, NO_USER, "win32")
    assert windows.map_argument(r"My\sub/A01.Challenge.Gbx") == r"My\sub\A01.Challenge.Gbx"
    launcher = make([*game, "{port}"], username="pilot", trackmania_base_path=str(tmp_path))
    assert launcher.commands_on_connect == ("toggle_console", "set autologin pilot")
    with pytest.raises(UserError, match=r"Tracks/Challenges/My/A01\.Challenge\.Gbx: the game has no such map"):
        launcher.check_map("My\\A01.Challenge.Gbx")
    (tmp_path / "Tracks" / "Challenges" / "My").mkdir(parents=True)
    (tmp_path / "Tracks" / "Challenges" / "My" / "A01.Challenge.Gbx").touch()
    launcher.check_map("My\\A01.Challenge.Gbx")


@pytest.mark.parametrize(("name", "content"), [("absent.toml", None), ("damaged.toml", "name = "), ("bad.npy", "x")])
def test_a_track_that_the_simulated_game_cannot_load_is_named(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=name):
        SimulatedGameLauncher(9000, tmp_path).check_map(name)


def test_the_command_of_windows(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "TMLoader.exe"
    user = NO_USER.model_copy(update={"tmloader_path": str(program), "tmloader_profile_name": "my profile"})
    with pytest.raises(UserError, match=r"tmloader_path = .*there is no such file"):
        start_command(8478, user, "win32")
    program.touch()
    command = start_command(8478, user, "win32")
    assert command == f'"{program}" run TmForever "my profile" /configstring="set custom_port 8478"'
    with pytest.raises(UserError, match="tmloader_profile_name = 'a\"b'"):
        start_command(8478, user.model_copy(update={"tmloader_profile_name": 'a"b'}), "win32")
    with pytest.raises(UserError, match="at its usual place"):
        find_tmloader(NO_USER)
    usual = tmp_path / "AppData" / "Local" / "TMLoader" / "TMLoader.exe"
    usual.parent.mkdir(parents=True)
    usual.touch()
    assert find_tmloader(NO_USER) == usual


def test_the_command_of_linux(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tm").mkdir()
    (tmp_path / "tm" / "start.sh").touch()
    command = 'sh ~/tm/start.sh run "my profile" /configstring="set custom_port {port}" a~/b'
    user = NO_USER.model_copy(update={"game_command": command})
    assert start_command(8481, user, "linux") == [
        *("sh", str(tmp_path / "tm/start.sh"), "run", "my profile", "/configstring=set custom_port 8481", "a~/b")
    ]
    for wrong, message in (
        ("  ", "game_command is empty"),
        ("sh start.sh", r"has no \{port\} in it"),
        ('sh "start.sh {port}', "No closing quotation"),
        ("no_such_program_at_all {port}", "there is no such program"),
        ("sh ~/other.sh {port}", "there is no .*other.sh; correct it"),
    ):
        with pytest.raises(UserError, match=message):
            split_game_command(wrong)
