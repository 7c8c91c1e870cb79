"""Launchers with fake games: processes that start as the simulated game, TMLoader and Wine do, and never stay behind.

The real game's stand-in is a process that Linux and psutil call TmForever.exe.
"""

import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers import launcher as launchers
from trackmania_rl.tmi_interaction.launchers import tmnf
from trackmania_rl.tmi_interaction.launchers.choice import make_launcher
from trackmania_rl.tmi_interaction.launchers.game_processes import (
    GameProcess,
    Launch,
    ProcessIdentity,
    find_started,
    identity_of,
    open_process,
)
from trackmania_rl.tmi_interaction.launchers.game_records import GameRecords
from trackmania_rl.tmi_interaction.launchers.launcher import PortInUseError, SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.launchers.linux import game_command, split_game_command
from trackmania_rl.tmi_interaction.launchers.tmnf import TmnfLauncher, with_own_separators
from trackmania_rl.tmi_interaction.launchers.windows import find_tmloader, tmloader_command
from trackmania_rl.tmi_interaction.transport import GameConnectionError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in for the game needs Linux")

GENEROUS_S = 60.0
GAME = """
import socket, sys, time
port = next(word for word in sys.argv[1:] if word.isdigit())
server = None if "silent" in sys.argv else socket.create_server(("127.0.0.1", int(port)))
time.sleep(600)
"""
STUBBORN_GAME = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + GAME
SILENT_GAME = "import time; time.sleep(600)"
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
    (tmp_path / "game.py").write_text(GAME)
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
def make(records):
    """`make(words, port, ...)` is a launcher of the real game that runs this command."""
    made = []

    def make_launcher_of(words, port=None, **user):
        port = port or find_free_port()
        settings = NO_USER.model_copy(update={"game_command": shlex.join(words), **user})
        made.append(TmnfLauncher(port, game_command(port, settings), None, settings, records))
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
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        server.accept()[0].close()  # the listener's side closes first, so the port lingers in TIME_WAIT
        client.close()
    launchers.check_port_is_free(port)


def test_free_ports_are_in_a_row_below_those_that_linux_hands_out():
    assert find_free_port(3) + 2 < 32_768


# The simulated game.


def test_a_game_that_ignores_sigterm_is_killed(make_simulated, monkeypatch):
    monkeypatch.setattr(launchers, "TERMINATE_WITHIN_S", 0.2)
    launcher = started(make_simulated(STUBBORN_GAME))
    pid = launcher.pid
    launcher.kill()
    assert not psutil.pid_exists(pid)


def test_a_game_that_ends_at_once_is_quoted(make_simulated):
    with pytest.raises(GameConnectionError, match="ended while starting up: error: the track is made of cheese"):
        started(make_simulated(FAILING_GAME))


# Which process is the real game.


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


LAUNCH = Launch(port=8478, mark="ours", starter_pid=500, at_s=1000.0, before=frozenset({ProcessIdentity(41, 900.0)}))
EVIDENCE = [
    {"mark": "ours"},
    {"command_line": 'Z:\\games\\TmForever.exe "/configstring=set custom_port 8478"'},
    {"ancestors": (510, 500, 1)},
    {},
]
"""Best first."""
OF_ANOTHER = [
    {"mark": "theirs"},
    {"command_line": "/configstring=set custom_port 84780"},
    {"mark": "theirs", "command_line": "set custom_port 8478"},
    {"mark": "theirs", "ancestors": (500,)},
]


def test_a_game_of_another_launcher_is_never_taken_and_the_best_evidence_wins():
    def found(*games):
        processes = [GameProcess(ProcessIdentity(pid, created_at_s), **known) for pid, created_at_s, known in games]
        return [game.identity.pid for game in find_started(LAUNCH, processes)]

    for own, other in itertools.product(EVIDENCE, OF_ANOTHER):
        for order in itertools.permutations(((7, 1003.0, own), (8, 1003.0, other), (41, 900.0, {}))):
            assert found(*order) == [7]
    assert found((41, 900.0, {}), (42, 990.0, {})) == [], "they began before"
    for best, known in enumerate(EVIDENCE):
        worse = [(pid, 1003.0, evidence) for pid, evidence in enumerate(EVIDENCE[best + 1 :])]
        assert found(*worse, (41, 1003.0, known)) == [41], "a number used again is another process"
    assert found((7, 1003.0, {}), (8, 1003.0, {})) == [7, 8], "they cannot be told apart"


def test_a_process_is_told_from_a_later_one_of_its_number_and_stays_the_same_when_the_clock_is_set():
    own = identity_of(psutil.Process())
    for step_s, pid in ((0.0, os.getpid()), (-30.0, os.getpid()), (30.0, os.getpid()), (-120.0, None)):
        process = open_process(ProcessIdentity(own.pid, own.created_at_s + step_s))
        assert (process and process.pid) == pid


def test_starters_that_fail_or_start_nothing_are_reported(make, monkeypatch, is_gone):
    with pytest.raises(GameConnectionError, match=r"ended with exit code 3: run it by hand"):
        make([sys.executable, "-c", "raise SystemExit(3)", "{port}"]).start()
    monkeypatch.setattr(tmnf, "FIND_WITHIN_S", 0.5)
    launcher = make([sys.executable, "-c", SILENT_GAME, "{port}"])
    with pytest.raises(GameConnectionError, match=r"no process TmForever\.exe appeared within 0\.5 s"):
        launcher.start()
    left = [child for child in psutil.Process().children() if str(launcher.port) in child.cmdline()]
    assert all(is_gone(child.pid) for child in left)


# Games on record.


