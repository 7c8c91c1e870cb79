"""The real game's launcher, with processes that are called TmForever.exe and start as Wine and TMLoader start them."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers import tmnf as tmnf_launcher
from trackmania_rl.tmi_interaction.launchers.choice import make_launcher
from trackmania_rl.tmi_interaction.launchers.game_processes import GameProcess, identity_of
from trackmania_rl.tmi_interaction.launchers.game_records import GameRecords
from trackmania_rl.tmi_interaction.launchers.launcher import PortInUseError, SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.launchers.linux import game_command, split_game_command
from trackmania_rl.tmi_interaction.launchers.tmnf import TmnfLauncher, with_own_separators
from trackmania_rl.tmi_interaction.launchers.windows import find_tmloader, tmloader_command
from trackmania_rl.tmi_interaction.transport import GameConnectionError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in for the game needs Linux")

GAME = """
import socket, sys, time
if sys.argv[1] != "silent":
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(60)
"""
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


class FakeWindows:
    def __init__(self):
        self.log = []
        self.minimised = False

    def find(self, pid):
        self.log.append(("find", pid))
        return 77

    def is_minimised(self, window):
        return self.minimised

    def restore(self, window):
        self.minimised = False
        self.log.append(("restore", window))

    def focus(self, window):
        self.log.append(("focus", window))


@pytest.fixture
def game(tmp_path):
    """The command of a process that Linux and psutil call TmForever.exe."""
    program = tmp_path / "TmForever.exe"
    program.symlink_to(os.path.realpath(sys.executable))
    script = tmp_path / "game.py"
    script.write_text(GAME)
    return [str(program), "-S", "-E", str(script)]


@pytest.fixture
def hand_over(tmp_path):
    """A starter that ends at once and leaves the game to init, as Wine does."""
    script = tmp_path / "hand_over.py"
    script.write_text(HAND_OVER)
    return [sys.executable, str(script)]


@pytest.fixture
def records(tmp_path):
    return GameRecords(tmp_path / "records")


@pytest.fixture
def make(records):
    made = []

    def make_launcher_of(words, port=None, **user):
        port = port or find_free_port()
        settings = NO_USER.model_copy(update={"game_command": shlex.join(words), **user})
        windows = FakeWindows()
        launcher = TmnfLauncher(port, game_command(port, settings), lambda: windows, settings, records)
        launcher.fake_windows = windows
        made.append(launcher)
        return launcher

    yield make_launcher_of
    for launcher in made:
        launcher.kill()


@pytest.mark.parametrize("way", ["directly", "handed over", "handed over without the mark"])
def test_a_game_is_started_found_and_killed(make, game, hand_over, records, is_gone, way):
    starter = {"directly": [], "handed over": [*hand_over, "--"]}.get(way, [*hand_over, "forget", "--"])
    launcher = make([*starter, *game, "{port}"])
    assert not launcher.is_alive()
    launcher.start()
    launcher.wait_until_connectable(10)
    assert launcher.is_alive()
    assert psutil.Process(launcher.pid).name() == "TmForever.exe"
    first = launcher.pid
    launcher.kill()
    launcher.start()
    launcher.wait_until_connectable(10)
    assert launcher.pid != first
    assert is_gone(first)
    second = launcher.pid
    launcher.kill()
    assert not launcher.is_alive()
    assert is_gone(second)
    launcher.kill()
    assert records.left_behind(launcher.port) is None


def test_several_that_start_at_once_each_find_their_own(make, game, hand_over):
    launchers = [make([*hand_over, "forget", "--", *game, "{port}"]) for _ in range(3)]
    threads = [threading.Thread(target=launcher.start) for launcher in launchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for launcher in launchers:
        launcher.wait_until_connectable(10)
        assert psutil.Process(launcher.pid).cmdline()[-1] == str(launcher.port)
    launchers[1].kill()
    assert launchers[0].is_alive()
    assert launchers[2].is_alive()


def test_a_game_started_by_hand_meanwhile_is_left_alone(make, game):
    by_hand = subprocess.Popen([*game, "silent"])
    try:
        launcher = make([*game, "{port}"])
        launcher.start()
        launcher.wait_until_connectable(10)
        assert launcher.pid != by_hand.pid
        launcher.kill()
        assert by_hand.poll() is None
    finally:
        by_hand.kill()
        by_hand.wait()


def test_of_two_new_games_that_cannot_be_told_apart_neither_is_taken_nor_ended(make, game, monkeypatch):
    monkeypatch.setattr(tmnf_launcher, "FIND_WITHIN_S", 0.5)
    launcher = make([sys.executable, "-c", "import time; time.sleep(60)", "{port}"])
    begun = []

    def find_games():
        if launcher._starter is not None and not begun:
            begun.extend(subprocess.Popen([*game, "silent"]) for _ in range(2))
        return [GameProcess(identity_of(psutil.Process(process.pid))) for process in begun]

    launcher._find_games = find_games
    try:
        with pytest.raises(
            GameConnectionError, match=f"several games have begun since the one for port {launcher.port}"
        ):
            launcher.start()
        assert launcher.pid is None
        assert [process.poll() for process in begun] == [None, None]
    finally:
        for process in begun:
            process.kill()
            process.wait()


def test_a_game_that_died_is_noticed(make, game, is_gone):
    launcher = make([*game, "{port}"])
    launcher.start()
    launcher.wait_until_connectable(10)
    os.kill(launcher.pid, signal.SIGKILL)
    assert is_gone(launcher.pid)
    assert not launcher.is_alive()


def test_a_starter_that_fails_and_one_that_starts_nothing_are_told(make, monkeypatch):
    with pytest.raises(GameConnectionError, match=r"ended with exit code 3: run it by hand"):
        make([sys.executable, "-c", "raise SystemExit(3)", "{port}"]).start()
    monkeypatch.setattr(tmnf_launcher, "FIND_WITHIN_S", 0.5)
    launcher = make([sys.executable, "-c", "import time; time.sleep(60)", "{port}"])
    with pytest.raises(GameConnectionError, match=r"no process TmForever\.exe appeared within 0\.5 s"):
        launcher.start()
    assert not any("{port}" in word or str(launcher.port) in word for p in psutil.process_iter() for word in _words(p))


def _words(process):
    try:
        return process.cmdline()[1:4] if process.pid != os.getpid() else []
    except psutil.Error:
        return []


def test_a_game_that_never_listens_is_given_up(make, game):
    launcher = make([*game, "silent", "{port}"])
    launcher.start()
    with pytest.raises(GameConnectionError, match=r"does not listen at port \d+ after 0\.2 s: is the plugin"):
        launcher.wait_until_connectable(0.2)
    launcher.kill()
    with pytest.raises(GameConnectionError, match="ended while starting up"):
        launcher.wait_until_connectable(0.2)


def test_a_port_in_use_is_told_before_anything_starts(make, game):
    first = make([*game, "{port}"])
    first.start()
    first.wait_until_connectable(10)
    with pytest.raises(PortInUseError):
        make([*game, "{port}"], port=first.port).start()
    assert first.is_alive()


def test_a_game_whose_owner_was_killed_is_ended_before_its_port_is_used_again(
    make, game, hand_over, records, tmp_path, repository_root, is_gone
):
    port = find_free_port()
    words = shlex.join([*hand_over, "--", *game, "{port}"])
    program = f"""
