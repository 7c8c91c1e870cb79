"""The commands of the installed package, and where it looks for files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from trackmania_rl import __main__ as console
from trackmania_rl.errors import ExitCode
from trackmania_rl.paths import CONFIG_FILES, IS_CHECKOUT, MAPS, PROJECT_FOLDER, SHIPPED_FOLDER, command_line_of


def test_in_a_checkout_all_is_in_the_checkout(repository_root: Path) -> None:
    assert IS_CHECKOUT
    assert PROJECT_FOLDER == SHIPPED_FOLDER == repository_root
    assert command_line_of("tools/maps") == "python scripts/tools/maps.py"


def test_every_command_has_its_script_and_every_console_script_its_function(repository_root: Path) -> None:
    assert all((repository_root / "scripts" / file).is_file() for file, _ in console.SCRIPTS.values())
    project = tomllib.loads((repository_root / "pyproject.toml").read_text())["project"]
    for name, target in project["scripts"].items():
        command = name.removeprefix("trackmania-")
        assert target == f"trackmania_rl.__main__:{command}"
        assert command in console.SCRIPTS
        assert callable(getattr(console, command))


def test_unknown_commands_are_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["trackmania_rl", "tarin"])
    assert console.main() == 1
    told = capsys.readouterr().err
    assert "'tarin' is no command" in told
    assert "train a driver" in told


def test_a_command_has_its_own_help(repository_root: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "trackmania_rl", "maps", "--help"], cwd=repository_root, capture_output=True, text=True
    )
    assert said.returncode == 0
    assert "usage: trackmania_rl maps" in said.stdout


def test_every_extra_that_is_named_is_declared(repository_root: Path) -> None:
    declared = tomllib.loads((repository_root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [*(repository_root / "trackmania_rl").rglob("*.py"), *(repository_root / "docs").glob("*.rst")]
    named = {
        extra for file in sources for extra in re.findall(r"trackmania-rl\[([a-z0-9-]+)\]", file.read_text("utf-8"))
    }
    assert len(named) > 5
    assert named <= set(declared)


@pytest.fixture(scope="module")
def wheel_home(repository_root: Path) -> Iterator[Path]:
    """A fresh virtual environment that holds the wheel and its declared dependencies, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:  # not pytest's, which are kept: it has 1.5 GB
        home = Path(folder)
        venv.create(home, with_pip=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
        builder = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
        subprocess.run([*builder, str(repository_root)], check=True)
        (wheel,) = home.glob("trackmania_rl-*.whl")
        pins = (repository_root / "requirements.txt").read_text("utf-8").splitlines()
        torch_pins = [pin for pin in pins if re.match("torch|tensordict", pin)]  # else pip takes the newest torch
        subprocess.run([*pip, *torch_pins, str(wheel)], check=True)
        yield home


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_wheel_alone_trains_and_evaluates(wheel_home: Path, tmp_path: Path) -> None:
    binaries = wheel_home / "bin"
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(command: str, *arguments: str, exit_code: int = 0) -> str:
        done = subprocess.run([binaries / command, *arguments], cwd=tmp_path, env=alone, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == exit_code, said
        return said

    def lacks(extra: str, command: str, *arguments: str, exit_code: int = ExitCode.NEEDS_A_PERSON) -> None:
        said = run(command, *arguments, exit_code=exit_code)
        assert f'python -m pip install "trackmania-rl[{extra}]"' in said.splitlines()[-1], said
        assert "Traceback" not in said

    where = run("python", "-c", "import trackmania_rl.paths as p; print(p.SHIPPED_FOLDER.parent, p.WORKING_FOLDER)")
    (package,) = (wheel_home / "lib").glob("python*/site-packages/trackmania_rl")
    assert where.split() == [str(package), str(tmp_path)]
    for command in console_scripts():
        assert "usage: " in run(command, "--help")

    short = ("--set", "terminal_view=off", "--set", "use_torch_compile=False", "--set", "checkpoint_interval_s=5")
    run("trackmania-train", "--max-frames", "4000", *short)
    assert (tmp_path / "save" / "simulated" / "run.sqlite").is_file()
    run("trackmania-evaluate", "save/simulated", "--races", "1")
    said = run("trackmania-doctor")
    assert "0 problems" in said
    assert "requirements.txt" not in said
    run("trackmania-driver", "pack", "save/simulated", "-o", "mine.driver")
    run("trackmania-evaluate", "mine.driver", "--races", "1", "--no-video")

    lacks("dashboard", "trackmania-dashboard")
    lacks("dashboard", "trackmania-train", "--dashboard")
    lacks("cluster", "trackmania-train", "--cluster", "local:2")
    lacks("wandb", "trackmania-train", "--set", "loggers=('wandb',)")
    lacks("hub", "trackmania-driver", "push", "mine.driver", "me/mine")
    record = ("record", "mine.driver", "--map", "valley", "--id", "mine/valley-v0", "--folder", "data", "--races", "1")
    lacks("datasets", "python", "-m", "trackmania_rl", "dataset", *record)
    made = "from trackmania_rl.games import envs; envs.make_"
    asked_for = (
        "import trackmania_rl.games.envs.sb3",
        f"{made}real_time_race_env('valley')",
    )
    in_turn = f"for code in {asked_for!r}:\n try: exec(code)\n except UserError as error: print(error)"
    said = run("python", "-c", f"from trackmania_rl.errors import UserError\n{in_turn}")
    assert re.findall(r'pip install "trackmania-rl\[(\w+)\]"\n', said) == ["sb3", "realtime"]

    copied = run("python", "-m", "trackmania_rl", "init")
    assert copied.startswith(f"{CONFIG_FILES}/ and {MAPS}/ copied to")
    own = run("python", "-c", "import trackmania_rl.paths as p; print(p.PROJECT_FOLDER)")
    assert own.strip() == str(tmp_path)
    assert "simulated_kart" in run("trackmania-train", "--map", "kart", "--list-settings")


def console_scripts() -> list[str]:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return list(project["scripts"])
