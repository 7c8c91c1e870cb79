"""A run of an example's parts within this process: games, collector, learner and hooks, at tiny sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import make_context, open_channels_here
from trackmania_rl.agents.builder import check_decision, make_agent_builder
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.snapshot import LiveSettings, write_snapshot
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.training.building import begin_run, make_hooks
from trackmania_rl.training.collector import Collector, CollectorParts, Evaluators, WeightPuller
from trackmania_rl.training.hooks.hook import Hook, RunContext
from trackmania_rl.training.learner import learn

TINY = (
    "float_hidden_dim=12",
    "dense_hidden_dimension=14",
    "batch_size=16",
    "games_per_collector=1",
    "memory_size_schedule=((0, 3000),)",
    "memory_size_start_learn_schedule=((0, 40),)",
    "number_times_single_memory_is_used_before_discard=2.0",
    "cutoff_race_longer_than_ms=4000",
    "tensorboard_interval_s=1e-9",
    "torch_device=cpu",
    "use_torch_compile=False",
    "minimum_free_disk_mb=0",
)


@dataclass
class SmallRun:
    """The files of a small run."""

    context: RunContext
    hooks: list[Hook]


@pytest.fixture
def train_a_little(tmp_path: Path, repository_root: Path) -> Iterator[Callable[..., SmallRun]]:
    """`train_a_little(*overrides, config="config.py", n_races=3)`: the run that learned from so many races."""
    begun: list[list[Hook]] = []

    def train(*overrides: str, config: str = "config.py", n_races: int = 3) -> SmallRun:
        file = write_snapshot(repository_root / "config_files" / config, tmp_path, (*TINY, *overrides))
        settings, seeds = load_settings(file), SeedTree(1)
        games_builder, channels = make_games_builder(settings), open_channels_here(settings)
        rollouts, run_state = channels.rollouts, channels.run_state
        sink = rollouts.open_collector(0)
        live, folder = LiveSettings(file, settings), RunFolder.create(tmp_path, "run")
        context = make_context(live, seeds, folder, channels)
        hooks = begin_run(context, make_hooks(settings))
        begun.append(hooks)
        builder = make_agent_builder(settings, context.spaces, SeedTree(1))

        def puller(kind: Any) -> WeightPuller:
            actor = builder.make_actor(builder.make_network(), torch.device("cpu"), seeds.rng(kind))
            check_decision(actor, context.spaces)
            return WeightPuller(actor, run_state, kind)

        games = games_builder.make_games(0, repository_root / "maps", seeds.rng("games"))
        evaluators = Evaluators(lambda: puller("evaluation"))
        collector = Collector(CollectorParts(run_state, sink, puller("exploration"), evaluators), games)
        for _ in range(n_races):
            while not rollouts.has_races:
                assert collector.play_once()
            rollouts.is_empty = False
            learn(context, hooks, lambda: rollouts.is_empty)
        games.close()
        return SmallRun(context, hooks)

    yield train
    for hooks in begun:
        for hook in hooks:
            hook.end()
