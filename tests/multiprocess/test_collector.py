"""The collector in one process: the map cycle, weights, schedules, games that fail or hang, and the end of the run."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.errors import UserError
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import Policy, PolicyDecision
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import GameSettings, MapEntry, settings_from_flat
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.tmi_interaction.game_instance_manager import GameKeepsFailingError
from trackmania_rl.training import collector as collector_module
from trackmania_rl.training.collector import Collector, CollectorParts, WeightPuller

from .conftest import WatchedRunState

N_ACTIONS_IN_RACE = 43


class FakeDriver:
    """Asks the policy for as many actions as a short race has, and remembers what it saw and was told."""

    def __init__(self, game: GameSettings, n_floats: int, seed: int) -> None:
        self.game = game
        self.entries: list[MapEntry] = []
        self.decisions: list[list[PolicyDecision]] = []
        self.observations: list[list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]]] = []
        self.before_race: Callable[[], None] = lambda: None
        self.is_closed = False
        self._rng = np.random.default_rng(seed)
        self._n_floats = n_floats

    def rollout(
        self, map_entry: MapEntry, policy: Policy, frames: npt.NDArray[np.uint8] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.before_race()
        self.entries.append(map_entry)
        self.decisions.append([])
        self.observations.append([])
        for _ in range(N_ACTIONS_IN_RACE):
            frame = self._rng.integers(0, 256, (1, self.game.image_height_px, self.game.image_width_px), dtype=np.uint8)
            floats = self._rng.standard_normal(self._n_floats, dtype=np.float32)
            self.observations[-1].append((frame, floats))
            self.decisions[-1].append(policy(frame, floats))
        return {"actions": np.array([d.action for d in self.decisions[-1]])}, {"race_finished": False}

    def close(self) -> None:
        self.is_closed = True


class ListSink:
    """Remembers who put which figures."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.sent: list[Mapping[str, Any]] = []
        self.games: list[int] = []
        self.on_put: Callable[[], None] = lambda: None

    def acquire_frames(self, game: int, timeout_s: float = 0.0) -> npt.NDArray[np.uint8] | None:
        return np.zeros((100, 1, 15, 17), dtype=np.uint8)

    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        self.games.append(game)
        self.sent.append(end_race_stats)
        self.on_put()

    def close(self) -> None:
        """Nothing to let go of."""


class Rig:
    """A collector with everything around it in reach."""

    def __init__(self, live: LiveSettings, layout: ObservationLayout, n_games: int = 1) -> None:
        seeds = SeedTree(1)
        n_floats = layout.float_input_dim
        self.drivers = [FakeDriver(live.current.game, n_floats, seed) for seed in range(n_games)]
        self.sink = ListSink()
        self.run_state = WatchedRunState(live.current)
        self.pullers = [
            WeightPuller(
                Inferer(
                    make_network(live.current, layout, seeds),
                    n_quantiles=10,
                    inputs=live.current.game.inputs,
                    exploration_settings=live.current.exploration,
                    rng=seeds.rng(name),
                ),
                self.run_state,
                kind,
            )
            for name, kind in (("explorer", "exploration"), ("evaluator", "evaluation"))
        ]
        self.batch_sizes: list[int] = []
        self.n_published = 0
        for puller in self.pullers:
            self._watch(puller.inferer)
        self.collector = Collector(CollectorParts(self.run_state, self.sink, *self.pullers), self.drivers)

    def publish_weights(self, network: IQN_Network) -> int:
        """Publish to explore with; return how often that was done."""
        self.run_state.publish(weights={"exploration": network})
        self.n_published += 1
        return self.n_published

    def _watch(self, inferer: Inferer) -> None:
        act_batch = inferer.act_batch

        def watched(frames: Any, floats: Any, explorations: Any) -> Any:
            self.batch_sizes.append(len(frames))
            return act_batch(frames, floats, explorations)

        inferer.act_batch = watched  # type: ignore[method-assign]

    def run_until(self, is_over: Callable[[], bool], within_s: float = 30.0) -> float:
        """Run until then; return the seconds that the end took."""
        deadline_s = time.monotonic() + within_s
        ended_at_s = []

        def watch() -> bool:
            assert time.monotonic() < deadline_s, f"races sent: {self.sink.games}"
            if is_over():
                ended_at_s.append(time.monotonic())
            return bool(ended_at_s)

        self.run_state.is_over = watch
        self.collector.run()
        return time.monotonic() - ended_at_s[0]

    def run_until_sent(self, n_races: int) -> None:
        self.run_until(lambda: len(self.sink.sent) >= n_races)


@pytest.fixture
def rig(live: LiveSettings, layout: ObservationLayout) -> Rig:
    return Rig(live, layout)


