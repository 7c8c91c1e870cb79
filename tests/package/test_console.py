"""The commands of the installed package, and where it looks for files."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from trackmania_rl import console
from trackmania_rl.places import CONFIG_FILES, IS_CHECKOUT, MAPS, PROJECT_FOLDER, SHIPPED_FOLDER, command_line_of


def test_in_a_checkout_all_is_in_the_checkout(repository_root: Path) -> None:
    assert IS_CHECKOUT
    assert PROJECT_FOLDER == SHIPPED_FOLDER == repository_root
    assert command_line_of("tools/maps") == "python scripts/tools/maps.py"


def test_every_command_has_its_script_and_every_console_script_its_function(repository_root: Path) -> None:
    assert all((repository_root / "scripts" / file).is_file() for file, _ in console.SCRIPTS.values())
    project = tomllib.loads((repository_root / "pyproject.toml").read_text())["project"]
    for name, target in project["scripts"].items():
        command = name.removeprefix("trackmania-")
        assert target == f"trackmania_rl.console:{command}"
        assert command in console.SCRIPTS
        assert callable(getattr(console, command))


def test_what_is_no_command_is_told_with_those_there_are(
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wheel_trains_and_evaluates_from_an_empty_folder(repository_root: Path, tmp_path: Path) -> None:
    """Built and installed as the page says, beside the packages of this environment."""
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(repository_root)], check=True)
    (wheel,) = tmp_path.glob("trackmania_rl-*.whl")
    home = tmp_path / "home"
    venv.create(home, with_pip=True)
    site = next((home / "lib").glob("python*/site-packages"))
    # This environment's packages, the project apart: reinstalling torch would take gigabytes.
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = home / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel)], check=True
    )
    empty = tmp_path / "empty"
    empty.mkdir()

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=empty, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run(str(python), "-c", "import trackmania_rl.places as p; print(p.SHIPPED_FOLDER, p.WORKING_FOLDER)")
    assert where.split() == [str(site / "trackmania_rl" / "shipped"), str(empty)]
    binaries = home / "bin"
    settings = ("--set", "terminal_view=off", "--set", "use_torch_compile=False", "--set", "checkpoint_interval_s=5")
    run(str(binaries / "trackmania-train"), "--max-frames", "20000", *settings)
    assert (empty / "save" / "simulated" / "races.jsonl").is_file()
    run(str(binaries / "trackmania-evaluate"), "save/simulated", "--races", "1")
    run(str(binaries / "trackmania-doctor"))
    run(str(binaries / "trackmania-driver"), "pack", "save/simulated", "-o", "mine.driver")
    run(str(binaries / "trackmania-evaluate"), "mine.driver", "--races", "1", "--no-video")
    copied = run(str(python), "-m", "trackmania_rl", "init")
    assert copied.startswith(f"{CONFIG_FILES}/ and {MAPS}/ copied to")
    own = run(str(python), "-c", "import trackmania_rl.places as p; print(p.PROJECT_FOLDER)")
    assert own.strip() == str(empty)
    run(str(binaries / "trackmania-train"), "--map", "kart", "--max-frames", "5000", *settings)