def run_owner(program, repository_root):
    """Start a process that runs these lines, says something, and waits to be killed."""
    code = f"import pathlib, time\n{program}\ntime.sleep(600)\n"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=repository_root)


@pytest.mark.parametrize("kind", ["simulated", "tmnf"])
def test_a_game_whose_owner_is_killed_ends_at_the_latest_before_its_port_is_used_again(
    make, game, hand_over, records, records_folder, tmp_path, repository_root, is_gone, kind
):
    port = find_free_port()
    (tmp_path / "stubborn.py").write_text(STUBBORN_GAME)
    simulated = f"""
from trackmania_rl.tmi_interaction.launchers import launcher as launchers
launchers.SIMULATED_GAME_SCRIPT = pathlib.Path({str(tmp_path / "stubborn.py")!r})
launcher = launchers.SimulatedGameLauncher({port}, pathlib.Path("."))"""
    of_the_real_game = f"""
from trackmania_rl.settings import UserSettings
from trackmania_rl.tmi_interaction.launchers.game_records import GameRecords
from trackmania_rl.tmi_interaction.launchers.linux import game_command
from trackmania_rl.tmi_interaction.launchers.tmnf import TmnfLauncher
user = UserSettings(game_command={shlex.join([*hand_over, "--", *game, "{port}"])!r}, trackmania_base_path="",
                    tmloader_path="", tmloader_profile_name="", username="")
records = GameRecords(pathlib.Path({str(records_folder)!r}))
launcher = TmnfLauncher({port}, game_command({port}, user), None, user, records)"""
    program = simulated if kind == "simulated" else of_the_real_game
    program += f"\nlauncher.start()\nlauncher.wait_until_connectable({GENEROUS_S})\nprint(launcher.pid, flush=True)"
    owner = run_owner(program, repository_root)
    with owner.stdout:
        pid = int(owner.stdout.readline())
        assert records.left_behind(port) is None  # its owner still runs
        owner.kill()
        owner.wait()
    if kind == "tmnf":
        assert records.left_behind(port).pid == pid
        started(make([*game, "{port}"], port=port))
    assert is_gone(pid)


def test_games_end_with_their_owner_and_no_others(make, game, records, records_folder):
    of_the_dead, own, of_another = (started(make([*game, "{port}"])) for _ in range(3))
    other = subprocess.Popen([sys.executable, "-c", SILENT_GAME])
    owners = ((of_the_dead, [DEAD_PID, 0.0]), (of_another, identity_of(psutil.Process(other.pid))))
    for launcher, owner in owners:
        file = records_folder / f"{launcher.port}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "owner": owner}))
    records.end_games_of(DEAD_PID)
    assert [launcher.is_alive() for launcher in (of_the_dead, own, of_another)] == [False, True, True]
    records.end_own()
    assert [launcher.is_alive() for launcher in (of_the_dead, own, of_another)] == [False, False, True]
    other.kill()
    other.wait()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"game": [1], "owner": [1, 2]}', '{"game": 3}', "a process that is no game"],
)
def test_a_record_that_cannot_be_trusted_ends_nothing(records, records_folder, content):
    if content.startswith("a process"):
        content = json.dumps({"game": identity_of(psutil.Process()), "owner": [DEAD_PID, 0.0]})
    (records_folder / "9000.json").write_text(content)
    assert records.left_behind(9000) is None
    assert records.end_left_behind(9000) is None
    records.end_own()


def test_the_lock_of_starts_is_released_when_its_holder_is_killed_or_fails(
    records, records_folder, make, game, repository_root
):
    program = f"""
from trackmania_rl.tmi_interaction.launchers.game_records import GameRecords
lock = GameRecords(pathlib.Path({str(records_folder)!r})).starting()
lock.__enter__()
print("locked", flush=True)"""
    holder = run_owner(program, repository_root)
    with holder.stdout:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(GameConnectionError, match=r"has been starting a game for 0\.1 s"), records.starting(0.1):
            pass
        holder.kill()
        holder.wait()
    with pytest.raises(KeyboardInterrupt), records.starting(GENEROUS_S):
        raise KeyboardInterrupt
    started(make([*game, "{port}"]))
    with records.starting(GENEROUS_S):  # the game, started within the lock, does not hold it
        pass


# What users set.


def test_commands_and_maps_of_a_new_game(make, game, tmp_path):
    launcher = make([*game, "{port}"])
    assert launcher.commands_on_connect == ("toggle_console",)
    launcher.check_map("A01.Challenge.Gbx")  # without a folder nothing is known of its maps
    assert launcher.map_argument(r"My\A01.Challenge.Gbx") == "My/A01.Challenge.Gbx"
    assert with_own_separators(r"My\sub/A01.Challenge.Gbx", "win32") == r"My\sub\A01.Challenge.Gbx"
    launcher = make([*game, "{port}"], username="pilot", trackmania_base_path=str(tmp_path))
    assert launcher.commands_on_connect == ("toggle_console", "set autologin pilot")
    with pytest.raises(UserError, match=r"Tracks/Challenges/My/A01\.Challenge\.Gbx: the game has no such map"):
        launcher.check_map("My\\A01.Challenge.Gbx")
    (tmp_path / "Tracks" / "Challenges" / "My").mkdir(parents=True)
    (tmp_path / "Tracks" / "Challenges" / "My" / "A01.Challenge.Gbx").touch()
    launcher.check_map("My\\A01.Challenge.Gbx")


def test_the_command_of_windows(tmp_path):
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
        with pytest.raises(UserError, match=message):
            make_launcher(real, NO_USER, 9000, tmp_path, platform).start()
    with pytest.raises(UserError, match="not for darwin"):
        make_launcher(real, NO_USER, 9000, tmp_path, "darwin")
