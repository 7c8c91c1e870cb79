"""Findings of the doctor on machines that are made up."""

import socket
from importlib.metadata import Distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trackmania_rl.doctor import checks, examination
from trackmania_rl.doctor.checks import check_game, check_ports, check_start
from trackmania_rl.doctor.examination import check_distribution, check_packages, examine, pinned
from trackmania_rl.doctor.findings import Check, Context, Level
from trackmania_rl.errors import UserError
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.launchers.game_windows import WindowError
from trackmania_rl.tmi_interaction.launchers.kept_game import lock_of_kept_game
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.tmi_interaction.tminterface2 import GameConnectionError

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM
GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """`machine(platform=...)` is a Linux machine on which all is well, but for the arguments."""

    def make(
        platform="linux",
        gpu=None,
        available_bytes=64 * GIB,
        free_disk_bytes=100 * GIB,
        programs=("wine", "sh"),
        open_windows=lambda: None,
    ):
        memory = SimpleNamespace(total=96 * GIB, available=available_bytes)
        disk = SimpleNamespace(free=free_disk_bytes)
        for name, stand_in in {
            "sys": SimpleNamespace(platform=platform),
            "platform": SimpleNamespace(system=lambda: "Linux", release=lambda: "6.1"),
            "usable_cores": lambda: 4,
            "psutil": SimpleNamespace(virtual_memory=lambda: memory),
            "shutil": SimpleNamespace(
                disk_usage=lambda folder: disk if folder.exists() else None,
                which=lambda program: f"/usr/bin/{program}" if program in programs else None,
            ),
            "_gpu": lambda: gpu,
            "open_windows": open_windows,
        }.items():
            monkeypatch.setattr(checks, name, stand_in)
        monkeypatch.setattr(examination, "_installed_version", {"numpy": "2.4.6", "torch": "2.13.0+cpu"}.get)
        for variable in ("HOME", "USERPROFILE"):
            monkeypatch.setenv(variable, str(tmp_path))

    make()
    return make


@pytest.fixture
def context(machine, tmp_path, repository_root):
    """`context("name=value", config="config.py", **of_machine)`: a configuration on such a machine."""

    def make(*overrides, config="config.py", folder=tmp_path, **of_machine):
        machine(**of_machine)
        settings = load_settings(repository_root / "config_files" / config, overrides)
        return Context(settings, folder, repository_root)

    return make


@pytest.fixture
def findings(machine, tmp_path, repository_root):
    """`findings(Check.GPU, "name=value", config="config.py", **of_machine)`: (level, text) of this check."""

    def find(check, *overrides, config="config.py", folder=tmp_path, **of_machine):
        machine(**of_machine)
        found = list(examine(repository_root / "config_files" / config, overrides, folder, repository_root))
        assert not any("\n" in each.text for each in found)
        return [(each.level, each.text) for each in found if each.check is check]

    return find


def only(found):
    found = list(found)
    assert len(found) == 1, found
    return found[0].level, found[0].text


REAL = "config_tmnf.py"


def no_windows():
    raise WindowError("there is no screen")


