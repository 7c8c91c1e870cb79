"""The collector in one process: the map cycle, weights, schedules and the end of the run."""

import multiprocessing
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.shared_weights import SharedWeights
from trackmania_rl.features import ObservationLayout
from trackmania_rl.multiprocess.collector import Collector, StopCollecting, WeightsFollower
from trackmania_rl.multiprocess.live_settings import LiveSettings
from trackmania_rl.multiprocess.run_network import make_network
from trackmania_rl.policy import Policy, PolicyDecision
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import GameSettings, MapEntry

CONTEXT = multiprocessing.get_context("spawn")
N_ACTIONS_IN_RACE = 43


class FakeDriver:
    """Asks the policy for as many actions as a short race has, and remembers what it was told."""

    def __init__(self, game: GameSettings, n_floats: int) -> None:
        self.game = game
        self.decisions: list[PolicyDecision] = []
        self.entries: list[MapEntry] = []
        self._floats = np.zeros(n_floats, dtype=np.float32)
        self._frame = np.zeros((1, game.image_height_px, game.image_width_px), dtype=np.uint8)

    def rollout(
        self, map_entry: MapEntry, policy: Policy, frames: npt.NDArray[np.uint8] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.entries.append(map_entry)
        self.decisions = [policy(self._frame, self._floats) for _ in range(N_ACTIONS_IN_RACE)]
        return {"actions": np.array([d.action for d in self.decisions])}, {"race_finished": False}


class ListOutbox:
    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []

    def frames(self) -> npt.NDArray[np.uint8] | None:
        return np.zeros((100, 1, 15, 17), dtype=np.uint8)

    def send(self, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        self.sent.append(end_race_stats)


class Rig:
    """A collector with everything around it in reach."""

    def __init__(self, live: LiveSettings, layout: ObservationLayout) -> None:
        seeds = SeedTree(1)
        self.driver = FakeDriver(live.current.game, layout.float_input_dim)
        self.outbox = ListOutbox()
        self.shared = SharedWeights(make_network(live.current, layout, seeds), CONTEXT)
        self.followers = [
            WeightsFollower(
                Inferer(
                    make_network(live.current, layout, seeds),
                    n_quantiles=10,
                    inputs=live.current.game.inputs,
                    exploration_settings=live.current.exploration,
                    rng=seeds.rng(name),
                ),
                self.shared,
            )
            for name in ("explorer", "evaluator")
        ]
        self.frames_total = 0
        self.stopped = False
        self.collector = Collector(
            live, self.driver, *self.followers, lambda: self.frames_total, lambda: self.stopped, self.outbox
        )


@pytest.fixture
def rig(live: LiveSettings, layout: ObservationLayout) -> Rig:
    return Rig(live, layout)


def test_it_follows_the_map_cycle_over_and_over(rig: Rig, live: LiveSettings) -> None:
    for _ in range(7):
        rig.collector.play_next_race()
    assert [entry.is_explo for entry in rig.driver.entries] == [True] * 4 + [False] + [True] * 2
    assert [stats["is_explo"] for stats in rig.outbox.sent] == [True] * 4 + [False] + [True] * 2
    assert all(stats["fill_buffer"] and stats["map_name"] == "valley" for stats in rig.outbox.sent)


def test_evaluation_races_are_greedy_and_exploration_follows_the_frame_count(rig: Rig) -> None:
    rig.collector.play_next_race()
    n_greedy_at_first = sum(d.is_greedy for d in rig.driver.decisions)
    rig.frames_total = 10_000_000
    for _ in range(3):
        rig.collector.play_next_race()
    n_greedy_later = sum(d.is_greedy for d in rig.driver.decisions)
    rig.collector.play_next_race()
    assert n_greedy_at_first < n_greedy_later
    assert all(d.is_greedy for d in rig.driver.decisions)


def test_new_weights_arrive_within_the_race(rig: Rig, live: LiveSettings, layout: ObservationLayout) -> None:
    version = rig.shared.publish(make_network(live.current, layout, SeedTree(2)))
    rig.collector.play_next_race()
    explorer, evaluator = rig.followers
    assert explorer.version == version
    assert evaluator.version == 0, "it drove no race yet"


def test_the_end_of_the_run_interrupts_a_race(rig: Rig) -> None:
    rig.stopped = True
    with pytest.raises(StopCollecting):
        rig.collector.play_next_race()
    rig.collector.run()
    assert rig.outbox.sent == []