@pytest.fixture
def rig_of_three(live: LiveSettings, layout: ObservationLayout) -> Rig:
    return Rig(live, layout, n_games=3)


def test_it_follows_the_map_cycle_over_and_over(rig: Rig) -> None:
    rig.run_until_sent(7)
    driver = rig.drivers[0]
    assert [entry.is_explo for entry in driver.entries[:7]] == [True] * 4 + [False] + [True] * 2
    assert [stats["is_explo"] for stats in rig.sink.sent[:7]] == [True] * 4 + [False] + [True] * 2
    assert all(stats["fill_buffer"] and stats["map_name"] == "valley" for stats in rig.sink.sent)
    assert driver.is_closed
    assert rig.collector.games_have_ended


def test_several_games_share_one_map_cycle(rig_of_three: Rig) -> None:
    rig = rig_of_three
    rig.run_until_sent(30)
    begun = [entry.is_explo for driver in rig.drivers for entry in driver.entries]
    assert begun.count(False) == pytest.approx(len(begun) / 5, abs=1)
    assert set(rig.sink.games) == {0, 1, 2}
    assert all(driver.is_closed for driver in rig.drivers)


def test_decisions_made_together_are_those_made_alone(live: LiveSettings, layout: ObservationLayout) -> None:
    rig = Rig(live, layout, n_games=5)
    rig.run_until_sent(25)
    assert max(rig.batch_sizes) > 1
    alone = Rig(live, layout).pullers[1].inferer
    rig.pullers[1].inferer.network.load_state_dict(alone.network.state_dict())
    n_compared = 0
    for driver in rig.drivers:
        for entry, seen, decided in zip(driver.entries, driver.observations, driver.decisions, strict=True):
            for (frame, floats), decision in zip(seen, decided, strict=False):
                single = alone.act(frame, floats)
                np.testing.assert_allclose(decision.q_values, single.q_values, rtol=1e-4, atol=1e-5)
                assert decision.is_greedy == (decision.action == decision.q_values.argmax())
                if not entry.is_explo:
                    assert decision.action == single.action
                    n_compared += 1
    assert n_compared >= 3 * N_ACTIONS_IN_RACE


def test_evaluation_races_are_greedy_and_exploration_follows_the_frame_count(rig: Rig) -> None:
    def count_frames() -> None:
        rig.run_state.publish(frames_total=10_000_000)

    rig.sink.on_put = count_frames
    rig.run_until_sent(5)
    n_greedy = [sum(d.is_greedy for d in decisions) for decisions in rig.drivers[0].decisions[:5]]
    assert n_greedy[0] < min(n_greedy[1:4])
    assert n_greedy[4] == N_ACTIONS_IN_RACE


def test_new_weights_arrive_within_the_race(rig: Rig, live: LiveSettings, layout: ObservationLayout) -> None:
    versions = [rig.publish_weights(make_network(live.current, layout, SeedTree(2)))]
    explorer, evaluator = rig.pullers

    def publish_during_the_second_race() -> None:
        decide_at_first = explorer.inferer.act_batch

        def publish(*arguments: Any) -> Any:
            versions.append(rig.publish_weights(make_network(live.current, layout, SeedTree(3))))
            explorer.inferer.act_batch = decide_at_first  # type: ignore[method-assign]
            return decide_at_first(*arguments)

        explorer.inferer.act_batch = publish  # type: ignore[method-assign]
        rig.sink.on_put = lambda: seen.append(explorer.version)

    seen: list[int] = []
    rig.sink.on_put = lambda: (seen.append(explorer.version), publish_during_the_second_race())
    rig.run_until_sent(2)
    assert seen[:2] == versions, "what is there at the beginning, and what comes during the race"
    assert evaluator.version == 0, "it drove no race yet"


