"""A collector in one process: map cycle, weights, exploration, settings, several games, fragments, and its end."""

import copy
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from trackmania_rl.agents.builder import IQN
from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.race.race import stream_state
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import settings_from_flat
from trackmania_rl.training.collector import PULL_EVERY_N_ACTIONS, Collector, CollectorParts

from .conftest import KeepingSink, WatchedRunState, edit, players_of

ROUND = [True] * 4 + [False]  # of the map cycle: which races explore


class Rig:
    """A collector with everything around it in reach."""

    def __init__(self, live, games, seed):
        self.sink = KeepingSink()
        self.run_state = WatchedRunState(live.current)
        self.run_state.publish(frames_total=1000)
        self.explorer, self.evaluators = players_of(live.current, self.run_state, SeedTree(seed))
        self.batch_sizes = []
        self._watch(self.explorer.actor)
        self.games = games
        parts = CollectorParts(self.run_state, self.sink, self.explorer, self.evaluators)
        self.collector = Collector(parts, self.games)
        self.collector.begin_races()

    def _watch(self, inferer):
        act_batch = inferer.act_batch

        def watched(frames, *seen):
            self.batch_sizes.append(len(frames))
            return act_batch(frames, *seen)

        inferer.act_batch = watched

    @property
    def ended(self):
        """Races that are over."""
        return [race for race in self.sink.races if not race.facts.is_under_way]

    def play_until_ended(self, n_races):
        deadline_s = time.monotonic() + 120.0
        while len(self.ended) < n_races:
            assert time.monotonic() < deadline_s, f"only {len(self.ended)} races ended"
            assert self.collector.play_once()


@pytest.fixture
def make_rig(live, repository_root):
    """`make_rig(n_games=6, seed=1)`: on simulated games in this process, whose races are short."""
    edit(live, cutoff_no_progress_within_ms=600)
    maps_folder = repository_root / "maps"

    def make(n_games=6, seed=1):
        return Rig(live, InProcessGames(n_games, live.current.game, live.current.observation, maps_folder), seed)

    return make


def test_games_share_one_map_cycle_and_each_race_has_its_place_and_random_streams(make_rig):
    rig, stream = make_rig(3), np.random.default_rng(7)
    rig.collector._parts = replace(rig.collector._parts, streams={"explorer": stream})
    begins_at = stream_state(stream)
    rig.play_until_ended(3)
    stream.random()
    rig.play_until_ended(15)
    races = {race.facts.position.number: race for race in rig.ended if race.facts.position is not None}
    assert set(range(12)) <= races.keys()
    for number, race in races.items():
        assert race.facts.is_explo == ROUND[number % 5]
        assert race.facts.position.place == number % 5
        assert race.facts.position.streams["explorer"] == (begins_at if number < 3 else stream_state(stream))


def test_the_same_seed_gives_the_same_races_whose_decisions_are_those_made_alone(make_rig, layout):
    rig, again, other = (make_rig(seed=seed) for seed in (1, 1, 2))
    for one in (rig, again, other):
        one.play_until_ended(12)
    actions = [[race.columns["actions"].tolist() for race in one.sink.races] for one in (rig, again, other)]
    assert actions[0] == actions[1] != actions[2]
    assert max(rig.batch_sizes) > 1
    assert {race.facts.is_explo for race in rig.sink.races} == {True, False}
    alone = make_rig(1).evaluators.newest([]).actor
    for race in rig.sink.races:
        results, facts = race.columns, race.facts
        n = len(results["actions"])
        assert results["frames"].shape == (n + 1, 1, 15, 17)
        assert results["frames"].any(axis=(1, 2, 3)).all()
        assert results["state_float"].shape == (n + 1, layout.float_input_dim)
        assert facts.map_name == "valley"
        assert facts.fill_buffer
        assert facts.timings_ms["policy"] > 0
        assert facts.weights_age_s >= 0
        is_greedy = results["actions"] == results["q_values"].argmax(axis=1)
        np.testing.assert_array_equal(results["action_was_greedy"], is_greedy)
        assert facts.is_explo or is_greedy.all()
        for row in range(n):
            single = alone.act(results["frames"][row], results["state_float"][row])
            np.testing.assert_allclose(results["q_values"][row], single.q_values, rtol=1e-4, atol=1e-5)


def test_exploration_follows_the_frame_count_and_published_settings(make_rig, live):
    def share_greedy(frames_total, **settings):
        rig = make_rig()
        rig.run_state.publish(frames_total=frames_total, settings=settings_from_flat(live.current.flat() | settings))
        rig.play_until_ended(18)
        explored = [race for race in rig.ended[6:] if race.facts.is_explo]
        return float(np.mean(np.concatenate([race.columns["action_was_greedy"] for race in explored])))

    assert share_greedy(0) < share_greedy(10_000_000) < 1
    assert share_greedy(0, epsilon_schedule=((0, 0.0),), epsilon_boltzmann_schedule=((0, 0.0),)) == 1


