"""Promises of both channels."""

import threading
import time

import numpy as np
import pytest
from torch.nn.utils import parameters_to_vector

from trackmania_rl.channels.run_state import NO_WEIGHTS, WEIGHTS_KINDS
from trackmania_rl.settings import settings_from_flat

from ..keep_games_command import wait_until
from .conftest import MAX_ACTIONS, acquired, assert_is_race, got, network_of, view_of


def test_races_arrive_whole_in_order_and_every_collector_has_its_turn(open_channels, children):
    source = open_channels(slots_per_collector=3).rollouts
    seeds = {0: [1, 2, 3], 1: [11, 12]}
    for collector, sink in {collector: source.open_collector(collector) for collector in seeds}.items():
        for seed in seeds[collector]:
            frames = acquired(sink)
            assert frames.shape == (MAX_ACTIONS, 1, 6, 8)
            sink.put(0, children.make_race(seed, 7 + collector, frames if seed % 2 else None))
    order = []
    for _ in range(5):
        with got(source) as rollout:
            order.append(rollout.facts.collector)
            assert_is_race(
                rollout, children.make_race(seeds[rollout.facts.collector].pop(0), 7 + rollout.facts.collector)
            )
    assert order == [0, 1, 0, 1, 0]
    assert source.get(timeout_s=0) is None


def test_the_collector_waits_without_room_and_both_waits_are_measured(open_channels, children):
    source = open_channels().rollouts
    sink = source.open_collector(0)
    for seed in (0, 1):
        acquired(sink)
        sink.put(0, children.make_race(seed, 4))
    assert sink.acquire_frames(0, timeout_s=0.05) is None
    assert sink.waited_s >= 0.05
    first, kept_while_overwriting = got(source), got(source)
    assert source.get(timeout_s=0.05) is None
    assert source.waited_s >= 0.05
    first.release()
    acquired(sink)
    sink.put(0, children.make_race(2, 4))
    assert_is_race(kept_while_overwriting, children.make_race(1, 4))
    third = got(source)
    assert_is_race(third, children.make_race(2, 4))
    assert 0.05 <= third.facts.waited_s <= third.facts.elapsed_s
    for rollout in (kept_while_overwriting, third):
        rollout.release()
        rollout.release()  # a second release must not free room twice
    for game in range(2):
        acquired(sink, game)
    assert sink.acquire_frames(2, timeout_s=0.3) is None


def test_frames_written_during_the_race_are_not_copied(open_channels, children):
    source = open_channels().rollouts
    sink = source.open_collector(0)
    race = children.make_race(5, 6, acquired(sink))
    sink.put(0, race)
    race.columns["frames"][3, 0, 2, 1] ^= 255  # still the memory that the learner reads
    with got(source) as rollout:
        np.testing.assert_array_equal(rollout.columns["frames"], race.columns["frames"])
        for array in (rollout.columns["frames"], rollout.columns["actions"]):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_each_game_of_a_collector_has_room_of_its_own(open_channels, children):
    source = open_channels(slots_per_collector=1, games_per_collector=3).rollouts
    sink = source.open_collector(0)
    rooms = [acquired(sink, game) for game in range(3)]
    assert not any(np.shares_memory(rooms[game], rooms[(game + 1) % 3]) for game in range(3))
    assert np.shares_memory(acquired(sink, 2), rooms[2]), "a lost race leaves its room to the game"
    sink.put(2, children.make_race(7, 4, rooms[2]))
    with pytest.raises(ValueError, match="game 2 holds no slot"):
        sink.put(2, children.make_race(7, 4))
    waited_before_s, began_s = sink.waited_s, time.monotonic()
    assert sink.acquire_frames(2, timeout_s=0.3) is None, "the learner has it"
    assert 0.3 <= 3 * (sink.waited_s - waited_before_s) <= time.monotonic() - began_s, "one game of three waited"
    with got(source) as rollout:
        assert_is_race(rollout, children.make_race(7, 4))
    assert np.shares_memory(acquired(sink, 2), rooms[2])


def test_games_put_from_threads_of_their_own(open_channels, children):
    source = open_channels(slots_per_collector=1, games_per_collector=5).rollouts
    sink = source.open_collector(0)

    def play(game):
        for race in range(8):
            frames = acquired(sink, game)
            sink.put(game, children.make_race(100 * game + race, 4, frames))

    threads = [threading.Thread(target=play, args=(game,)) for game in range(5)]
    for thread in threads:
        thread.start()
    seeds = [100 * game + race for game in range(5) for race in range(8)]
    expected = {seed: children.make_race(seed, 4) for seed in seeds}
    by_floats = {race.columns["state_float"].tobytes(): seed for seed, race in expected.items()}
    while expected:
        with got(source) as rollout:
            seed = by_floats[rollout.columns["state_float"].tobytes()]
            assert_is_race(rollout, expected.pop(seed))
    for thread in threads:
        thread.join()


def test_a_collector_that_is_opened_again_begins_with_all_its_room(open_channels, children):
    source = open_channels().rollouts
    for _ in range(3):
        sink = source.open_collector(0)
        acquired(sink)
        sink.put(0, children.make_race(1, 4))
        acquired(sink)
    source.close_collector(0)
    source.close_collector(0)
    assert source.get(timeout_s=0) is None, "what was not received is dropped"