def test_decisions_are_made_by_the_weights_that_were_pulled(live: LiveSettings, layout: ObservationLayout) -> None:
    def inferer_of(seeds: SeedTree) -> Inferer:
        return Inferer(
            make_network(live.current, layout, seeds),
            n_quantiles=10,
            inputs=live.current.game.inputs,
            exploration_settings=live.current.exploration,
            rng=np.random.default_rng(1),
        )

    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (3, 1, 15, 17), dtype=np.uint8)
    floats = rng.standard_normal((3, layout.float_input_dim), dtype=np.float32)
    run_state = LocalRunState(live.current)
    run_state.publish(weights={"exploration": make_network(live.current, layout, SeedTree(2))})
    puller = WeightPuller(inferer_of(SeedTree(1)), run_state, "exploration")
    before = puller.inferer.act_batch(frames, floats).q_values
    puller.pull_if_due(every_n_passes=5)
    now = puller.inferer.act_batch(frames, floats).q_values
    expected = inferer_of(SeedTree(2)).act_batch(frames, floats).q_values
    np.testing.assert_allclose(now, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(before - expected).max() > 1e-3


def test_published_settings_hold_from_the_next_race_on(rig: Rig, live: LiveSettings) -> None:
    greedy = {"epsilon_schedule": ((0, 0.0),), "epsilon_boltzmann_schedule": ((0, 0.0),)}

    def edit_once() -> None:
        rig.sink.on_put = lambda: None
        rig.run_state.publish(settings=settings_from_flat(live.current.flat() | greedy | {"running_speed": 7.0}))

    rig.sink.on_put = edit_once
    assert rig.drivers[0].game.running_speed == 1000
    rig.run_until_sent(3)
    assert rig.drivers[0].game.running_speed == 7
    first, *later = rig.drivers[0].decisions[:3]
    assert not all(decision.is_greedy for decision in first)
    assert all(decision.is_greedy for decisions in later for decision in decisions)


def test_the_end_of_the_run_interrupts_races(rig_of_three: Rig) -> None:
    rig = rig_of_three
    seconds = rig.run_until(lambda: len(rig.batch_sizes) >= 5)
    assert rig.sink.sent == []
    assert rig.collector.games_have_ended
    assert seconds < 0.5


def test_a_game_that_hangs_holds_up_nobody_and_not_the_end(rig_of_three: Rig) -> None:
    rig = rig_of_three
    hangs = threading.Event()
    rig.drivers[1].before_race = hangs.wait
    seconds = rig.run_until(lambda: len(rig.sink.sent) >= 12)
    assert set(rig.sink.games) == {0, 2}
    assert seconds < 2
    assert not rig.collector.games_have_ended
    hangs.set()
    rig.drivers[1].before_race = lambda: None


def test_a_game_that_comes_back_plays_on(rig_of_three: Rig) -> None:
    rig = rig_of_three
    starts_anew = threading.Event()
    rig.drivers[2].before_race = starts_anew.wait

    def others_have_played_and_then_all() -> bool:
        if len(rig.sink.sent) >= 6:
            starts_anew.set()
        return 2 in rig.sink.games

    rig.run_until(others_have_played_and_then_all)
    assert rig.sink.games.index(2) >= 6


def fail() -> None:
    raise GameKeepsFailingError("3 game instances in a row failed")


def test_a_game_that_keeps_failing_is_tried_again_later(
    rig_of_three: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_of_three
    monkeypatch.setattr(collector_module, "RETRY_FAILING_GAME_AFTER_S", 0.05)
    failures = iter([fail, fail])
    rig.drivers[0].before_race = lambda: next(failures, lambda: None)()
    with caplog.at_level(logging.WARNING):
        rig.run_until(lambda: set(rig.sink.games) == {0, 1, 2})
    assert caplog.text.count("game 0 is tried again in 0.05 s: 3 game instances in a row failed") == 2


def test_a_game_that_fails_tries_another_race(rig_of_three: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_of_three
    monkeypatch.setattr(collector_module, "RETRY_FAILING_GAME_AFTER_S", 0.0)
    driven: list[MapEntry] = []
    rollout = rig.drivers[0].rollout

    def fails_at_first(map_entry: MapEntry, *arguments: Any, **named: Any) -> Any:
        driven.append(map_entry)
        if len(driven) <= 4:
            fail()
        return rollout(map_entry, *arguments, **named)

    rig.drivers[0].rollout = fails_at_first  # type: ignore[method-assign]
    rig.run_until(lambda: 0 in rig.sink.games)
    assert len({entry.is_explo for entry in driven[:5]}) == 2, "a round of the map cycle, its evaluation race included"


@pytest.mark.parametrize("n_games", [1, 3])
def test_when_no_game_plays_any_more_the_collector_ends(
    live: LiveSettings, layout: ObservationLayout, monkeypatch: pytest.MonkeyPatch, n_games: int
) -> None:
    monkeypatch.setattr(collector_module, "FIRST_GAME_WITHIN_S", 0.2)
    rig = Rig(live, layout, n_games)
    for driver in rig.drivers:
        driver.before_race = fail
    with pytest.raises(GameKeepsFailingError):
        rig.run_until(lambda: False)
    assert rig.collector.games_have_ended
    assert all(driver.is_closed for driver in rig.drivers)


def test_a_mistake_of_the_user_ends_the_collector(rig_of_three: Rig) -> None:
    def refuse() -> None:
        raise UserError("port 8480 is in use")

    rig_of_three.drivers[2].before_race = refuse
    with pytest.raises(UserError, match="port 8480"):
        rig_of_three.run_until(lambda: False)
    assert rig_of_three.collector.games_have_ended
