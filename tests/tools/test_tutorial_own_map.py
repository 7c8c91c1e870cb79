"""The commands of docs/tutorial_own_map.rst, run as they stand there in a copy of the project."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trackmania_rl.runs.log import iterate_races
from trackmania_rl.simulator.physics.scripted_driver import CAREFUL_DRIVER

SHORT = "--max-frames 4000 --max-wall-s 300 --set cutoff_race_longer_than_ms=8000 --set use_torch_compile=False"
"""In place of the minutes that the tutorial trains: short races, until the first ones are written down."""


def commands(tutorial: Path, files: str) -> list[str]:
    """The bash blocks behind a comment ".. run with {files} files", in order."""
    found: list[str] = []
    wanted = is_block = False
    for line in tutorial.read_text(encoding="utf-8").splitlines():
        if line.startswith(".. run with "):
            wanted = line == f".. run with {files} files"
        elif line == ".. code-block:: bash":
            is_block = wanted
            if is_block:
                found.append("")
        elif line and not line.startswith(" "):
            wanted = is_block = False
        elif is_block and line.strip():
            found[-1] += line.strip() + "\n"
    return found


def say(block: str, project: Path) -> str:
    """Run a block in a project; return the output."""
    for minutes in ("--max-wall-s 600", "--max-wall-s 120"):
        block = block.replace(minutes, SHORT)
    script = "\n".join(line.replace("python ", f"{sys.executable} ", 1) for line in block.splitlines())
    ended = subprocess.run(["bash", "-e", "-c", script], cwd=project, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, f"{block}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def maps_driven(project: Path, run_name: str) -> set[str]:
    return {race["map"] for race in iterate_races(project / "save" / run_name / "run.sqlite")}


@pytest.fixture
def tutorial(repository_root: Path) -> Path:
    return repository_root / "docs" / "tutorial_own_map.rst"


@pytest.fixture
def project(repository_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of what the tutorial's commands read and change; the package itself is only linked.

    It is at the same place in every test, since numba compiles anew for each path to a file.
    """
    project = tmp_path_factory.getbasetemp() / "project"
    for folder in ("scripts", "config_files", "maps"):
        shutil.copytree(repository_root / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "trackmania_rl").symlink_to(repository_root / "trackmania_rl")
    yield project
    shutil.rmtree(project)


def test_every_block_of_the_tutorial_is_run_by_a_test(tutorial: Path) -> None:
    n_blocks = tutorial.read_text(encoding="utf-8").count(".. code-block:: bash")
    assert len(commands(tutorial, "real")) + len(commands(tutorial, "shipped")) == n_blocks
    assert all(block.startswith("python scripts/") for block in commands(tutorial, "real"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_commands_for_real_files(tutorial: Path, project: Path, shared_data: Path) -> None:
    shutil.copy(shared_data / "tracks" / "B13-Obstacle.Challenge.Gbx", project / "mine.Challenge.Gbx")
    shutil.copy(shared_data / "replays" / "B13-Obstacle_24.94_a.Replay.Gbx", project / "mine.Replay.Gbx")
    shipped = (project / "config_files" / "config.py").read_bytes()
    shown, printed, _, in_a_configuration = (say(block, project) for block in commands(tutorial, "real"))
    assert "0:24.940" in shown
    assert printed.endswith("train on it: python scripts/train.py --map mine\n")
    assert (project / "maps" / "mine_0.5m.png").is_file()
    assert (project / "config_files" / "config.py").read_bytes() == shipped
    assert maps_driven(project, "simulated_mine") == {"mine"}
    assert "inserted into" in in_a_configuration
    assert (project / "config_files" / "config_tmnf.py.bak").is_file()
    assert '"map_path": "mine.Challenge.Gbx"' in (project / "config_files" / "config_tmnf.py").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_commands_for_shipped_files(tutorial: Path, project: Path, write_race: Callable[..., int]) -> None:
    training, others = commands(tutorial, "shipped")
    say(training, project)
    assert maps_driven(project, "first") == {"valley"}
    file = project / "race.inputs"  # a training of minutes would finish a race
    time_ms = write_race("valley", file, CAREFUL_DRIVER)
    record = project / "save" / "first" / "best_runs" / f"valley_{time_ms}" / f"valley_{time_ms}.inputs"
    record.parent.mkdir(parents=True, exist_ok=True)
    file.rename(record)
    say(others, project)
    assert (project / "raced.png").is_file()
    assert maps_driven(project, "simulated_raced_0.5m") == {"raced_0.5m"}
