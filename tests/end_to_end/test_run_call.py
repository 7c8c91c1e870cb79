"""`run.train` called from a script of one's own, with settings instead of a file and parts handed in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trackmania_rl.checkpoints import load_checkpoint
from trackmania_rl.settings import Settings, changed_settings, load_settings

SCRIPT = """
import json
import os
import sys
from pathlib import Path

from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.run import train
from trackmania_rl.settings import load_settings
from trackmania_rl.training.building import make_memory
from trackmania_rl.training.hooks.hook import Hook

FOLDER, CONFIG, MAX_FRAMES = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
called = []


class MyGames:
    def __init__(self, settings):
        self.builder = make_games_builder(settings)
        self.spaces = self.builder.spaces

    def make_games(self, collector, maps_folder, rng):
        (FOLDER / f"games-{collector}-{os.getpid()}").touch()
        return self.builder.make_games(collector, maps_folder, rng)


def my_agent(settings, spaces, seeds):
    called.append("agent")
    return make_agent_builder(settings, spaces, seeds)


def my_memory(settings, spaces, seeds):
    called.append("memory")
    return make_memory(settings, spaces, seeds)


class CountUpdates(Hook):
    n_updates = 0

    def post_optim(self):
        self.n_updates += 1

    def state_dict(self):
        return {"n_updates": self.n_updates}

    def load_state_dict(self, state):
        self.n_updates = state["n_updates"]


if __name__ == "__main__":
    settings = load_settings(CONFIG, sys.argv[4:])
    hook = CountUpdates()
    figures = train(
        settings,
        output_folder=FOLDER,
        max_frames=MAX_FRAMES,
        max_wall_s=120.0,
        hooks=[hook],
        agent=my_agent,
        memory=my_memory,
        games=MyGames,
    )
    print(json.dumps({
        "pid": os.getpid(), "called": called, "updates": hook.n_updates, "batches": figures.batches_total,
        "frames": figures.frames_total, "races": figures.races_total,
    }))
"""
OVERRIDES = (
    "run_name=called",
    "terminal_view=off",
    "torch_device=cpu",
    "use_torch_compile=False",
    "float_hidden_dim=11",
    "dense_hidden_dimension=18",
    "iqn_embedding_dimension=7",
    "iqn_n=4",
    "iqn_k=6",
    "batch_size=23",
    "n_collectors=1",
    "games_per_collector=2",
    "memory_size_schedule=((0, 5000),)",
    "memory_size_start_learn_schedule=((0, 100),)",
    "schedule_stretch=0.5",
    "cutoff_race_longer_than_ms=5000",
)


@dataclass
class Calls:
    """What two calls of the script left.

    Attributes:
        folder: the output folder.
        asked_for: the settings that it was called with.
        said: what each call printed.
        errors: what each call wrote to stderr.
    """

    folder: Path
    asked_for: Settings
    said: list[dict[str, Any]]
    errors: list[str]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory, repository_root: Path) -> Calls:
    folder = tmp_path_factory.mktemp("called")
    script, config = folder / "my_training.py", repository_root / "config_files" / "config.py"
    script.write_text(SCRIPT)
    calls = Calls(folder, load_settings(config, OVERRIDES), [], [])
    environment = os.environ | {"PYTHONPATH": str(repository_root), "OMP_NUM_THREADS": "1"}
    for max_frames in (300, 600):
        command = [sys.executable, str(script), str(folder), str(config), str(max_frames), *OVERRIDES]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=170, env=environment, check=False)
        assert ended.returncode == 0, ended.stderr
        calls.said.append(json.loads(ended.stdout.splitlines()[-1]))
        calls.errors.append(ended.stderr)
    return calls


def test_it_trains_until_the_limit_and_returns_the_figures(calls: Calls) -> None:
    first, _ = calls.said
    assert first["frames"] >= 300
    assert first["races"] >= 3
    assert first["updates"] == first["batches"] > 0


def test_the_second_call_goes_on(calls: Calls) -> None:
    first, second = calls.said
    assert second["frames"] >= 600
    assert second["races"] > first["races"]
    assert second["updates"] == second["batches"] > first["updates"], "the hook was handed in, and counts on"
    races = [json.loads(line) for line in (calls.folder / "save" / "called" / "races.jsonl").read_text().splitlines()]
    assert len(races) == second["races"]


def test_the_parts_that_were_handed_in_are_used(calls: Calls) -> None:
    assert [said["called"] for said in calls.said] == [["agent", "memory"]] * 2
    pids = [int(file.name.split("-")[2]) for file in calls.folder.glob("games-0-*")]
    assert len(pids) == 2
    assert not {said["pid"] for said in calls.said} & set(pids), "games are made in the collector's process"


def test_the_runs_copy_of_the_settings_loads_to_the_same(calls: Calls) -> None:
    copy = load_settings(calls.folder / "save" / "called" / "config" / "config.py")
    assert changed_settings(calls.asked_for, copy) == {"schedule_stretch": (0.5, 1.0)}, "they are stretched already"
    assert "differs" not in (calls.folder / "save" / "called" / "train.log").read_text()


def test_the_checkpoint_has_the_hooks_state(calls: Calls) -> None:
    state = load_checkpoint(calls.folder / "save" / "called")
    assert state is not None
    assert state["hooks"]["CountUpdates"] == {"n_updates": calls.said[-1]["updates"]}


def test_nothing_is_complained_about(calls: Calls) -> None:
    for text in calls.errors:
        assert "Traceback" not in text
        assert "Warning" not in text
        assert "leaked" not in text
