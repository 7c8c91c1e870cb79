"""Demonstrations: inputs become the agent's actions, are driven, and are in the memory before learning starts."""

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.channels.run_state import SharedRunState
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.protocol.input_script import events_of_keys, parse_input_script, write_input_script
from trackmania_rl.protocol.messages import KeyState, key_states
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import DemonstrationEntry
from trackmania_rl.simulator.physics.scripted_driver import drive
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.training.collector import CollectorParts
from trackmania_rl.training.demonstrations import actions_of_inputs, drive_demonstrations, load_demonstrations

from .conftest import KeepingSink, edit, players_of

FORWARD, FORWARD_RIGHT = 0, 2


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory, repository_root):
    """The scripted driver's inputs on the valley, and their official time when the game plays them as a script."""
    track = load_track(repository_root / "maps" / "valley.toml")
    keys = [KeyState(left, right, up, down) for up, down, left, right in drive(track).keys.tolist()]
    file = tmp_path_factory.mktemp("inputs") / "scripted.inputs"
    file.write_text(write_input_script(events_of_keys(zip(itertools.count(0, 50), keys))))
    race = SimulatedRace(track)
    race.play_script(parse_input_script(file.read_text()))
    while not race.is_finished:
        race.advance(100)
    return file, race.checkpoint_times_ms[-1]


@pytest.fixture
def drive_files(live, repository_root):
    """`drive_files(file, ...)` drives demonstrations on the valley in games of this process; returns the races."""
    edit(live, memory_size_schedule=((0, 5000),))
    players = players_of(live.current, SharedRunState(live.current, {}), SeedTree(1))

    def drive_all(*files):
        run_state, sink = SharedRunState(live.current, {}), KeepingSink()
        run_state.publish(frames_total=1000)
        parts = CollectorParts(run_state, sink, *players)
        games = InProcessGames(5, live.current.game, live.current.observation, repository_root / "maps")
        drive_demonstrations(demonstrations_of(live, *files), games, parts)
        return sink.races

    return drive_all


def demonstrations_of(live, *files):
    entries = tuple(DemonstrationEntry(map_name="valley", inputs=str(file)) for file in files)
    return load_demonstrations(live.current.game.model_copy(update={"demonstrations": entries}), Path("/nowhere"))


@pytest.mark.parametrize("actions", ["keys", "analog"])
def test_a_demonstration_is_driven_to_the_same_time_and_in_the_memory_before_learning_starts(
    live, drive_files, make_run, demonstrated, tmp_path, caplog, actions
):
    file, finish_ms = demonstrated
    asleep = tmp_path / "asleep.inputs"
    asleep.write_text("0.00 press up\n0.40 rel up")
    if actions == "analog":
        live.current = live.current.model_copy(
            update={"game": live.current.game.model_copy(update={"actions": actions})}
        )
    with caplog.at_level(logging.INFO):
        race, slept = sorted(drive_files(file, asleep), key=lambda one: not one.facts.race_finished)
    assert race.facts.race_time_ms == finish_ms
    assert race.facts.is_demonstration
    assert f"scripted.inputs on valley: finished in {finish_ms / 1000:.2f} s" in caplog.text
    assert not slept.facts.race_finished
    assert "asleep.inputs on valley: cut off (no_progress) after" in caplog.text
    n_transitions = len(race.columns["actions"])
    if actions == "analog":
        assert race.columns["actions"].shape == (len(race.columns["input_w"]), 3)
        assert not race.columns["action_was_greedy"].any()
        return
    run = make_run()
    run.train_on([race])
    ring = run.buffer.ring
    assert len(run.buffer) + len(run.buffer_test) == n_transitions
    assert ring.columns.steps_to_finish[: len(ring)].tolist() == list(range(n_transitions, -1, -1))


def test_the_agents_own_actions_are_driven_exactly(live):
    game = live.current.game
    rng = np.random.default_rng(3)
    actions = rng.integers(0, len(game.inputs), 77)
    keys = [game.inputs[action] for action in actions]
    events = events_of_keys(zip(itertools.count(0, game.ms_per_action), key_states(keys)))
    # Left and right together are left, and no action holds both, so all others come back as they were.
    found, n_exact = actions_of_inputs(events, game)
    assert list(found) == actions[: len(found)].tolist()
    assert n_exact == len(found)


@pytest.mark.parametrize(
    ("script", "share_right"),
    [
        ("0.00 press up\n0.00 steer 26214\n5.00 steer 0", 0.4),
        (
            "0.00 press up\n" + "".join(f"{t / 100:.2f}-{t / 100 + 0.02:.2f} press right\n" for t in range(0, 500, 10)),
            0.2,
        ),
        ("0.00 press up\n0.02-2.52 press right\n5.00 press left", 0.5),
    ],
    ids=["half turned wheel", "taps", "between two decisions"],
)
def test_impossible_controls_are_reached_on_average(live, script, share_right):
    actions, n_exact = actions_of_inputs(parse_input_script(script), live.current.game)
    assert set(actions[:100]) <= {FORWARD, FORWARD_RIGHT}
    assert np.mean([action == FORWARD_RIGHT for action in actions[:100]]) == pytest.approx(share_right, abs=0.011)
    assert n_exact < len(actions)


def test_analog_actions_are_driven_exactly_and_keys_with_them(live):
    game = live.current.game.model_copy(update={"actions": "analog"})
    rng = np.random.default_rng(4)
    wheel = rng.integers(-65536, 65537, 60) / 65536
    actions = np.column_stack((wheel, rng.choice([-1, 1], (60, 2)))).astype(np.float32)
    events = actions_of_game(game).events(np.arange(0, 3000, 50), actions)
    found, n_exact = actions_of_inputs(events, game)
    np.testing.assert_array_equal(found, actions[: len(found)])
    assert n_exact == len(found)
    of_keys, n_exact = actions_of_inputs(parse_input_script("0.00 press up\n0.50 press left\n0.70 press down"), game)
    assert of_keys[[0, 10, 14]].tolist() == [[0, 1, -1], [-1, 1, -1], [-1, 1, 1]]
    assert n_exact == len(of_keys) == 15


def test_a_replay_becomes_actions(live, shared_data):
    [demonstration] = demonstrations_of(live, shared_data / "replays" / "B13-Obstacle_24.94_a.Replay.Gbx")
    assert 24_940 - 1_000 < len(demonstration.actions) * live.current.game.ms_per_action < 24_940 + 50
    assert 0.5 < demonstration.n_exact / len(demonstration.actions) < 1
