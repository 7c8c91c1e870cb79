"""A collector in one process: map cycle, weights, exploration, settings, several games, fragments, and its end."""

import time
from collections import Counter
from collections.abc import Callable
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
from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import FramesRoom, GameIds, Motion, Received
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.results import EndedRace
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree, stream_state
from trackmania_rl.settings import GameSettings, MapEntry, settings_from_flat
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.collector import Collector, CollectorParts

from .conftest import KeepingSink, WatchedRunState, edit, pullers_of

N_ACTIONS_IN_RACE = 43
N_GAMES = 6
ROUND = [True] * 4 + [False]  # of the map cycle: which races explore


class FakeGames:
    """Short races of random observations, which are kept with the decisions, race by race."""

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

    def __init__(self, live: LiveSettings, make_games: Callable[[], Any], seed: int = 1) -> None:
        self.sink = KeepingSink()
        self.run_state = WatchedRunState(live.current)
        self.run_state.publish(frames_total=1000)
        self.pullers = pullers_of(live.current, self.run_state, SeedTree(seed))
        self.batch_sizes: list[int] = []
        for puller in self.pullers:
            self._watch(puller.actor)
        self.games = make_games()
        self.collector = Collector(CollectorParts(self.run_state, self.sink, *self.pullers), self.games)
        self.collector.begin_races()

    def _watch(self, inferer: Inferer) -> None:
        act_batch = inferer.act_batch

        def watched(frames: Any, *seen: Any) -> Any:
            self.batch_sizes.append(len(frames))
            return act_batch(frames, *seen)

        inferer.act_batch = watched  # type: ignore[method-assign]

    @property
    def ended(self) -> list[ReceivedRollout]:
        """Races that are over."""
        return [race for race in self.sink.races if not race.is_under_way]

    def play_until_ended(self, n_races: int) -> None:
        deadline_s = time.monotonic() + 120.0
        while len(self.ended) < n_races:
            assert time.monotonic() < deadline_s, f"only {len(self.ended)} races ended"
            assert self.collector.play_once()


@pytest.fixture
def make_rig(live: LiveSettings, layout: ObservationLayout) -> Callable[..., Rig]:
    """`make_rig(n_games=1)`: on `FakeGames`."""
    return lambda n_games=1: Rig(live, lambda: FakeGames(n_games, live.current.game, layout.float_input_dim))


@pytest.fixture
def make_driving_rig(live: LiveSettings, repository_root: Path) -> Callable[..., Rig]:
    """`make_driving_rig(seed=1)`: on simulated games in this process."""
    edit(live, cutoff_no_progress_within_ms=600)

    def games() -> InProcessGames:
        return InProcessGames(N_GAMES, live.current.game, live.current.observation, repository_root / "maps")

    return lambda seed=1: Rig(live, games, seed)


def test_games_share_one_map_cycle_and_each_race_has_its_place_and_random_streams(make_rig: Callable[..., Rig]) -> None:
    rig, stream = make_rig(3), np.random.default_rng(7)
    rig.collector._parts = replace(rig.collector._parts, streams={"explorer": stream})
    begins_at = stream_state(stream)
    rig.play_until_ended(6)
    stream.random()
    rig.play_until_ended(12)
    assert [entry.is_explo for _, entry, _ in rig.games.begun[:10]] == ROUND * 2
    assert {game for game, _, _ in rig.games.begun} == {0, 1, 2}
    positions = [race.position for race in rig.sink.races if race.position is not None]
    assert sorted(position.number for position in positions) == list(range(12))
    for race, position in zip(rig.sink.races, positions, strict=True):
        assert race.end_race_stats["is_explo"] == ROUND[position.number % 5]
        assert position.place == position.number % 5
        assert position.game == rig.games.begun[position.number][0]
        assert position.frames_total == 1000
    assert [position.streams["explorer"] for position in positions] == [begins_at] * 6 + [stream_state(stream)] * 6


