"""A race of the default configuration passes the files that docs/architecture.rst lists, and no others."""

import re
import sys
import threading
from pathlib import Path

import trackmania_rl
from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.channels.rollouts import Rollouts
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.multiprocess.collector_process import CollectorTask, make_parts
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.snapshot import LiveSettings, write_snapshot
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.training.building import begin_run
from trackmania_rl.training.collector import Collector
from trackmania_rl.training.hooks.hook import Hook, Interval
from trackmania_rl.training.learner import learn

from .conftest import make_context, open_channels_here

PACKAGE = Path(trackmania_rl.__file__).parent
MOST_FILES = 39
MADE_AFTER_RACES = 30
"""Races until what is made or compiled at first is there: functions, and an evaluator for each game that needs one."""
OF_SOME_RACES = {"race/road.py", "protocol/input_script.py"}  # the first one on a map, and one that is recorded
OVERRIDES = (
    "n_collectors=1",
    "torch_device=cpu",
    "use_torch_compile=False",
    "minimum_free_disk_mb=0",
    "memory_size_start_learn_schedule=((0, 50),)",
    "cutoff_race_longer_than_ms=5000",
)


class EnteredFiles:
    """Files of the package that Python functions are entered in, from `begin` on, in all threads."""

    def __init__(self):
        self.names = set()
        self._begins = False

    def begin(self):
        self._begins = True

    def note(self, frame, event, _):
        if self._begins and event == "call":
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(PACKAGE):
                self.names.add(file.relative_to(PACKAGE).as_posix())


class CountRaces(Hook):
    """Counts races, and notes files after the first ones, which make and compile things."""

    def __init__(self, files):
        self.n_races = 0
        self._files = files

    def on_race(self, race):
        self.n_races += 1
        if self.n_races == MADE_AFTER_RACES:
            self._files.begin()


def test_a_race_passes_the_files_that_the_documentation_lists(tmp_path, repository_root, monkeypatch):
    monkeypatch.setattr(Interval, "is_due", lambda *_: False)  # what a clock begins belongs to no race
    settings_file = write_snapshot(repository_root / "config_files" / "config.py", tmp_path, OVERRIDES)
    settings = load_settings(settings_file)
    seeds = SeedTree(settings.run.seed)
    channels = open_channels_here(settings, Rollouts)
    folder = RunFolder.create(tmp_path, "run")
    run = make_context(LiveSettings(settings_file, settings), seeds, folder, channels)
    files = EnteredFiles()
    count = CountRaces(files)
    hooks = begin_run(run, [count])
    task = CollectorTask(
        index=0,
        name="collector-0",
        maps_folder=repository_root / "maps",
        tracks_folder=tmp_path / "tracks",
        live_folder=tmp_path / "live",
        rollouts=channels.rollouts.open_collector(0),
        run_state=channels.run_state,
        make_games_builder=make_games_builder,
        make_agent_builder=make_agent_builder,
    )

    def collect():
        games_builder = make_games_builder(settings)
        games = games_builder.make_games(0, task.maps_folder, seeds.rng("games"))
        Collector(make_parts(task, games_builder.spaces, task.rollouts.beat), games).run()

    collector = threading.Thread(target=collect)
    threading.setprofile(files.note)
    collector.start()
    threading.setprofile(None)
    sys.setprofile(files.note)
    try:
        learn(run, hooks, lambda: count.n_races >= MADE_AFTER_RACES + 3)
    finally:
        sys.setprofile(None)
        channels.run_state.publish(stop=True)
        collector.join()
        for hook in hooks:
            hook.end()

    page = (repository_root / "docs" / "architecture.rst").read_text(encoding="utf-8")
    listed = re.search(r"A race of the default configuration passes.*?\n\nLayers\n", page, re.DOTALL)
    names = set(re.findall(r"``([\w/]+\.py)``", listed[0]))
    assert files.names - names == set()
    assert names - files.names <= OF_SOME_RACES
    assert len(names) <= MOST_FILES
