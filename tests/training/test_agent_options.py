"""Each option of the agent in a small run within one process: it drives, learns, hands weights on, and resumes."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.channels.protocols import ReceivedRollout, WeightsKind
from trackmania_rl.checkpoints import RunFolder
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.settings.live import LiveSettings, write_snapshot
from trackmania_rl.training.collector import Collector, CollectorParts, WeightPuller
from trackmania_rl.training.hooks.learning_figures import LearningFigures, MeasureTestLoss

from .conftest import TINY, KeepingSink, LocalRun

KINDS: dict[str, WeightsKind] = {"explorer": "exploration", "evaluator": "evaluation"}
OPTIONS = {
    "none": (),
    "double DQN": ("use_ddqn=True",),
    "three frames": ("frames_per_state=3",),
    "views": (
        "views={'gears': {'column': 'gear', 'shift': '-4:-1'}, 'before': {'column': 'actions', 'shift': -1}, "
        "'earned': {'column': 'rewards', 'shift': -1, 'input': False}}",
    ),
    "prioritized replay": ("prio_alpha=0.6", "prio_beta=0.4"),
    "resets": ("reset_every_n_frames_generated=60", "additional_transitions_after_reset=26"),
    "many at once": ("use_ddqn=True", "prio_alpha=0.6", "frames_per_state=2"),
}


class SmallRun:
    """A learner and a collector of two games, joined without processes."""

    def __init__(self, live: LiveSettings, folder: RunFolder, maps_folder: Path) -> None:
        settings, seeds = live.current, SeedTree(1)
        layout = ObservationLayout.from_settings(settings.observation)
        self.run = LocalRun(live, layout, folder)
        self.run.run_state.publish(frames_total=1000)
        self.pullers = [
            WeightPuller(
                Inferer(
                    make_network(settings, race_spaces(settings), SeedTree(1)),
                    n_quantiles=settings.agent.iqn_k,
                    throttle_actions=race_spaces(settings).throttle_actions,
                    exploration_settings=settings.exploration,
                    rng=seeds.rng(name),
                ),
                self.run.run_state,
                kind,
            )
            for name, kind in KINDS.items()
        ]
        self.sink = KeepingSink()
        games = InProcessGames(2, settings.game, settings.observation, maps_folder)
        parts = CollectorParts(self.run.run_state, self.sink, *self.pullers)
        self.collector = Collector(parts, games)

    def drive(self, n_races: int) -> list[ReceivedRollout]:
        """The next races."""
        while len(self.sink.races) < n_races:
            assert self.collector.play_once()
        races, self.sink.races = self.sink.races, []
        return races

    def state(self) -> io.BytesIO:
        """All that is resumable, as bytes."""
        file = io.BytesIO()
        torch.save(self.run.trainer.state_dict(), file)
        file.seek(0)
        return file


@pytest.mark.parametrize(
    "option", [name if name.startswith("many") else pytest.param(name, marks=pytest.mark.slow) for name in OPTIONS]
)
def test_a_small_run_with_each_option(option: str, tmp_path: Path, repository_root: Path) -> None:
    overrides = (*TINY, "image_width_px=17", "image_height_px=15", "cutoff_no_progress_within_ms=600", *OPTIONS[option])
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", tmp_path / "config", overrides)
    live = LiveSettings(snapshot, load_settings(snapshot))
    small, resumed = (
        SmallRun(live, RunFolder.create(tmp_path, name), repository_root / "maps") for name in ("small", "resumed")
    )
    for _ in range(3):
        small.run.train_on(small.drive(4))
    agent = small.run.agent
    assert agent.updates > 10
    assert all(np.isfinite(value) for value in small.run.hook(LearningFigures).take_means().values())
    assert np.isfinite(small.run.hook(MeasureTestLoss).test_loss)

    small.drive(5)  # a round of the map cycle: both pull the weights that were published last
    for puller in small.pullers:
        fresh = make_network(live.current, race_spaces(live.current), SeedTree(2))
        assert puller.version == small.run.run_state.pull_weights(puller.kind, fresh, 0) > 1
        assert torch.equal(flatten_parameters(puller.actor.network), flatten_parameters(fresh))

    races = small.drive(4)
    resumed.run.trainer.load_state_dict(torch.load(small.state(), weights_only=True))
    for each in (small.run, resumed.run):
        each.train_on(races)
        each.close_files()
    assert resumed.run.agent.updates == agent.updates
    other = resumed.run.agent.loss_module.online.state_dict()
    for name, weights in agent.loss_module.online.state_dict().items():
        assert torch.equal(weights, other[name]), name