def test_decisions_made_together_are_those_made_alone(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(5)
    rig.play_until_ended(10)
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
    assert n_compared >= 2 * N_ACTIONS_IN_RACE


def test_evaluation_races_are_greedy_and_exploration_follows_the_frame_count(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.run_state.publish(frames_total=0)
    rig.play_until_ended(1)
    rig.run_state.publish(frames_total=10_000_000)
    rig.play_until_ended(6)
    n_greedy = [sum(is_greedy for _, is_greedy, _ in decisions) for decisions in rig.games.decisions[:5]]
    assert n_greedy[0] < min(n_greedy[2:4])
    assert n_greedy[4] == N_ACTIONS_IN_RACE


def test_new_weights_arrive_at_a_races_beginning_and_within_it(
    make_rig: Callable[..., Rig], live: LiveSettings, layout: ObservationLayout
) -> None:
    rig = make_rig()
    explorer, evaluator = rig.pullers

    def network(seed: int) -> Any:
        return make_network(live.current, race_spaces(live.current), SeedTree(seed))

    def q_values(seed: int) -> npt.NDArray[np.float32]:
        actor = pullers_of(live.current, rig.run_state, SeedTree(1))[0].actor
        actor.network.load_state_dict(network(seed).state_dict())
        actor.weights_changed()
        return actor.act_batch(*seen).q_values

    rig.run_state.publish(weights={"exploration": network(2)})
    assert rig.collector.play_once()
    assert explorer.version == 1
    rig.run_state.publish(weights={"exploration": network(3)})
    for _ in range(live.current.sync.update_inference_network_every_n_actions):
        assert rig.collector.play_once()
    assert explorer.version == 2
    assert evaluator.version == 0, "it drove no race yet"
    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (3, 1, 15, 17), dtype=np.uint8)
    seen = frames, rng.standard_normal((3, layout.float_input_dim), dtype=np.float32)
    decided = explorer.actor.act_batch(*seen).q_values
    np.testing.assert_allclose(decided, q_values(3), rtol=1e-5, atol=1e-6)
    assert np.abs(decided - q_values(2)).max() > 1e-3


def test_published_settings_hold_from_the_next_race_on(make_rig: Callable[..., Rig], live: LiveSettings) -> None:
    rig = make_rig()
    assert rig.collector.play_once()
    greedy = {"epsilon_schedule": ((0, 0.0),), "epsilon_boltzmann_schedule": ((0, 0.0),), "running_speed": 7.0}
    rig.run_state.publish(settings=settings_from_flat(live.current.flat() | greedy))
    rig.play_until_ended(3)
    assert [settings.running_speed for _, _, settings in rig.games.begun[:3]] == [1000, 7, 7]
    first, *later = rig.games.decisions[:3]
    assert not all(is_greedy for _, is_greedy, _ in first)
    assert all(is_greedy for decisions in later for _, is_greedy, _ in decisions)


def test_a_game_that_cannot_play_its_race_gets_another_one(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(2)
    rig.games.loses = {0, 2, 3, 4, 5}
    rig.play_until_ended(6)
    driven = [entry.is_explo for game, entry, _ in rig.games.begun if game == 0][:6]
    assert set(driven) == {True, False}, "a round of the map cycle, its evaluation race included"
    assert {race.end_race_stats["race"] for race in rig.ended}.isdisjoint(rig.games.loses)


@pytest.mark.parametrize("has_room", [True, False])
def test_the_end_of_the_run_interrupts_races_and_the_wait_for_the_learner(
    make_rig: Callable[..., Rig], has_room: bool
) -> None:
    rig = make_rig(3)
    rig.sink.has_room = has_room
    rig.run_state.is_over = lambda: len(rig.batch_sizes) >= (5 if has_room else N_ACTIONS_IN_RACE)
    rig.collector.run()
    assert len(rig.batch_sizes) == (5 if has_room else N_ACTIONS_IN_RACE)
    assert rig.sink.races == []


def test_the_same_seed_gives_the_same_races_and_they_come_out_whole(
    make_driving_rig: Callable[..., Rig], layout: ObservationLayout
) -> None:
    rig, again, other = (make_driving_rig(seed) for seed in (1, 1, 2))
    for one in (rig, again, other):
        one.play_until_ended(2 * N_GAMES)
    actions = [[race.rollout_results["actions"].tolist() for race in one.sink.races] for one in (rig, again, other)]
    assert actions[0] == actions[1] != actions[2]
    assert {race.end_race_stats["is_explo"] for race in rig.sink.races} == {True, False}
    for race in rig.sink.races:
        results, stats = race.rollout_results, race.end_race_stats
        n = len(results["actions"])
        assert results["frames"].shape == (n + 1, 1, 15, 17)
        assert results["frames"].any(axis=(1, 2, 3)).all()
        assert results["state_float"].shape == (n + 1, layout.float_input_dim)
        assert stats["map_name"] == "valley"
        assert stats["fill_buffer"]
        assert stats["timings_ms"]["policy"] > 0
        assert stats["weights_age_s"] >= 0
        if not stats["is_explo"]:
            assert results["action_was_greedy"].all()
            np.testing.assert_array_equal(results["actions"], results["q_values"].argmax(axis=1))


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
    whole.play_until_ended(2 * N_GAMES)
    edit(live, batch_mode="truncate_episodes", rollout_fragment_length=4)
    in_fragments = make_driving_rig()
    in_fragments.play_until_ended(2 * N_GAMES)
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
