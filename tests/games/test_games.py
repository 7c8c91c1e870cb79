"""Games in this process against the same games through a socket: the same actions give the same bytes."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackmania_rl.games.checked import CHECK_SUMS, CheckedGames, sums_of_actions, sums_of_states
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import rollout
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import BatchDecision, PolicyDecision
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.simulator.physics.scripted_driver import drive
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port

FORWARD, COAST = 0, 3
N_ACTIONS = 12

Rollout = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class PlannedRace:
    """A race whose every decision is known beforehand: these actions, then forward."""

    map_name: str
    actions: Sequence[int]
    seed: int = 0

    def decision(self, index: int) -> PolicyDecision:
        action = self.actions[index] if index < len(self.actions) else FORWARD
        q_values = np.random.default_rng((self.seed, index)).standard_normal(N_ACTIONS, dtype=np.float32)
        return PolicyDecision(action, index % 3 == 0, q_values)


def wandering(seed: int, n_actions: int = 200) -> PlannedRace:
    """Mostly forward, so that the car arrives, with some of everything."""
    return PlannedRace("straight", np.random.default_rng(seed).choice([0, 0, 0, 0, 1, 2, 3, 4, 5], n_actions), seed)


@pytest.fixture(scope="module")
def three_laps(maps_folder: Path, make_settings: Callable[..., Settings]) -> PlannedRace:
    """The scripted driver's race on the ring."""
    action_of_keys = {
        (keys.accelerate, keys.brake, keys.left, keys.right): action
        for action, keys in enumerate(make_settings(False).game.inputs)
    }
    report = drive(load_track(maps_folder / "ring.toml"))
    return PlannedRace("ring", [action_of_keys[tuple(keys)] for keys in report.keys.tolist()])


def play_in_process(games: InProcessGames, entry_of: Callable[[str], MapEntry], plans: Sequence[PlannedRace]):
    """Play all races at the same time, one in each game."""
    for game, plan in enumerate(plans):
        games.begin(game, entry_of(plan.map_name))
    rollouts: dict[int, Rollout] = {}
    index = 0
    while len(rollouts) < len(plans):
        received = games.recv()
        rollouts |= {game: (race.rollout_results, race.end_race_stats) for game, race in received.ended.items()}
        going_on = received.ids
        assert going_on.tolist() == [game for game in range(len(plans)) if game not in rollouts]
        if len(going_on) == 0:
            break
        assert (received.is_first == (index == 0)).all()
        decisions = [plans[game].decision(index) for game in going_on.tolist()]
        batch = BatchDecision(
            np.array([d.action for d in decisions]),
            np.array([d.is_greedy for d in decisions]),
            np.stack([d.q_values for d in decisions]),
        )
        assert received.images.shape[:2] == (len(going_on), 1)
        assert len(received.floats) == len(going_on)
        games.send(going_on, batch)
        index += 1
    return [rollouts[game] for game in range(len(plans))]


def play_through_socket(manager, entry_of: Callable[[str], MapEntry], plans: Sequence[PlannedRace]):
    """Play the races one after the other."""
    rollouts = []
    for plan in plans:
        decisions = map(plan.decision, range(100_000))
        rollouts.append(manager.rollout(entry_of(plan.map_name), lambda frame, floats, d=decisions: next(d)))
    return rollouts


def assert_same(ours: Rollout, theirs: Rollout) -> None:
    results, expected = ours[0], theirs[0]
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert results[name].dtype == value.dtype, name
            assert results[name].shape == value.shape, name
            np.testing.assert_array_equal(results[name], value, err_msg=name)
        else:
            assert results[name] == value, name
    assert ours[1].keys() == theirs[1].keys()
    for name in ours[1].keys() - {"timings_ms", "mean_speed_m_s"}:
        assert ours[1][name] == theirs[1][name], name
    assert ours[1]["mean_speed_m_s"] == pytest.approx(theirs[1]["mean_speed_m_s"], rel=1e-12)


