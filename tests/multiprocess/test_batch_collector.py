"""The collector of many in-process games: map cycle, weights, exploration, backpressure and the end of the run."""

from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.games.decision_desk import StopCollecting
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.batch_collector import BatchCollector
from trackmania_rl.training.collector import CollectorParts, WeightPuller

from .conftest import KeepingSink

N_GAMES = 6


class Rig:
    """A collector with everything around it in reach."""

    def __init__(self, live: LiveSettings, layout: ObservationLayout, maps_folder: Path, seed: int = 1) -> None:
        seeds = SeedTree(seed)
        settings = live.current
        self.sink = KeepingSink()
        self.run_state = LocalRunState(settings)
        self.run_state.publish(frames_total=1000)
        self.pullers = [
            WeightPuller(
                Inferer(
                    make_network(settings, layout, SeedTree(1)),
                    n_quantiles=settings.agent.iqn_k,
                    inputs=settings.game.inputs,
                    exploration_settings=settings.exploration,
                    rng=seeds.rng(name),
                ),
                self.run_state,
                kind,
            )
            for name, kind in (("explorer", "exploration"), ("evaluator", "evaluation"))
        ]
        games = InProcessGames(N_GAMES, settings.game, settings.observation, maps_folder)
        parts = CollectorParts(self.run_state, self.sink, *self.pullers)
        self.collector = BatchCollector(parts, games)

    def play_until_sent(self, n_races: int) -> None:
        for _ in range(5000):
            if len(self.sink.races) >= n_races:
                return
            self.collector.play_one_action()
        raise AssertionError(f"only {len(self.sink.races)} races ended")


@pytest.fixture
def make_rig(live: LiveSettings, layout: ObservationLayout, repository_root: Path):
    live.current = live.current.model_copy(
        update={"game": live.current.game.model_copy(update={"cutoff_no_progress_within_ms": 600})}
    )
    return lambda seed=1: Rig(live, layout, repository_root / "maps", seed)


def test_races_of_the_map_cycle_come_out_whole(make_rig, layout: ObservationLayout) -> None:
    rig = make_rig()
    rig.play_until_sent(3 * N_GAMES)
    is_explo = [race.end_race_stats["is_explo"] for race in rig.sink.races]
    assert 2 <= is_explo.count(False) <= 6, "every fifth race evaluates"
    for race in rig.sink.races:
        results, stats = race.rollout_results, race.end_race_stats
        n = len(results["actions"])
        assert results["frames"].shape == (n + 1, 1, 15, 17)
        assert results["frames"].any(axis=(1, 2, 3)).all()
        assert results["state_float"].shape == (n + 1, layout.float_input_dim)
        assert stats["map_name"] == "valley"
        assert stats["fill_buffer"]
        assert stats["timings_ms"]["policy"] > 0
        if not stats["is_explo"]:
            assert results["action_was_greedy"].all()
            np.testing.assert_array_equal(results["actions"], results["q_values"].argmax(axis=1))
    explored = [race.rollout_results for race in rig.sink.races if race.end_race_stats["is_explo"]]
    assert not all(results["action_was_greedy"].all() for results in explored)


def test_the_same_seed_gives_the_same_races(make_rig) -> None:
    actions = []
    for seed in (1, 1, 2):
        rig = make_rig(seed)
        rig.play_until_sent(N_GAMES)
        actions.append([race.rollout_results["actions"].tolist() for race in rig.sink.races])
    assert actions[0] == actions[1] != actions[2]


def test_new_weights_arrive_while_races_are_driven(make_rig, live: LiveSettings, layout: ObservationLayout) -> None:
    rig = make_rig()
    rig.collector.play_one_action()
    network = make_network(live.current, layout, SeedTree(2))
    for _ in range(3):
        rig.run_state.publish(weights={"exploration": network})
    rig.run_state.publish(weights={"evaluation": network})
    for _ in range(live.current.sync.update_inference_network_every_n_actions):
        rig.collector.play_one_action()
    assert [puller.version for puller in rig.pullers] == [3, 1]


def test_the_end_of_the_run_ends_the_wait_for_the_learner(make_rig) -> None:
    rig = make_rig()
    rig.sink.has_room = False
    with pytest.raises(StopCollecting):
        rig.play_until_sent(1)
    rig.collector.run()
    assert rig.sink.races == []