def test_the_end_of_the_run_ends_the_waits_for_room_and_for_a_turn(open_channels):
    channels = open_channels(slots_per_collector=1)
    sink, view = channels.rollouts.open_collector(0), view_of(channels)
    acquired(sink)
    answers = []
    waits = (lambda: sink.acquire_frames(game=1), sink.await_turn)
    waiting = [threading.Thread(target=lambda wait=wait: answers.append(wait())) for wait in waits]
    for thread in waiting:
        thread.start()
    wait_until(lambda: sink.heartbeat.n_waiting)
    channels.run_state.publish(stop=True)
    for thread in waiting:
        thread.join()
    assert answers == [None] * len(waiting)
    assert view.stop_requested
    assert sink.acquire_frames(game=2) is None


def test_collectors_play_when_they_are_given_a_turn(open_channels, children):
    source = open_channels(slots_per_collector=2).rollouts
    sinks = {collector: source.open_collector(collector) for collector in (0, 1)}
    played = []

    def play(collector):
        while (number := sinks[collector].await_turn()) is not None and number < 2:
            acquired(sinks[collector])
            sinks[collector].put(0, children.make_race(number, 4))
            played.append((number, collector))
            sinks[collector].end_turn()

    threads = [threading.Thread(target=play, args=(collector,)) for collector in sinks]
    for thread in threads:
        thread.start()
    assert not source.is_at_turn(0)
    assert source.get(timeout_s=0.1) is None
    for number in range(3):
        for collector in sinks:
            source.give_turn(collector, number)
        if number == 2:
            break
        received = []
        while len(received) < len(sinks):
            with got(source) as rollout:
                received.append(rollout.facts.collector)
        wait_until(lambda: not any(map(source.is_at_turn, sinks)))
        assert sorted(received) == [0, 1]
        assert source.get(timeout_s=0) is None
    for thread in threads:
        thread.join()
    assert sorted(played) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_turn_is_lost_with_its_collector(open_channels):
    source = open_channels().rollouts
    source.give_turn(0, 7)
    assert not source.is_at_turn(0), "it is not open"
    source.open_collector(0)
    source.give_turn(0, 8)
    assert source.is_at_turn(0)
    sink = source.open_collector(0)
    assert not source.is_at_turn(0)
    source.give_turn(0, 9)
    assert sink.await_turn() == 9
    assert source.is_at_turn(0)
    source.close_collector(0)
    assert not source.is_at_turn(0)


def test_settings_arrive_at_the_next_pull_exactly_as_they_are(open_channels, settings):
    channels = open_channels()
    run_state, view = channels.run_state, view_of(channels)
    view.pull()
    assert view.settings == settings
    assert not view.pull()
    for epsilon in (0.1 + 0.2, 1e-300, 1 / 3):
        edited = settings_from_flat(settings.flat() | {"epsilon_schedule": ((0, epsilon), (10**15, 0.0))})
        before = view.settings
        run_state.publish(settings=edited)
        assert view.settings is before, "a race is played by the settings at its beginning"
        assert view.pull()
        assert repr(view.settings) == repr(edited)
        run_state.publish(settings=edited)
        assert not view.pull()
    assert repr(view_of(channels).settings) == repr(edited), "of a collector that is started later"


def test_weights_frame_count_and_the_end_are_seen_as_they_are_published(open_channels):
    def values(network):
        return set(parameters_to_vector(network.parameters()).tolist())

    channels = open_channels()
    run_state = channels.run_state
    weights = {"exploration": network_of(1.0), "evaluation": network_of(2.0)}
    run_state.publish(weights=weights)
    view = view_of(channels)
    for kind, value in zip(WEIGHTS_KINDS, (1.0, 2.0), strict=True):
        network = network_of(0.0)
        version = view.pull_weights(kind, network, NO_WEIGHTS)
        assert version > NO_WEIGHTS
        assert values(network) == {value}
        network = network_of(-1.0)
        assert view.pull_weights(kind, network, version) == version
        assert values(network) == {-1.0}
        run_state.publish(weights={kind: network_of(value + 5)})
        assert view.pull_weights(kind, network, version) > version
        assert values(network) == {value + 5}
    assert (view.frames_total, view.stop_requested) == (0, False)
    run_state.publish(frames_total=7_000_000_000)
    run_state.publish(frames_total=8_000_000_000, stop=True)
    run_state.publish()
    view.pull()
    assert view.stop_requested
    assert view.frames_total == 8_000_000_000


def test_a_collector_beats_while_it_waits_for_room_or_for_its_turn_and_says_so(open_channels, children):
    source = open_channels(slots_per_collector=1).rollouts
    sink = source.open_collector(0)
    other = source.open_collector(1)
    assert (sink.heartbeat.at_s, sink.heartbeat.n_waiting) == (0, 0)
    acquired(sink)
    assert sink.heartbeat.progress_at_s == 0
    sink.put(0, children.make_race(1, 4))
    assert sink.heartbeat.progress_at_s > 0
    sink.beat()
    assert sink.heartbeat.at_s > 0
    assert sink.heartbeat.n_waiting == 0
    assert other.heartbeat.at_s == 0
    waits = [
        (lambda: sink.acquire_frames(0), lambda: got(source).release()),
        (sink.await_turn, lambda: source.give_turn(0, 5)),
    ]
    for wait, end in waits:
        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: sink.heartbeat.n_waiting > 0)
        for _ in range(2):
            before_s = sink.heartbeat.at_s
            wait_until(lambda: sink.heartbeat.at_s > before_s)  # noqa: B023
        end()
        waiting.join()
        wait_until(lambda: sink.heartbeat.n_waiting == 0)
    assert source.open_collector(0).heartbeat.at_s == 0, "of its new process"