def test_new_weights_arrive_at_a_races_beginning_and_within_it(make_rig, live, layout):
    rig = make_rig(1)
    explorer = rig.explorer

    def network(seed):
        return IQN(live.current, race_spaces(live.current), SeedTree(seed)).make_network()

    def q_values(seed):
        actor = players_of(live.current, rig.run_state, SeedTree(1))[0].actor
        actor.network.load_state_dict(network(seed).state_dict())
        actor.weights_changed()
        return actor.act_batch(*seen).q_values

    rig.run_state.publish(weights={"exploration": network(2)})
    assert rig.collector.play_once()
    assert explorer.version == 2
    rig.run_state.publish(weights={"exploration": network(3)})
    for _ in range(PULL_EVERY_N_ACTIONS):
        assert rig.collector.play_once()
    assert explorer.version == 3
    assert [evaluator.version for evaluator in rig.evaluators.made] == [0], "it drove no race yet"
    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (3, 1, 15, 17), dtype=np.uint8)
    seen = frames, rng.standard_normal((3, layout.float_input_dim), dtype=np.float32)
    decided = explorer.actor.act_batch(*seen).q_values
    np.testing.assert_allclose(decided, q_values(3), rtol=1e-5, atol=1e-6)
    assert np.abs(decided - q_values(2)).max() > 1e-3


def test_an_evaluation_race_keeps_the_weights_that_were_the_newest_at_its_beginning(make_rig, live):
    edit(live, map_cycle=tuple(entry for entry in live.current.game.map_cycle if not entry.is_explo))
    rig = make_rig(2)
    builder = IQN(live.current, race_spaces(live.current), SeedTree(1))
    newest = builder.make_network()
    first_weights_of = {}  # by the race's number
    while len(rig.ended) < 6:
        for race in rig.collector._races.values():
            first_weights_of.setdefault(race.cycle_entry.position.number, copy.deepcopy(newest.state_dict()))
        newest.A_head[2].bias.data += torch.randn(newest.n_actions)
        rig.run_state.publish(weights={"evaluation": newest})
        assert rig.collector.play_once()
        rig.collector.begin_races()
    assert len(rig.evaluators.made) == 2
    for race in rig.ended:
        newest.load_state_dict(first_weights_of[race.facts.position.number])
        alone = builder.make_actor(newest, torch.device("cpu"), np.random.default_rng(1))
        decided = alone.act_batch(race.columns["frames"][:-1, np.newaxis, 0], race.columns["state_float"][:-1])
        np.testing.assert_allclose(race.columns["q_values"], decided.q_values, rtol=1e-4, atol=1e-4)


def test_a_game_that_lost_its_race_gets_the_next_one(make_rig):
    rig, n_lost = make_rig(2), 0
    recv = rig.games.recv

    def losing():
        nonlocal n_lost
        received = recv()
        if n_lost < 4 and received.ended:
            game, *_ = received.ended
            n_lost += 1
            others = {other: race for other, race in received.ended.items() if other != game}
            received = replace(received, ended=others, lost=(game,))
        return received

    rig.games.recv = losing
    rig.play_until_ended(6)
    numbers = [race.facts.position.number for race in rig.ended if race.facts.position is not None]
    assert n_lost == 4
    assert max(numbers) >= 4 + 5, "four of the cycle's races were not driven"


@pytest.mark.parametrize("has_room", [True, False])
def test_the_end_of_the_run_interrupts_races_and_the_wait_for_the_learner(make_rig, has_room):
    rig = make_rig(3)
    rig.sink.has_room = has_room
    rig.run_state.is_over = lambda: has_room and len(rig.batch_sizes) >= 5
    rig.collector.run()  # without room, waiting for it ends with the run
    assert rig.sink.races == []
    assert len(rig.batch_sizes) >= 5


def transitions_of(rig, live):
    """The transitions that are stored of a rig's races: (state, action and steps, next state, rewards)."""
    reward = RaceReward(live.current, race_spaces(live.current), SeedTree(1))
    settings = live.current.replay.model_copy(update={"memory_size_schedule": ((0, 5000),)})
    shape, generator = {"n_floats": len(rig.sink.races[0].columns["state_float"][0])}, torch.Generator()
    buffers = make_buffers(settings, **shape, image_size_px=(15, 17), device="cpu", generator=generator)
    for race in rig.sink.races:
        race.rewards, race.potentials = reward(race.rollout_results(), live.current, 0)
        fill_buffer_from_rollout_with_n_steps_rule(*buffers, race, live.current)
    experiences = [side[place] for side in buffers for place in range(len(side))]
    return Counter(
        (e.state_float.tobytes(), bytes([e.action, e.n_steps]), e.next_state_float.tobytes(), e.rewards.tobytes())
        for e in experiences
    )


def test_fragments_of_races_hold_the_same_as_whole_races(live, make_rig):
    whole = make_rig()
    whole.play_until_ended(12)
    edit(live, batch_mode="truncate_episodes", rollout_fragment_length=4)
    in_fragments = make_rig()
    in_fragments.play_until_ended(12)
    under_way = [race for race in in_fragments.sink.races if race.facts.is_under_way]
    assert len(under_way) > 18
    assert in_fragments.sink.races.index(under_way[0]) == 0
    new = [race.n_actions - race.facts.new.n_actions_before for race in under_way]
    assert set(new) == {4}
    for ours, theirs in zip(in_fragments.ended, whole.ended, strict=True):
        np.testing.assert_array_equal(ours.columns["state_float"], theirs.columns["state_float"])
    expected, stored = transitions_of(whole, live), transitions_of(in_fragments, live)
    assert expected.total() == sum(len(race.columns["actions"]) for race in whole.sink.races)
    assert expected <= stored, "of the races that go on there are fragments as well"