@pytest.mark.parametrize(
    ("check", "config", "overrides", "of_machine", "level", "words"),
    [
        (Check.PYTHON, "", (), {}, OK, "Python 3."),
        (Check.MACHINE, "", (), {}, OK, "Linux 6.1, 4 cores, 96.0 GiB of memory (64.0 GiB available), 100.0 GiB of"),
        (Check.MACHINE, "", (), {}, OK, "a GPU is not needed"),
        (Check.MACHINE, REAL, (), {"gpu": "RTX 4070"}, OK, "a GPU is advised, as the network sees images"),
        (Check.MACHINE, "", ("n_collectors=5",), {}, WARNING, "n_collectors = 5, but there are 4 cores"),
        (Check.GPU, "", ("torch_device=cpu",), {}, OK, ""),
        (Check.GPU, REAL, ("torch_device=cpu",), {}, WARNING, "much slower than on a GPU"),
        (Check.GPU, "", ("torch_device=cuda:99",), {}, PROBLEM, "cuda:99"),
        (Check.GPU, "", ("collector_device=cuda:98",), {}, PROBLEM, 'collector_device = "cuda:98" cannot be used here'),
        # 200,000 transitions of 184 floats, 160 x 120 pixels, 16 bytes in other columns and 16 in lists: 3.72 GiB
        (Check.MEMORY, REAL, (), {}, OK, "3.7 GiB of it for the replay memory"),
        (Check.MEMORY, REAL, (), {"available_bytes": 2 * GIB}, WARNING, "3.7 GiB of it for the replay"),
        (Check.DISK, "", (), {}, OK, ""),
        (Check.DISK, "", (), {"free_disk_bytes": 150 << 20}, PROBLEM, "150 MB free, less than minimum_free_"),
        (Check.DISK, REAL, ("checkpoint_holds_replay=True",), {"free_disk_bytes": 2 * GIB}, WARNING,
         "2,048 MB free, and checkpoints with a full replay memory take up to 1"),
        (Check.MAPS, "", (), {}, OK, "map valley: "),
        (Check.MAPS, "", ("maps_folder=/nowhere",), {}, PROBLEM, "map valley: "),
        (Check.GAME, "", (), {"platform": "darwin"}, OK, "the simulated game"),
        (Check.GAME, REAL, (), {"platform": "darwin"}, PROBLEM, "not on darwin"),
        (Check.TMLOADER, REAL, (), {"platform": "win32"}, PROBLEM, "TMLoader"),
        (Check.TMLOADER, REAL, ("tmloader_path=/no/TMLoader.exe",), {"platform": "win32"}, PROBLEM, "/no/TMLoader.exe"),
        (Check.GAME_COMMAND, REAL, (), {}, PROBLEM, "launcher"),
        (Check.GAME_COMMAND, REAL, ("game_command=sh . {port}",), {}, OK, "sh . {port}"),
        (Check.GAME_COMMAND, REAL, ("game_command=sh start.sh {port}",), {}, PROBLEM, "there is no start.sh"),
        (Check.WINE, REAL, (), {}, OK, "found wine"),
        (Check.WINE, REAL, (), {"programs": ()}, WARNING, "is installed, and the game needs Wine"),
        (Check.GAME_DOCUMENTS, REAL, (), {}, WARNING, "trackmania_base_path is empty"),
        (Check.GAME_DOCUMENTS, REAL, ("trackmania_base_path=/nowhere",), {}, PROBLEM, "has no folder"),
        (Check.PLUGIN, REAL, (), {}, WARNING, ""),
        (Check.PLUGIN, REAL, ("trackmania_base_path=/nowhere",), {}, PROBLEM, ""),
        (Check.LOGIN, REAL, ("username=''",), {}, WARNING, "username is empty"),
        (Check.LOGIN, REAL, ("username='pilot_7.x'",), {}, OK, "pilot_7.x"),
        (Check.LOGIN, REAL, ("username='a; quit'",), {}, PROBLEM, "is no login"),
        (Check.WINDOW, REAL, (), {}, OK, ""),
        (Check.WINDOW, REAL, (), {"open_windows": no_windows}, WARNING, "is no screen"),
    ],
)  # fmt: skip
def test_each_machine_and_configuration_has_its_finding(findings, check, config, overrides, of_machine, level, words):
    found = findings(check, *overrides, config=config or "config.py", **of_machine)
    assert any(each_level is level and words in text for each_level, text in found), found


