"""Commands in a Python without the packages, or of a version that is not tested."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from trackmania_rl import start
from trackmania_rl.doctor.examination import USES_OF_EXTRAS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(str(file.relative_to(ROOT)) for file in [*ROOT.glob("scripts/*.py"), *ROOT.glob("scripts/tools/*.py")])
ENTRIES = [*SCRIPTS, "trackmania_rl/__init__.py", "trackmania_rl/__main__.py", "trackmania_rl/start.py"]


def bare(*command: str, folder: Path = ROOT) -> str:
    """Return the output of a command, in one line, in a Python without packages (-S)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    interpreter = [sys.executable, "-S"]
    done = subprocess.run([*interpreter, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("command", [*([script] for script in SCRIPTS), ["-m", "trackmania_rl", "train"]], ids=str)
def test_without_packages_one_line_has_the_command(command: list[str]) -> None:
    said = bare(*command)
    assert f"is not installed in {sys.executable}: " in said
    assert "activate" in said or "python -m pip install -r requirements.txt" in said


def test_environment_in_the_folder_is_to_be_activated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(start, "PACKAGE", tmp_path / "trackmania_rl")
    monkeypatch.chdir(tmp_path)
    assert start.remedy() == "source .venv/bin/activate"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))  # active already
    assert start.remedy() == "python -m pip install -r requirements.txt"


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
@pytest.mark.parametrize("script", ["scripts/doctor.py", "scripts/train.py"])
def test_other_pythons_are_refused_in_one_line(script: str, version: tuple[int, int]) -> None:
    code = f"import runpy, sys; sys.version_info = {version}; sys.argv = ['{script}']"
    said = bare("-c", f"{code}; runpy.run_path('{script}', run_name='__main__')")
    assert said.startswith(f"error: this is Python 3.{version[1]}, and 3.11 to 3.13 are tested: ")


def test_entries_can_be_read_by_an_older_python() -> None:
    for file in ENTRIES:
        ast.parse((ROOT / file).read_text("utf-8"), feature_version=(3, 9))


def test_declared_python_and_extras_are_those_of_the_commands() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = SpecifierSet(project["requires-python"])
    allowed = [(3, minor) for minor in range(8, 20) if declared.contains(f"3.{minor}.1")]
    assert (allowed[0], allowed[-1]) == (start.OLDEST_PYTHON, start.NEWEST_PYTHON)
    assert set(USES_OF_EXTRAS) == set(project["optional-dependencies"]) - {"test"}
