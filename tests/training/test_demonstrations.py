"""Learning from people: inputs become the agent's actions, are driven, and are in the memory before learning starts."""

import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.channels.protocols import WeightsKind
from trackmania_rl.errors import UserError
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.protocol.input_script import events_from_actions, parse_input_script, write_input_script
from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.race.actions import actions_of_game
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import DemonstrationEntry, SettingsError, load_settings
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.simulator.physics.scripted_driver import drive
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.training.collector import CollectorParts, WeightPuller
from trackmania_rl.training.demonstrations import actions_of_inputs, drive_demonstrations, load_demonstrations

from .conftest import KeepingSink, MakeRun

FORWARD, FORWARD_RIGHT = 0, 2


@pytest.fixture
def inputs_file(tmp_path: Path, repository_root: Path) -> Path:
    """The scripted driver's race on the valley."""
    report = drive(load_track(repository_root / "maps" / "valley.toml"))
    keys = [KeyState(left, right, up, down) for up, down, left, right in report.keys.tolist()]
    file = tmp_path / "scripted.inputs"
    file.write_text(write_input_script(events_from_actions(keys, 50)))
    return file


@pytest.fixture
def finish_ms(inputs_file: Path, repository_root: Path) -> int:
    """The official time of that race, played as a script in the game."""
    race = SimulatedRace(load_track(repository_root / "maps" / "valley.toml"))
    race.play_script(parse_input_script(inputs_file.read_text()))
    while not race.is_finished:
        race.advance(100)
    return race.checkpoint_times_ms[-1]


@pytest.fixture
def parts(live: LiveSettings, layout: ObservationLayout) -> CollectorParts:
    """What surrounds a collector of a run with a small memory."""
    current = live.current
    live.current = current.model_copy(
        update={
            "replay": current.replay.model_copy(update={"memory_size_schedule": ((0, 5000),)}),
        }
    )

    def puller(name: str, kind: WeightsKind) -> WeightPuller:
        network = make_network(live.current, race_spaces(live.current), SeedTree(1))
        inferer = Inferer(
            network,
            n_quantiles=live.current.agent.iqn_k,
            throttle_actions=race_spaces(live.current).throttle_actions,
            exploration_settings=live.current.exploration,
            rng=SeedTree(1).rng(name),
        )
        return WeightPuller(inferer, run_state, kind)

    run_state = LocalRunState(live.current)
    run_state.publish(frames_total=1000)
    return CollectorParts(
        run_state,
        KeepingSink(),
        puller("explorer", "exploration"),
        puller("evaluator", "evaluation"),
    )


def demonstrations_of(live: LiveSettings, *files: Path) -> Any:
    entries = tuple(DemonstrationEntry(map_name="valley", inputs=str(file)) for file in files)
    return load_demonstrations(live.current.game.model_copy(update={"demonstrations": entries}), Path("/nowhere"))


def test_a_demonstration_is_in_the_memory_before_learning_starts(
    live: LiveSettings,
    parts: CollectorParts,
    make_run: MakeRun,
    inputs_file: Path,
    finish_ms: int,
    repository_root: Path,
    caplog: Any,
) -> None:
    assert isinstance(parts.rollouts, KeepingSink)
    games = InProcessGames(5, live.current.game, live.current.observation, repository_root / "maps")
    with caplog.at_level(logging.INFO):
        drive_demonstrations(demonstrations_of(live, inputs_file), games, parts)
    [race] = parts.rollouts.races
    assert race.end_race_stats["race_finished"]
    assert race.rollout_results["race_time"] == finish_ms
    assert race.end_race_stats["is_demonstration"]
    assert f"scripted.inputs on valley: finished in {finish_ms / 1000:.2f} s" in caplog.text
    run = make_run()
    run.train_on([race])
    n_transitions = len(race.rollout_results["actions"])
    assert len(run.buffer) + len(run.buffer_test) == n_transitions
    ring = run.buffer.ring
    assert ring.columns.steps_to_finish[: len(ring)].tolist() == list(range(n_transitions, -1, -1))


def test_the_agents_own_actions_are_driven_exactly(live: LiveSettings) -> None:
    game = live.current.game
    rng = np.random.default_rng(3)
    actions = rng.integers(0, len(game.inputs), 77)
    keys = [game.inputs[action] for action in actions]
    events = events_from_actions([KeyState(k.left, k.right, k.accelerate, k.brake) for k in keys], game.ms_per_action)
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
def test_what_no_action_can_do_is_done_on_average(live: LiveSettings, script: str, share_right: float) -> None:
    actions, n_exact = actions_of_inputs(parse_input_script(script), live.current.game)
    assert set(actions[:100]) <= {FORWARD, FORWARD_RIGHT}
    assert np.mean([action == FORWARD_RIGHT for action in actions[:100]]) == pytest.approx(share_right, abs=0.011)
    assert n_exact < len(actions)


def test_analog_actions_are_driven_exactly_and_keys_with_them(live: LiveSettings) -> None:
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


