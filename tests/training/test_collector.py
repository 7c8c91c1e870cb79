"""The collector in one process: map cycle, weights, schedules, settings, room, games of both kinds, and the end."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import FramesRoom, GameIds, Motion, Received
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.results import EndedRace
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.race.types import Observation, RaceEnd
from trackmania_rl.seeds import SeedTree, stream_state
from trackmania_rl.settings import GameSettings, MapEntry, settings_from_flat
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.tmi_interaction.game_instance_manager import Decide
from trackmania_rl.training.collector import Collector, CollectorParts, WeightPuller

from .conftest import KeepingSink, WatchedRunState, edit

N_ACTIONS_IN_RACE = 43
N_GAMES = 6


class FakeGames:
    """Short races of random observations; it remembers what it showed and was told, race by race."""

    def __init__(self, n_games: int, game: GameSettings, n_floats: int) -> None:
        self.n_games = n_games
        self.game = game
        self.begun: list[tuple[int, MapEntry, GameSettings]] = []
        self.seen: list[list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]]] = []
        self.decisions: list[list[tuple[int, bool, npt.NDArray[np.float32]]]] = []
        self.loses: set[int] = set()  # numbers of races that the game can't play
        self._n_floats = n_floats
        self._rng = np.random.default_rng(1)
        self._race_of: dict[int, int] = {}
        self._waiting: set[int] = set()

    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        assert frames is not None
        self._race_of[game] = len(self.begun)
        self._waiting.add(game)
        self.begun.append((game, map_entry, self.game))
        self.seen.append([])
        self.decisions.append([])

    def recv(self) -> Received:
        over = {game: race for game, race in self._race_of.items() if len(self.decisions[race]) == N_ACTIONS_IN_RACE}
        lost = tuple(game for game, race in self._race_of.items() if race in self.loses)
        for game in (*over, *lost):
            del self._race_of[game]
            self._waiting.discard(game)
        ids = np.array(sorted(self._waiting), dtype=np.int64)
        images = self._rng.integers(0, 256, (len(ids), 1, 15, 17), dtype=np.uint8)
        floats = self._rng.standard_normal((len(ids), self._n_floats), dtype=np.float32)
        for row, game in enumerate(ids.tolist()):
            self.seen[self._race_of[game]].append((images[row], floats[row]))
        ended = {game: self._ended(race) for game, race in over.items()}
        return Received(ids, images, floats, np.zeros(len(ids), dtype=bool), ended, lost)

    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        assert policy_s > 0
        for row, game in enumerate(ids.tolist()):
            decided = int(decision.actions[row]), bool(decision.is_greedy[row]), decision.q_values[row]
            self.decisions[self._race_of[game]].append(decided)

    def motion(self, ids: GameIds) -> Motion:
        raise NotImplementedError

    def picture(self, game: int, width_px: int, height_px: int) -> None:
        raise NotImplementedError

    def close(self) -> bool:
        return True

    def _ended(self, race: int) -> EndedRace:
        end: Any = None
        return EndedRace(end, {"actions": np.array([action for action, _, _ in self.decisions[race]])}, {"race": race})


class Rig:
    """A collector with everything around it in reach."""

    def __init__(
        self, live: LiveSettings, layout: ObservationLayout, make_games: Callable[[], Any], seed: int = 1
    ) -> None:
        seeds = SeedTree(seed)
        self.sink = KeepingSink()
        self.run_state = WatchedRunState(live.current)
        self.run_state.publish(frames_total=1000)
        self.pullers = [
            WeightPuller(
                Inferer(
                    make_network(live.current, race_spaces(live.current), SeedTree(1)),
                    n_quantiles=10,
                    throttle_actions=race_spaces(live.current).throttle_actions,
                    exploration_settings=live.current.exploration,
                    rng=seeds.rng(name),
                ),
                self.run_state,
                kind,
            )
            for name, kind in (("explorer", "exploration"), ("evaluator", "evaluation"))
        ]
        self.batch_sizes: list[int] = []
        for puller in self.pullers:
            self._watch(puller.actor)
        self.games = make_games()
        self.collector = Collector(CollectorParts(self.run_state, self.sink, *self.pullers), self.games)
        self.collector.begin_races()

    def _watch(self, inferer: Inferer) -> None:
        act_batch = inferer.act_batch

        def watched(frames: Any, floats: Any, explorations: Any) -> Any:
            self.batch_sizes.append(len(frames))
            return act_batch(frames, floats, explorations)

        inferer.act_batch = watched  # type: ignore[method-assign]

    @property
    def ended(self) -> list[ReceivedRollout]:
        """Races that are over."""
        return [race for race in self.sink.races if not race.is_under_way]

    @property
    def sent(self) -> list[Mapping[str, Any]]:
        return [race.end_race_stats for race in self.sink.races]

    def play_until_sent(self, n_races: int) -> None:
        deadline_s = time.monotonic() + 30.0
        while len(self.sink.races) < n_races:
            assert time.monotonic() < deadline_s, f"only {len(self.sink.races)} races ended"
            assert self.collector.play_once()


@pytest.fixture
def make_rig(live: LiveSettings, layout: ObservationLayout) -> Callable[..., Rig]:
    """`make_rig(n_games=1)`: on `FakeGames`."""
    return lambda n_games=1: Rig(live, layout, lambda: FakeGames(n_games, live.current.game, layout.float_input_dim))


@pytest.fixture
def make_driving_rig(live: LiveSettings, layout: ObservationLayout, repository_root: Path) -> Callable[..., Rig]:
    """`make_driving_rig(seed=1)`: on simulated games in this process."""
    game = live.current.game.model_copy(update={"cutoff_no_progress_within_ms": 600})
    live.current = live.current.model_copy(update={"game": game})
    return lambda seed=1: Rig(
        live,
        layout,
        lambda: InProcessGames(N_GAMES, game, live.current.observation, repository_root / "maps"),
        seed,
    )


def test_it_follows_the_map_cycle_over_and_over(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.play_until_sent(7)
    assert [entry.is_explo for _, entry, _ in rig.games.begun[:7]] == [True] * 4 + [False] + [True] * 2
    assert [stats["is_explo"] for stats in rig.sent] == [True] * 4 + [False] + [True] * 2
    assert all(stats["fill_buffer"] and stats["map_name"] == "valley" for stats in rig.sent)


def test_each_race_tells_its_place_and_where_the_random_streams_are(make_rig: Callable[..., Rig]) -> None:
    rig, stream = make_rig(3), np.random.default_rng(7)
    rig.collector._parts = replace(rig.collector._parts, streams={"explorer": stream})
    begins_at = stream_state(stream)
    rig.play_until_sent(6)
    stream.random()
    rig.play_until_sent(12)
    told = [race.position for race in rig.sink.races if race.position is not None]
    assert sorted(position.number for position in told) == list(range(12))
    for position in told:
        assert position.place == position.number % 5
        assert position.game == rig.games.begun[position.number][0]
        assert position.frames_total == 1000
    assert [position.streams["explorer"] for position in told] == [begins_at] * 6 + [stream_state(stream)] * 6


def test_several_games_share_one_map_cycle(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(3)
    rig.play_until_sent(30)
    begun = [entry.is_explo for _, entry, _ in rig.games.begun]
    assert begun.count(False) == pytest.approx(len(begun) / 5, abs=1)
    assert {game for game, _, _ in rig.games.begun} == {0, 1, 2}


def test_decisions_made_together_are_those_made_alone(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(5)
    rig.play_until_sent(25)
    assert max(rig.batch_sizes) > 1
    alone = make_rig().pullers[1].actor
    n_compared = 0
    for (_, entry, _), seen, decided in zip(rig.games.begun, rig.games.seen, rig.games.decisions, strict=True):
        for (image, floats), (action, is_greedy, q_values) in zip(seen, decided, strict=False):
            single = alone.act(image, floats)
            np.testing.assert_allclose(q_values, single.q_values, rtol=1e-4, atol=1e-5)
            assert is_greedy == (action == q_values.argmax())
            if not entry.is_explo:
                assert action == single.action
                n_compared += 1
    assert n_compared >= 3 * N_ACTIONS_IN_RACE


def test_evaluation_races_are_greedy_and_exploration_follows_the_frame_count(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.run_state.publish(frames_total=0)
    rig.play_until_sent(1)
    rig.run_state.publish(frames_total=10_000_000)
    rig.play_until_sent(6)
    n_greedy = [sum(is_greedy for _, is_greedy, _ in decisions) for decisions in rig.games.decisions[:5]]
    assert n_greedy[0] < min(n_greedy[2:4])
    assert n_greedy[4] == N_ACTIONS_IN_RACE


def test_new_weights_arrive_at_a_races_beginning_and_within_it(
    make_rig: Callable[..., Rig], live: LiveSettings, layout: ObservationLayout
) -> None:
    rig = make_rig()
    explorer, evaluator = rig.pullers

    def publish(seed: int) -> None:
        rig.run_state.publish(
            weights={"exploration": make_network(live.current, race_spaces(live.current), SeedTree(seed))}
        )

    publish(2)
    assert rig.collector.play_once()
    assert explorer.version == 1
    publish(3)
    for _ in range(live.current.sync.update_inference_network_every_n_actions):
        assert rig.collector.play_once()
    assert explorer.version == 2
    assert evaluator.version == 0, "it drove no race yet"


def test_decisions_are_made_by_the_weights_that_were_pulled(live: LiveSettings, layout: ObservationLayout) -> None:
    def inferer_of(seeds: SeedTree) -> Inferer:
        return Inferer(
            make_network(live.current, race_spaces(live.current), seeds),
            n_quantiles=10,
            throttle_actions=race_spaces(live.current).throttle_actions,
            exploration_settings=live.current.exploration,
            rng=np.random.default_rng(1),
        )

    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (3, 1, 15, 17), dtype=np.uint8)
    floats = rng.standard_normal((3, layout.float_input_dim), dtype=np.float32)
    run_state = LocalRunState(live.current)
    run_state.publish(weights={"exploration": make_network(live.current, race_spaces(live.current), SeedTree(2))})
    puller = WeightPuller(inferer_of(SeedTree(1)), run_state, "exploration")
    before = puller.actor.act_batch(frames, floats).q_values
    puller.pull_if_due(every_n_passes=5)
    now = puller.actor.act_batch(frames, floats).q_values
    expected = inferer_of(SeedTree(2)).act_batch(frames, floats).q_values
    np.testing.assert_allclose(now, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(before - expected).max() > 1e-3


def test_a_race_tells_how_long_ago_its_weights_came(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.play_until_sent(1)
    rig.run_state.pull_weights = lambda kind, network, known_version: known_version  # no newer ones come
    rig.play_until_sent(2)
    time.sleep(0.05)
    rig.play_until_sent(5)
    ages_s = [stats["weights_age_s"] for stats in rig.sent]
    assert ages_s == sorted(ages_s)
    assert 0 < ages_s[1] < ages_s[2]
    assert ages_s[-1] >= 0.05


def test_published_settings_hold_from_the_next_race_on(make_rig: Callable[..., Rig], live: LiveSettings) -> None:
    rig = make_rig()
    assert rig.collector.play_once()
    greedy = {"epsilon_schedule": ((0, 0.0),), "epsilon_boltzmann_schedule": ((0, 0.0),), "running_speed": 7.0}
    rig.run_state.publish(settings=settings_from_flat(live.current.flat() | greedy))
    rig.play_until_sent(3)
    assert [settings.running_speed for _, _, settings in rig.games.begun[:3]] == [1000, 7, 7]
    first, *later = rig.games.decisions[:3]
    assert not all(is_greedy for _, is_greedy, _ in first)
    assert all(is_greedy for decisions in later for _, is_greedy, _ in decisions)


def test_a_game_that_cannot_play_its_race_is_given_another(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(2)
    rig.games.loses = {0, 2, 3, 4, 5}
    rig.play_until_sent(6)
    driven = [entry.is_explo for game, entry, _ in rig.games.begun if game == 0][:6]
    assert set(driven) == {True, False}, "a round of the map cycle, its evaluation race included"
    assert {stats["race"] for stats in rig.sent}.isdisjoint(rig.games.loses)


def test_the_end_of_the_run_interrupts_races(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(3)
    rig.run_state.is_over = lambda: len(rig.batch_sizes) >= 5
    rig.collector.run()
    assert len(rig.batch_sizes) == 5
    assert rig.sent == []


def test_the_end_of_the_run_ends_the_wait_for_the_learner(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(3)
    rig.sink.has_room = False
    rig.collector.run()
    assert len(rig.batch_sizes) == N_ACTIONS_IN_RACE
    assert rig.sent == []


class AskingDriver:
    """Plays races behind a socket, as far as `SocketGames` can tell; fills the room that it is given."""

    def __init__(self, game: GameSettings, n_floats: int) -> None:
        self.game = game
        self._n_floats = n_floats

    def play(self, map_entry: MapEntry, decide: Decide, frames: npt.NDArray[np.uint8] | None) -> EndedRace:
        assert frames is not None
        frames[:] = 7
        image = np.zeros((1, self.game.image_height_px, self.game.image_width_px), dtype=np.uint8)
        floats = np.zeros(self._n_floats, dtype=np.float32)
        for action in range(N_ACTIONS_IN_RACE):
            seen = Observation(image, floats, floats, 0, 0.0, 50 * action, floats[:3], 0.0)
            decision = decide(image, seen)
        end = RaceEnd("too_long", 50, 1, 1.0, (), last=seen)
        return EndedRace(end, {"frames": frames[:1], "actions": np.array([decision.action])}, {})

    def close(self) -> None:
        """Nothing to end."""


def test_games_behind_sockets_write_into_the_sinks_room(live: LiveSettings, layout: ObservationLayout) -> None:
    n_threads_before = threading.active_count()
    drivers = [AskingDriver(live.current.game, layout.float_input_dim) for _ in range(3)]
    rig = Rig(live, layout, lambda: SocketGames(drivers))
    rig.play_until_sent(12)
    assert rig.games.close()
    assert all((race.rollout_results["frames"] == 7).all() for race in rig.sink.races)
    assert max(rig.batch_sizes) > 1
    assert threading.active_count() <= n_threads_before


def test_races_of_the_map_cycle_come_out_whole(make_driving_rig: Callable[..., Rig], layout: ObservationLayout) -> None:
    rig = make_driving_rig()
    rig.play_until_sent(3 * N_GAMES)
    is_explo = [stats["is_explo"] for stats in rig.sent]
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


def transitions_of(rig: Rig, live: LiveSettings) -> Counter[tuple[bytes, ...]]:
    """The transitions that are stored of a rig's races: (state, action and steps, next state, rewards)."""
    reward = RaceReward(live.current, race_spaces(live.current), SeedTree(1))
    settings = live.current.replay.model_copy(update={"memory_size_schedule": ((0, 5000),)})
    shape, generator = {"n_floats": len(rig.sink.races[0].rollout_results["state_float"][0])}, torch.Generator()
    buffers = make_buffers(settings, **shape, image_size_px=(15, 17), device="cpu", generator=generator)
    for race in rig.sink.races:
        rewarded = reward(race.rollout_results, live.current, 0)
        fill = fill_buffer_from_rollout_with_n_steps_rule
        fill(*buffers, race.rollout_results, rewarded, settings, fragment=race.fragment)
    experiences = [side[place] for side in buffers for place in range(len(side))]
    return Counter(
        (e.state_float.tobytes(), bytes([e.action, e.n_steps]), e.next_state_float.tobytes(), e.rewards.tobytes())
        for e in experiences
    )