@pytest.fixture
def play_both_ways(maps_folder: Path, entry_of: Callable[[str], MapEntry], open_socket_game: Any):
    """`play_both_ways(settings, plans)`: the races through the socket, after the same ones in this process."""

    def play(settings: Settings, plans: Sequence[Any], n_times: int = 1) -> list[Rollout]:
        with open_socket_game(settings) as manager:
            expected = play_through_socket(manager, entry_of, plans)
        games = InProcessGames(len(plans), settings.game, settings.observation, maps_folder)
        for _ in range(n_times):  # the second time in games that have had a race before
            for ours, theirs in zip(play_in_process(games, entry_of, plans), expected, strict=True):
                assert_same(ours, theirs)
        return expected

    return play


@pytest.mark.parametrize("has_image", [False, True], ids=["floats", "image"])
def test_the_same_bytes_as_through_the_socket(
    has_image: bool, make_settings, play_both_ways, three_laps: PlannedRace
) -> None:
    standing = PlannedRace("straight", [COAST] * 1000)
    turning_back = PlannedRace("ring", [*three_laps.actions[:150], *[6] * 1000], seed=5)
    many_gates = PlannedRace("gates", [])
    plans = [wandering(1), three_laps, standing, wandering(2), turning_back, many_gates, *map(wandering, range(3, 9))]
    expected = play_both_ways(make_settings(has_image), plans, n_times=2)
    reasons = {stats["cutoff_reason"] for _, stats in expected}
    assert reasons == {None, "no_progress"}
    assert [len(expected[index][1]["checkpoint_times_ms"]) for index in (1, 5)] == [9, 21]
    finishes_ms = {results["race_time"] % 50 for results, _ in expected if "race_time" in results}
    assert len(finishes_ms) >= 3, "finishes at several places between two decisions"
    assert 0 in finishes_ms, "one with a decision at the very finish"


RANGES = "('mini_race_time_actions', 'speed_m_s', 'range_finder_m')"
ROAD = "('mini_race_time_actions', 'speed_m_s', 'road_ahead')"


@pytest.mark.parametrize(
    ("has_image", "blocks", "source", "n_floats"),
    [(False, RANGES, "track", 19), (True, RANGES, "picture", 19), (False, ROAD, "track", 20 * 7)],
)
def test_ranges_and_the_road_ahead_are_the_same_through_the_socket(
    has_image: bool, blocks: str, source: str, n_floats: int, make_settings, play_both_ways, three_laps: PlannedRace
) -> None:
    options = (f"observation_blocks={blocks}", f"range_finder_source={source}", "fourier_wavelengths={}")
    settings = make_settings(has_image, *options, "cutoff_race_longer_than_ms=5000")
    expected = play_both_ways(settings, [wandering(1), three_laps, wandering(2)])
    seen = expected[1][0]["state_float"][:, 2:]
    assert seen.shape[1] == n_floats
    assert seen.std(axis=0).any(), "it changes along the way"


@dataclass(frozen=True)
class AnalogRace:
    """The same with a wheel that wanders, full gas now and then, and seldom the brake."""

    map_name: str
    seed: int

    def decision(self, index: int) -> PolicyDecision:
        rng = np.random.default_rng((self.seed, index))
        steer = 0.3 * np.sin(0.2 * index + self.seed) + rng.normal(0, 0.1)
        action = np.array([steer, rng.random() - 0.1, rng.random() - 0.9], dtype=np.float32)
        return PolicyDecision(action, index % 3 == 0, rng.standard_normal(1, dtype=np.float32))


@pytest.mark.parametrize("has_image", [False, True], ids=["floats", "image"])
def test_analog_races_are_the_same_bytes_as_through_the_socket(has_image: bool, make_settings, play_both_ways) -> None:
    settings = make_settings(has_image, "actions=analog", "cutoff_race_longer_than_ms=9000")
    plans = [AnalogRace("straight", 0), AnalogRace("straight", 1), AnalogRace("ring", 5)]
    results, stats = play_both_ways(settings, plans)[0]
    assert stats["race_finished"]
    actions = results["actions"]
    assert (actions.dtype, actions.shape) == (np.float32, (len(results["input_w"]), 3))
    np.testing.assert_array_equal(results["input_w"], actions[:, 1] > 0)
    places = ObservationLayout.from_settings(settings.observation, "analog")["previous_actions"]
    np.testing.assert_array_equal(results["state_float"][1:, places][:, -3:], actions)
    assert results["q_values"].shape == (len(actions), 1)
    assert " steer " in stats["inputs"]


