"""`run.train` called from a script of one's own: the program of its docstring, with parts handed in, called twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from trackmania_rl import run
from trackmania_rl.runs.log import iterate_races
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.settings import changed_settings, load_settings, parse_override

from .conftest import SMALL

pytestmark = pytest.mark.timeout(1000)  # two trainings, with cold caches on a busy machine

PARTS = """
import json
import os
from pathlib import Path

from trackmania_rl import run
from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.settings import load_settings
from trackmania_rl.training.building import make_memory

called = []


class MyGames:
    def __init__(self, settings):
        self.builder = make_games_builder(settings)
        self.spaces = self.builder.spaces

    def make_games(self, collector, maps_folder, rng):
        Path(f"games-{collector}-{os.getpid()}").touch()
        return self.builder.make_games(collector, maps_folder, rng)


def my_agent(settings, spaces, seeds):
    called.append("agent")
    return make_agent_builder(settings, spaces, seeds)


def my_memory(settings, spaces, seeds):
    called.append("memory")
    return make_memory(settings, spaces, seeds)


class CountUpdates(Hook):
    n_updates = 0

    def on_update(self, batch, losses):
        self.n_updates += 1

    def state_dict(self):
        return {"n_updates": self.n_updates}

    def load_state_dict(self, state):
        self.n_updates = state["n_updates"]


def train(config, hooks, max_frames=300, **limits):
    counter = CountUpdates()
    limits |= {"output_folder": Path(), "max_frames": max_frames}
    parts = {"agent": my_agent, "memory": my_memory, "games": MyGames}
    figures = run.train(config, hooks=[*hooks, counter], **limits, **parts)
    print(json.dumps({
        "pid": os.getpid(), "called": called, "updates": counter.n_updates, "batches": figures.updates_total,
        "frames": figures.frames_total, "races": figures.races_total,
    }))


"""
AGAIN = """
    train(load_settings(Path("config_files/config.py")), hooks=[LogMeters()], max_wall_s=600, max_frames=600)
"""
SETTINGS = {
    **SMALL,
    "run_name": "called",
    "terminal_view": "off",
    "torch_device": "cpu",
    "n_collectors": 1,
    "memory_size_start_learn_schedule": "((0, 100),)",
    "cutoff_race_longer_than_ms": 5000,
    "loggers": "('csv',)",
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory, repository_root):
    """Output folder and settings of the program's two calls, the line that each printed, and the program's stderr."""
    folder = tmp_path_factory.mktemp("called")
    config = Path(shutil.copytree(repository_root / "config_files", folder / "config_files")) / "config.py"
    with config.open("a") as file:
        overrides = (parse_override(f"{name}={value}") for name, value in SETTINGS.items())
        file.writelines(f"{name} = {value!r}\n" for name, value in overrides)
    example = textwrap.dedent(str(run.__doc__).partition("A whole program::\n")[2])
    parts, main, call = example.partition('if __name__ == "__main__":')
    (folder / "my_training.py").write_text(parts + PARTS + main + call + AGAIN)
    environment = os.environ | {"PYTHONPATH": str(repository_root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "my_training.py"]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=900, env=environment, check=False
    )
    assert ended.returncode == 0, ended.stderr
    said = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return SimpleNamespace(
        folder=folder,
        run_folder=folder / "save" / "called",
        asked_for=load_settings(config),
        said=said,
        errors=ended.stderr,
    )


def test_it_trains_until_the_limit_and_the_second_call_resumes(calls):
    first, second = calls.said
    assert 300 <= first["frames"] < 600 <= second["frames"]
    assert 3 <= first["races"] < second["races"]
    assert first["updates"] == first["batches"] > 0
    assert second["updates"] == second["batches"] > first["updates"], "the hook was handed in, and counts on"
    assert len(list(iterate_races(calls.run_folder / "run.sqlite"))) == second["races"]
    state = load_checkpoint(calls.run_folder).state
    assert state["hooks"]["CountUpdates"] == {"n_updates": second["updates"]}
    for complaint in ("Traceback", "Warning", "leaked"):
        assert complaint not in calls.errors


def test_the_parts_that_were_handed_in_are_used(calls):
    assert [said["called"] for said in calls.said] == [["agent", "memory"], ["agent", "memory"] * 2]
    pids = [int(file.name.split("-")[2]) for file in calls.folder.glob("games-0-*")]
    assert len(pids) == 2
    assert calls.said[0]["pid"] not in pids, "games are made in the collector's process"
    assert list(calls.folder.rglob("mine/meters.csv")), "the figure of the docstring's hook is logged"


def test_the_runs_copy_of_the_settings_loads_to_the_same(calls):
    copy = load_settings(calls.run_folder / "settings.toml")
    assert changed_settings(calls.asked_for, copy) == {}
    assert "differs" not in (calls.run_folder / "train.log").read_text()