def test_fragments_of_races_hold_what_whole_races_hold(
    live: LiveSettings, make_driving_rig: Callable[..., Rig]
) -> None:
    whole = make_driving_rig()
    whole.play_until_sent(2 * N_GAMES)
    edit(live, batch_mode="truncate_episodes", rollout_fragment_length=4)
    in_fragments = make_driving_rig()
    while len(in_fragments.ended) < 2 * N_GAMES:
        assert in_fragments.collector.play_once()
    under_way = [race for race in in_fragments.sink.races if race.is_under_way]
    assert len(under_way) > 3 * N_GAMES
    assert in_fragments.sink.races.index(under_way[0]) == 0
    new = [len(r.rollout_results["actions"]) - r.fragment.n_actions_before for r in under_way if r.fragment]
    assert set(new) == {4}
    for ours, theirs in zip(in_fragments.ended, whole.ended, strict=True):
        np.testing.assert_array_equal(ours.rollout_results["state_float"], theirs.rollout_results["state_float"])
    expected, stored = transitions_of(whole, live), transitions_of(in_fragments, live)
    assert expected.total() == sum(len(race.rollout_results["actions"]) for race in whole.sink.races)
    assert expected <= stored, "of the races that go on there are fragments as well"


def test_frames_of_long_races_reach_the_learner_ten_times_sooner(
    live: LiveSettings, layout: ObservationLayout, repository_root: Path
) -> None:
    ring = {"map_name": "ring", "map_path": "ring.toml", "reference_line": "ring_0.5m.npy"}
    entry = MapEntry(**ring, is_explo=True, fill_buffer=True)
    edit(live, map_cycle=(entry.model_dump(),), cutoff_no_progress_within_ms=120_000, frames_per_state=1)
    edit(live, cutoff_race_longer_than_ms=60_000, image_width_px=0, image_height_px=0)
    n_passes = []
    for batch_mode in ("complete_episodes", "truncate_episodes"):
        edit(live, batch_mode=batch_mode, rollout_fragment_length=50)
        settings = live.current
        rig = Rig(
            live,
            layout,
            lambda s=settings: InProcessGames(2, s.game, s.observation, repository_root / "maps"),
        )
        rig.play_until_sent(1)
        n_passes.append(len(rig.batch_sizes))
    assert n_passes[1] == 52, "the 50th action is certain not to be the last one when the 51st was made"
    assert n_passes[0] > 10 * n_passes[1]


def test_the_same_seed_gives_the_same_races(make_driving_rig: Callable[..., Rig]) -> None:
    actions = []
    for seed in (1, 1, 2):
        rig = make_driving_rig(seed)
        rig.play_until_sent(N_GAMES)
        actions.append([race.rollout_results["actions"].tolist() for race in rig.sink.races])
    assert actions[0] == actions[1] != actions[2]