def test_packages_are_held_against_the_tested_versions(tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text(
        "# two that fit\ntorch==2.13.0\nnumpy==2.4.6  # here\n./third_party/x\n-e .\n"
        'pywin32==312; sys_platform == "no such system"\n'
    )
    assert only(check_packages(pinned(file))) == (OK, "2 packages have the tested versions")
    file.write_text("torch==2.12.0\nrich==15.0.0\npython-xlib==0.33\n")
    found = list(check_packages(pinned(file)))
    assert [finding.level for finding in found] == [WARNING, PROBLEM, WARNING, OK]
    assert "torch is 2.13.0+cpu, and 2.12.0 is tested: python -m pip install" in found[0].text
    assert "rich is not installed" in found[1].text
    assert "python-xlib is not installed" in found[2].text


def test_packages_of_a_wheel(tmp_path):
    """The declared dependencies, and extras by name in place of a file that an installed package lacks."""
    (tmp_path / "METADATA").write_text(
        "Name: trackmania-rl\nVersion: 1\nProvides-Extra: dashboard\nProvides-Extra: test\nProvides-Extra: fast\n"
        "Requires-Dist: torch>=2.12,<2.15\nRequires-Dist: numpy>=3\nRequires-Dist: fastapi; extra == 'dashboard'\n"
        "Requires-Dist: pytest; extra == 'test'\nRequires-Dist: numpy; extra == 'fast'\n"
    )
    found = list(check_distribution(Distribution.at(tmp_path)))
    assert [finding.level for finding in found] == [WARNING, OK, OK]
    assert "numpy is 2.4.6, and >=3 is needed: " in found[0].text
    assert found[1].text == "1 packages have versions within the bounds"
    assert found[2].text.startswith("extras that are not installed: dashboard (live page); ")
    assert found[2].text.endswith('python -m pip install "trackmania-rl[dashboard]"')


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a GPU that torch cannot use")
def test_a_gpu_that_torch_cannot_use_is_a_warning(findings):
    [(level, text)] = findings(Check.GPU, "torch_device=auto", gpu="GTX 1050")
    assert level is WARNING
    assert "GTX 1050 cannot be used: " in text


def test_maps_and_programs_of_the_real_game_are_found(findings, tmp_path):
    challenges = tmp_path / "OneDrive" / "Documents" / "TrackMania" / "Tracks" / "Challenges"
    challenges.mkdir(parents=True)
    real = 'game="tmnf"', f"trackmania_base_path={challenges.parents[1]}"  # whose map cycle asks for valley.toml
    assert findings(Check.GAME_DOCUMENTS, *real)[0][0] is OK
    line, of_game = findings(Check.MAPS, *real)
    assert (line[0], of_game[0]) == (OK, PROBLEM)
    assert "the game has no such map" in of_game[1]
    (challenges / "valley.toml").touch()
    assert [level for level, _ in findings(Check.MAPS, *real)] == [OK]
    program = tmp_path / "AppData" / "Local" / "TMLoader" / "TMLoader.exe"
    program.parent.mkdir(parents=True)
    program.touch()
    assert findings(Check.TMLOADER, config=REAL, platform="win32") == [(OK, str(program))]


def test_a_port_in_use_is_a_problem_unless_an_earlier_run_left_its_game(context):
    assert only(check_ports(context()))[0] is OK
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        of_port = context("game_transport=socket", f"base_tmi_port={port}", "games_per_collector=1")
        for process, expected in ((None, PROBLEM), (type("Process", (), {"pid": 77}), WARNING)):
            records = type("Records", (), {"left_behind": lambda _, port, process=process: process})()
            level, text = only(check_ports(of_port, records))
            assert level is expected
        assert "process 77" in text


def test_kept_games_greet(context, monkeypatch):
    """One that does not fails alone; without any, no race can be driven."""
    first = find_free_port(2)
    absent = ()

    def greet(port, within_s):
        if port in absent:
            raise GameConnectionError("no answer")

    monkeypatch.setattr(checks, "greet", greet)
    kept = "game_transport=socket", "games_are_kept=True", "games_per_collector=2", f"base_tmi_port={first}"
    real = "game=tmnf", "games_are_kept=True", "n_collectors=2", "games_per_collector=1", f"base_tmi_port={first}"
    for asked_for in (context(*kept), context(*real, platform="darwin")):
        assert only(check_ports(asked_for)) == (OK, f"the kept games at {first} to {first + 1} greet")
        assert only(check_game(asked_for)) == (OK, "kept by scripts/keep_games.py, on this machine or another one")
    asked_for = context(*kept)
    absent = (first + 1,)
    level, text = only(check_ports(asked_for))
    assert level is WARNING
    assert text.startswith(f"no kept game greets at port {first + 1} (no answer)")
    absent = (first, first + 1)
    level, text = only(check_ports(asked_for))
    assert level is PROBLEM
    assert f"python scripts/keep_games.py --ports {first}" in text
    with lock_of_kept_game(first):
        level, text = only(check_ports(asked_for))
    assert level is PROBLEM
    assert f"another collector of this machine plays on the kept game at port {first}" in text


def test_a_run_starts_only_without_problems_and_logs_warnings(context, caplog):
    check_start(context())
    with pytest.raises(UserError) as caught:
        check_start(context('game="tmnf"', free_disk_bytes=0))
    assert "minimum_free_disk_mb" in str(caught.value)
    assert "; and game_command is empty" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "username is empty" in caplog.text
    assert "(docs/troubleshooting.rst, login)" in caplog.text


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_everything_is_checked(machine, repository_root, tmp_path, platform):
    machine(platform=platform)
    found = list(examine(repository_root / "config_files" / REAL, [], tmp_path, repository_root))
    of_system = {"linux": {Check.TMLOADER, Check.PROFILE}, "win32": {Check.GAME_COMMAND, Check.WINE}}[platform]
    played = {check for check in Check if check.value.startswith("play-")}
    assert {finding.check for finding in found} == set(Check) - of_system - played - {Check.CLUSTER, Check.LEARNER}
    *_, last = examine(Path("nowhere.py"), [], tmp_path, repository_root)
    assert (last.check, last.level) == (Check.CONFIGURATION, PROBLEM)


@pytest.mark.parametrize("is_there", [True, False])
def test_without_the_real_game_the_simulated_one_is_played(repository_root, tmp_path, monkeypatch, is_there):
    played = []
    monkeypatch.setattr(examination, "check_play", lambda of, file: played.append(of.settings.game) or [])
    overrides = ["game_command=sh . {port}"] if is_there else []
    entry = {"map_name": "m", "map_path": "m.Challenge.Gbx", "reference_line": "valley_0.5m.npy"}
    overrides.append(f"map_cycle={({**entry, 'is_explo': True, 'fill_buffer': True},)!r}")
    config = repository_root / "config_files" / REAL
    found = list(examine(config, overrides, tmp_path, repository_root, Path("a.png")))
    assert [game.game for game in played] == (["tmnf"] if is_there else ["simulated"])
    assert not played[0].is_in_process
    told = [finding.text for finding in found if (finding.check, finding.level) == (Check.GAME, WARNING)]
    assert ["driven in its place" in text for text in told] == ([] if is_there else [True])