def test_a_wheel_that_turns_within_an_action_is_taken_at_its_mean(live: LiveSettings) -> None:
    game = live.current.game.model_copy(update={"actions": "analog"})
    script = "".join(f"{tick / 100:.2f} steer {tick * 600}\n" for tick in range(100)) + "0.00 gas 40000\n"
    actions, _ = actions_of_inputs(parse_input_script(script), game)
    means = (np.arange(100) * 600 / 65536).reshape(20, 5).mean(axis=1)
    np.testing.assert_allclose(actions[:, 0], means, atol=1e-5)
    assert (actions[:, 1] == 1).all()
    assert (actions[:, 2] == -1).all()


def test_an_analog_demonstration_is_driven_to_the_same_time(
    live: LiveSettings, parts: CollectorParts, inputs_file: Path, finish_ms: int, repository_root: Path
) -> None:
    assert isinstance(parts.rollouts, KeepingSink)
    live.current = live.current.model_copy(update={"game": live.current.game.model_copy(update={"actions": "analog"})})
    run_state = LocalRunState(live.current)
    run_state.publish(frames_total=1000)
    games = InProcessGames(1, live.current.game, live.current.observation, repository_root / "maps")
    drive_demonstrations(demonstrations_of(live, inputs_file), games, replace(parts, run_state=run_state))
    [race] = parts.rollouts.races
    assert race.rollout_results["race_time"] == finish_ms
    assert race.rollout_results["actions"].shape == (len(race.rollout_results["input_w"]), 3)
    assert not race.rollout_results["action_was_greedy"].any()


def test_inputs_long_after_the_longest_race_cost_nothing(live: LiveSettings) -> None:
    actions, _ = actions_of_inputs(parse_input_script("0.00 press up\n500:00:00.00 rel up"), live.current.game)
    assert len(actions) == live.current.game.cutoff_race_longer_than_ms // live.current.game.ms_per_action + 1


def test_a_race_that_departs_from_its_model_says_how_far_it_came(
    live: LiveSettings, parts: CollectorParts, tmp_path: Path, repository_root: Path, caplog: Any
) -> None:
    file = tmp_path / "asleep.inputs"
    file.write_text("0.00 press up\n0.40 rel up")
    games = InProcessGames(1, live.current.game, live.current.observation, repository_root / "maps")
    with caplog.at_level(logging.WARNING):
        drive_demonstrations(demonstrations_of(live, file), games, parts)
    assert "asleep.inputs on valley: cut off (no_progress) after" in caplog.text


def test_a_demonstration_lost_with_its_game_begins_again_with_its_first_action(
    live: LiveSettings, parts: CollectorParts, tmp_path: Path, repository_root: Path
) -> None:
    file = tmp_path / "right.inputs"
    file.write_text("0.00 press up\n0.20 press right\n0.60 rel right\n0.90 rel up")
    [demonstration] = demonstrations_of(live, file)
    assert demonstration.actions[:12].tolist() == [FORWARD] * 4 + [FORWARD_RIGHT] * 8
    current = live.current
    launcher = SimulatedGameLauncher(find_free_port(), repository_root / "maps")
    manager = GameInstanceManager(current.game, current.observation, launcher)
    play = manager.play

    def losing_a_game(map_entry: Any, decide: Any, frames: Any) -> Any:
        decisions = iter(range(10_000))

        def act(image: Any, seen: Any) -> PolicyDecision:
            if next(decisions) == 7:
                launcher.kill()
            return decide(image, seen)

        return play(map_entry, act, frames)

    manager.play = losing_a_game  # type: ignore[method-assign]
    with contextlib.closing(SocketGames([manager])) as games:
        drive_demonstrations([demonstration], games, parts)
    assert manager.game_starts == 2
    assert isinstance(parts.rollouts, KeepingSink)
    [race] = parts.rollouts.races
    driven = race.rollout_results["actions"].tolist()
    assert driven[: len(demonstration.actions)] == list(demonstration.actions)


def test_mistakes_are_told_before_the_run(live: LiveSettings, tmp_path: Path, repository_root: Path) -> None:
    with pytest.raises(UserError, match=r"demonstrations: .*absent\.inputs.*cannot be read"):
        demonstrations_of(live, tmp_path / "absent.inputs")
    with pytest.raises(UserError, match=r"demonstrations: .*absent\.Replay\.Gbx"):
        demonstrations_of(live, tmp_path / "absent.Replay.Gbx")
    (tmp_path / "empty.inputs").write_text("# nothing\n")
    with pytest.raises(UserError, match="holds no inputs"):
        demonstrations_of(live, tmp_path / "empty.inputs")
    config = repository_root / "config_files" / "config.py"
    with pytest.raises(SettingsError, match=r"'atlantis', which is not in map_cycle; possible are valley"):
        load_settings(config, ["demonstrations=({'map_name': 'atlantis', 'inputs': 'a.inputs'},)"])


def test_a_replay_becomes_actions(live: LiveSettings, shared_data: Path) -> None:
    [demonstration] = demonstrations_of(live, shared_data / "replays" / "B13-Obstacle_24.94_a.Replay.Gbx")
    assert 24_940 - 1_000 < len(demonstration.actions) * live.current.game.ms_per_action < 24_940 + 50
    assert 0.5 < demonstration.n_exact / len(demonstration.actions) < 1