def test_races_are_cut_off_alike(make_settings, play_both_ways) -> None:
    settings = make_settings(False, "cutoff_race_longer_than_ms=2600")
    expected = play_both_ways(settings, [wandering(1), PlannedRace("straight", []), PlannedRace("ring", [])])
    assert expected[2][1]["cutoff_reason"] == "too_long"
    for results, stats in play_both_ways(make_settings(False, "horizon=17"), [wandering(1), wandering(2)]):
        assert (len(results["actions"]), stats["cutoff_reason"]) == (17, "horizon")


@pytest.mark.parametrize("longest_ms", range(3_000, 6_000, 450))
def test_a_finish_and_a_cut_off_at_the_same_decision(
    longest_ms: int, maps_folder: Path, make_settings, entry_of
) -> None:
    """Whatever the limit is, a race ends once: finished before it, or cut off at the first decision beyond it."""
    settings = make_settings(False, f"cutoff_race_longer_than_ms={longest_ms}")
    games = InProcessGames(1, settings.game, settings.observation, maps_folder)
    [(results, stats)] = play_in_process(games, entry_of, [PlannedRace("straight", [])])
    if stats["race_finished"]:
        assert results["race_time"] <= longest_ms + settings.game.ms_per_action
    else:
        assert stats["race_time_ms"] == longest_ms + settings.game.ms_per_action
    assert len(results["actions"]) * settings.game.ms_per_action >= stats["race_time_ms"] // 50 * 50


def test_edited_settings_hold_from_the_next_race_on(maps_folder: Path, make_settings, entry_of) -> None:
    patient = make_settings(False)
    games = InProcessGames(2, patient.game, patient.observation, maps_folder)
    games.begin(0, entry_of("straight"))
    games.game = patient.game.model_copy(update={"cutoff_no_progress_within_ms": 500})
    games.begin(1, entry_of("straight"))
    ended = {}
    for _ in range(12):
        received = games.recv()
        ended |= received.ended
        n = len(received.ids)
        games.send(received.ids, BatchDecision(np.full(n, COAST), np.ones(n, bool), np.zeros((n, N_ACTIONS))))
    assert list(ended) == [1]
    assert ended[1].end.race_time_ms == 500


def test_each_game_shows_the_last_frames_of_its_own_race(maps_folder, make_settings, entry_of):
    settings = make_settings(True, "frames_per_state=3")
    games = InProcessGames(3, settings.game, settings.observation, maps_folder)
    for game in range(3):
        games.begin(game, entry_of("straight"))
    everyone, forward = np.arange(3), BatchDecision(np.zeros(3, int), np.ones(3, bool), np.zeros((3, N_ACTIONS)))
    seen = []
    for step in range(7):
        if step == 4:
            games.begin(1, entry_of("straight"))
        images = games.recv().images
        assert images.shape == (3, 3, 30, 40)
        seen.append(images[:, -1])
        for game in range(3):
            start = 4 if game == 1 and step >= 4 else 0
            expected = [seen[max(step - back, start)][game] for back in (2, 1, 0)]
            np.testing.assert_array_equal(images[game], np.stack(expected))
        games.send(everyone, forward)
    assert not np.array_equal(seen[0], seen[3])


@pytest.mark.parametrize("transport", ["in_process", "socket"])
def test_check_sums_are_those_of_the_columns(transport: str, maps_folder: Path, make_settings, entry_of) -> None:
    settings = make_settings(True, f"game_transport={transport}", f"maps_folder={maps_folder}")
    games: Any
    if transport == "in_process":
        games = InProcessGames(1, settings.game, settings.observation, maps_folder)
    else:
        launcher = SimulatedGameLauncher(find_free_port(), maps_folder)
        games = SocketGames([GameInstanceManager(settings.game, settings.observation, launcher)])
    decision = PolicyDecision(FORWARD, True, np.zeros(N_ACTIONS, dtype=np.float32))
    with contextlib.closing(CheckedGames(games)) as checked:
        columns = rollout(checked, entry_of("straight"), lambda: lambda *_: decision).rollout_results
    n = len(columns["actions"])
    assert len(columns[CHECK_SUMS]) in (n, n + 1)
    states = sums_of_states(columns["frames"][:n], columns["state_float"][:n])
    assert columns[CHECK_SUMS][:n].tolist() == np.array([states, sums_of_actions(columns["actions"])]).T.tolist()
