"""What collectors are told, and how often the hooks look after the run."""

import pytest
import torch

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training import trainer as trainer_module
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.publishing import PublishRunState

from .conftest import MakeRace, MakeRun, edit


class CountTicks(Hook):
    """Counts its ticks."""

    n_ticks = 0

    def tick(self) -> None:
        self.n_ticks += 1


def test_frame_count_and_weights_are_published_before_any_race_and_while_the_run_goes_on(
    live: LiveSettings, layout: ObservationLayout, make_run: MakeRun, make_race: MakeRace
) -> None:
    before = make_run()
    before.train_on([make_race(60, True)])
    assert before.hook(SaveCheckpoints).try_to_save()
    resumed = make_run()
    assert resumed.run_state.frames_total == 60
    network = make_network(live.current, race_spaces(live.current), SeedTree(99))
    resumed.run_state.pull_weights("exploration", network, 0)
    assert torch.equal(flatten_parameters(network), flatten_parameters(before.agent.exploration_network))
    resumed.train_on([make_race(41, False)])
    assert resumed.run_state.frames_total == 101


def test_an_edited_file_is_published(live: LiveSettings, make_run: MakeRun) -> None:
    run = make_run()
    run.run_state.pull()
    snapshot = live._snapshot_file
    snapshot.write_text(snapshot.read_text() + "\nrunning_speed = 7.0\n")
    run.hook(PublishRunState).tick()
    assert run.run_state.pull()
    assert run.run_state.settings.game.running_speed == 7


@pytest.mark.parametrize(("poll_s", "n_ticks"), [(0.0, 2), (1000.0, 0)])
def test_hooks_tick_now_and_then(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, poll_s: float, n_ticks: int
) -> None:
    monkeypatch.setattr(trainer_module, "POLL_S", poll_s)
    ticks = CountTicks()
    run = make_run([ticks])
    for _ in range(2):
        run.trainer.tick()
    assert ticks.n_ticks == n_ticks


def test_hooks_tick_while_no_race_comes_and_between_updates(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "POLL_S", 0.0)
    edit(live, checkpoint_interval_s=1e6)
    ticks = CountTicks()
    run = make_run([ticks])
    run.train()
    assert ticks.n_ticks == 1
    run.train_on([make_race(60, True)])
    assert ticks.n_ticks == 1 + run.agent.updates + 2, "after each update, after the race, and when there is no other"