import pathlib, time
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers.game_records import GameRecords
from trackmania_rl.tmi_interaction.launchers.linux import game_command
from trackmania_rl.tmi_interaction.launchers.tmnf import TmnfLauncher
user = UserSettings(game_command={words!r}, trackmania_base_path="", tmloader_path="", tmloader_profile_name="",
                    username="")
records = GameRecords(pathlib.Path({str(tmp_path / "records")!r}))
launcher = TmnfLauncher({port}, game_command({port}, user), None, user, records)
launcher.start()
launcher.wait_until_connectable(10)
print(launcher.pid, flush=True)
time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=repository_root)
    with owner.stdout:
        pid = int(owner.stdout.readline())
        assert records.left_behind(port) is None  # its owner still runs
        owner.kill()
        owner.wait()
    try:
        assert records.left_behind(port).pid == pid
        launcher = make([*game, "{port}"], port=port)
        launcher.start()
        launcher.wait_until_connectable(10)
        assert is_gone(pid)
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_own_games_end_on_request(make, game, records):
    launchers = [make([*game, "{port}"]) for _ in range(2)]
    for launcher in launchers:
        launcher.start()
    records.end_own()
    assert not any(launcher.is_alive() for launcher in launchers)


def test_games_of_a_process_that_was_killed_end_on_request_and_no_others(make, game, records, tmp_path):
    of_the_dead, own = (make([*game, "{port}"]) for _ in range(2))
    for launcher in (of_the_dead, own):
        launcher.start()
    file, dead_pid = tmp_path / "records" / f"{of_the_dead.port}.json", 2**22 + 1
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "owner": [dead_pid, 0.0]}))
    records.end_games_of(dead_pid)
    assert (of_the_dead.is_alive(), own.is_alive()) == (False, True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"game": [1], "owner": [1, 2]}', '{"game": 3}'])
def test_a_record_that_cannot_be_trusted_is_none(records, tmp_path, content):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "9000.json").write_text(content)
    assert records.left_behind(9000) is None
    assert records.end_left_behind(9000) is None
    records.end_own()


def test_a_record_never_ends_a_process_that_is_no_game(records, tmp_path):
    (tmp_path / "records").mkdir()
    own = psutil.Process()
    record = {"game": [own.pid, own.create_time()], "owner": [2**22 + 1, 0.0]}
    (tmp_path / "records" / "9000.json").write_text(json.dumps(record))
    assert records.end_left_behind(9000) is None


def test_the_lock_comes_back_when_its_holder_is_killed(records, tmp_path, repository_root):
    program = f"""
import pathlib, time
from trackmania_rl.tmi_interaction.launchers.game_records import GameRecords
with GameRecords(pathlib.Path({str(tmp_path / "records")!r})).starting():
    print("locked", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=repository_root)
    with holder.stdout:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(GameConnectionError, match=r"has been starting a game for 0\.1 s"), records.starting(0.1):
            pass
        holder.kill()
        holder.wait()
    with records.starting(5.0):
        pass


def test_the_lock_is_given_back_whatever_happens(records, make, game):
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), records.starting(1.0):
            raise error
    launcher = make([*game, "{port}"])
    launcher.start()
    assert launcher.is_alive()  # and the game, started within the lock, does not hold it
    with records.starting(1.0):
        pass


def test_the_window_is_found_shown_and_focused_once(make, game):
    launcher = make([*game, "{port}"])
    launcher.show_window()
    launcher.start()
    windows = launcher.fake_windows
    assert windows.log == []
    for _ in range(3):
        launcher.show_window()
    assert windows.log == [("find", launcher.pid)], "it is not focused in the menus"
    for _ in range(3):
        launcher.focus_window()
    assert windows.log[1:] == [("focus", 77)]
    windows.minimised = True
    launcher.show_window()
    assert windows.log[2:] == [("restore", 77)]
    launcher.kill()
    launcher.start()
    launcher.focus_window()
    assert windows.log[3:] == [("find", launcher.pid), ("focus", 77)]


def test_what_a_new_game_is_told(make, game):
    assert make([*game, "{port}"]).commands_on_connect == ("toggle_console",)
    assert make([*game, "{port}"], username="pilot").commands_on_connect == ("toggle_console", "set autologin pilot")


def test_a_map_that_the_game_lacks_is_named(make, game, tmp_path):
    make([*game, "{port}"]).check_map("A01.Challenge.Gbx")  # nothing is known of its maps
    launcher = make([*game, "{port}"], trackmania_base_path=str(tmp_path))
    with pytest.raises(UserError, match=r"Tracks/Challenges/My/A01\.Challenge\.Gbx: the game has no such map"):
        launcher.check_map("My\\A01.Challenge.Gbx")
    (tmp_path / "Tracks" / "Challenges" / "My").mkdir(parents=True)
    (tmp_path / "Tracks" / "Challenges" / "My" / "A01.Challenge.Gbx").touch()
    launcher.check_map("My\\A01.Challenge.Gbx")


@pytest.mark.parametrize(
    ("platform", "told"), [("win32", r"My\sub\A01.Challenge.Gbx"), ("linux", "My/sub/A01.Challenge.Gbx")]
)
def test_the_game_is_told_a_map_with_the_separators_of_its_system(make, game, platform, told):
    for written in ("My/sub/A01.Challenge.Gbx", r"My\sub\A01.Challenge.Gbx", r"My\sub/A01.Challenge.Gbx"):
        assert with_own_separators(written, platform) == told
    assert make([*game, "{port}"]).map_argument(r"My\A01.Challenge.Gbx") == "My/A01.Challenge.Gbx"


def test_the_command_of_windows(tmp_path, make):
    program = tmp_path / "TMLoader.exe"
    user = NO_USER.model_copy(update={"tmloader_path": str(program), "tmloader_profile_name": "my profile"})
    with pytest.raises(UserError, match=r"tmloader_path = .*there is no such file"):
        tmloader_command(8478, user)()
    program.touch()
    command = tmloader_command(8478, user)()
    assert command.arguments == f'"{program}" run TmForever "my profile" /configstring="set custom_port 8478"'
    with pytest.raises(UserError, match="tmloader_profile_name = 'a\"b'"):
        tmloader_command(8478, user.model_copy(update={"tmloader_profile_name": 'a"b'}))()
    with pytest.raises(UserError, match="at its usual place"):
        find_tmloader(NO_USER, tmp_path)
    usual = tmp_path / "AppData" / "Local" / "TMLoader" / "TMLoader.exe"
    usual.parent.mkdir(parents=True)
    usual.touch()
    assert find_tmloader(NO_USER, tmp_path) == usual


def test_the_command_of_linux(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    command = 'sh ~/tm/start.sh run "my profile" /configstring="set custom_port {port}" a~/b'
    user = NO_USER.model_copy(update={"game_command": command})
    assert game_command(8481, user)().arguments == [
        *("sh", str(tmp_path / "tm/start.sh"), "run", "my profile", "/configstring=set custom_port 8481", "a~/b")
    ]
    for wrong, message in (
        ("  ", "game_command is empty"),
        ("sh start.sh", r"has no \{port\} in it"),
        ('sh "start.sh {port}', "No closing quotation"),
        ("no_such_program_at_all {port}", "there is no such program"),
    ):
        with pytest.raises(UserError, match=message):
            split_game_command(wrong)


def test_the_launcher_that_a_game_and_a_system_need(tmp_path):
    simulated, real = (SimpleNamespace(game=game, games_are_kept=False) for game in ("simulated", "tmnf"))
    assert isinstance(make_launcher(simulated, NO_USER, 9000, tmp_path, "darwin"), SimulatedGameLauncher)
    for platform, message in (("win32", "TMLoader"), ("linux", "game_command")):
        launcher = make_launcher(real, NO_USER, 9000, tmp_path, platform)
        assert isinstance(launcher, TmnfLauncher)
        with pytest.raises(UserError, match=message):
            launcher.start()
    with pytest.raises(UserError, match="not for darwin"):
        make_launcher(real, NO_USER, 9000, tmp_path, "darwin")


def test_games_of_another_process_that_lives_are_left_running(game, records, tmp_path):
    (tmp_path / "records").mkdir()
    file = tmp_path / "records" / "9000.json"
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    other = subprocess.Popen([*game, "silent"])
    try:
        identities = {"game": other, "owner": owner}
        file.write_text(json.dumps({name: identity_of(psutil.Process(p.pid)) for name, p in identities.items()}))
        records.end_own()
        assert other.poll() is None
        assert file.is_file()
    finally:
        for process in (other, owner):
            process.kill()
            process.wait()
