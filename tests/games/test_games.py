"""Games in this process against the same games through a socket: the same actions give the same bytes."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackmania_rl.games import in_process
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.race_games import RaceGames, games_for
from trackmania_rl.race.actions import BatchDecision, PolicyDecision
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.settings import MapEntry, SettingsError
from trackmania_rl.simulator.physics.scripted_driver import drive
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.track.map_sources import GeneratedMaps

FORWARD, COAST = 0, 3
N_ACTIONS = 12


@dataclass(frozen=True)
class PlannedRace:
    """A race whose every decision is known beforehand: these actions, then forward."""

    map_name: str
    actions: Sequence[int]
    seed: int = 0

    def decision(self, index):
        action = self.actions[index] if index < len(self.actions) else FORWARD
        q_values = np.random.default_rng((self.seed, index)).standard_normal(N_ACTIONS, dtype=np.float32)
        return PolicyDecision(action, index % 3 == 0, q_values)


def wandering(seed, n_actions=200):
    """Mostly forward, so that the car arrives, with some of everything."""
    return PlannedRace("straight", np.random.default_rng(seed).choice([0, 0, 0, 0, 1, 2, 3, 4, 5], n_actions), seed)


@pytest.fixture(scope="module")
def scripted(maps_folder, make_settings):
    """`scripted(name)`: the scripted driver's race on a track, to its finish."""
    action_of_keys = {
        (keys.accelerate, keys.brake, keys.left, keys.right): action
        for action, keys in enumerate(make_settings(False).game.inputs)
    }

    @functools.cache
    def race(name):
        report = drive(load_track(maps_folder / f"{name}.toml"))
        return PlannedRace(name, [action_of_keys[tuple(keys)] for keys in report.keys.tolist()])

    return race


def play_in_process(games, entry_of, plans):
    """Play all races at the same time, one in each game; return them and everything received until they ended."""
    for game, plan in enumerate(plans):
        games.begin(game, entry_of(plan.map_name))
    rollouts = {}
    n_decided, all_received = [0] * len(plans), []
    while len(rollouts) < len(plans):
        received = games.recv()
        for game, race in received.ended.items():
            kept = race.copy()
            rollouts[game] = kept.rollout_results(), kept.end_race_stats()
        ids = received.ids.tolist()
        if not ids:
            continue
        all_received.append(received)
        assert received.is_first.tolist() == [n_decided[game] == 0 for game in ids]
        assert games.motion(received.ids).race_time_ms.tolist() == [50 * n_decided[game] for game in ids]
        assert received.images.shape[:2] == (len(ids), 1)
        assert len(received.floats) == len(ids)
        decisions = [plans[game].decision(n_decided[game]) for game in ids]
        is_odd = received.ids % 2 == 1  # as where one network explores and another evaluates
        for some in (is_odd, ~is_odd):
            of_some = [decisions[row] for row in np.flatnonzero(some)]
            if of_some:
                batch = BatchDecision(
                    np.array([d.action for d in of_some]),
                    np.array([d.is_greedy for d in of_some]),
                    np.stack([d.q_values for d in of_some]),
                )
                games.send(received.ids[some], batch)
        for game in ids:
            n_decided[game] += 1
    return [rollouts[game] for game in range(len(plans))], all_received


def play_through_socket(manager, entry_of, plans):
    """Play the races one after the other."""
    rollouts = []
    for plan in plans:
        decisions = map(plan.decision, range(100_000))
        rollouts.append(manager.rollout(entry_of(plan.map_name), lambda frame, floats, d=decisions: next(d)))
    return rollouts


def assert_same(ours, theirs):
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
def play_both_ways(maps_folder, entry_of, open_socket_game):
    """`play_both_ways(settings, plans)`: the races through the socket, after the same ones in this process."""

    def play(settings, plans, n_times=1):
        with open_socket_game(settings) as manager:
            expected = play_through_socket(manager, entry_of, plans)
        games = InProcessGames(len(plans), settings.game, settings.observation, maps_folder)
        for _ in range(n_times):  # the second time in games that have had a race before
            for ours, theirs in zip(play_in_process(games, entry_of, plans)[0], expected, strict=True):
                assert_same(ours, theirs)
        return expected

    return play


def test_the_same_bytes_as_through_the_socket(make_settings, play_both_ways, scripted):
    three_laps = scripted("ring")
    standing = PlannedRace("straight", [COAST] * 1000)
    turning_back = PlannedRace("ring", [*three_laps.actions[:150], *[6] * 1000], seed=5)
    many_gates = PlannedRace("gates", [])
    plans = [wandering(1), three_laps, standing, wandering(2), turning_back, many_gates, wandering(4)]
    expected = play_both_ways(make_settings(True), plans, n_times=2)
    reasons = {stats["cutoff_reason"] for _, stats in expected}
    assert reasons == {None, "no_progress"}
    assert [len(expected[index][1]["checkpoint_times_ms"]) for index in (1, 5)] == [9, 21]
    finishes_ms = {results["race_time"] % 50 for results, _ in expected if "race_time" in results}
    assert len(finishes_ms) >= 3, "finishes at several places between two decisions"
    assert 0 in finishes_ms, "one with a decision at the very finish"


RANGES = "('mini_race_time_actions', 'speed_m_s', 'range_finder_m')"
ROAD = "('mini_race_time_actions', 'speed_m_s', 'road_ahead')"


@dataclass(frozen=True)
class AnalogRace:
    """The same with a wheel that wanders, full gas now and then, and seldom the brake."""

    map_name: str
    seed: int

    def decision(self, index):
        rng = np.random.default_rng((self.seed, index))
        steer = 0.3 * np.sin(0.2 * index + self.seed) + rng.normal(0, 0.1)
        action = np.array([steer, rng.random() - 0.1, rng.random() - 0.9], dtype=np.float32)
        return PolicyDecision(action, index % 3 == 0, rng.standard_normal(1, dtype=np.float32))


def test_analog_races_are_the_same_bytes_as_through_the_socket(make_settings, play_both_ways):
    settings = make_settings(True, "actions=analog", "cutoff_race_longer_than_ms=9000")
    plans = [AnalogRace("straight", 0), AnalogRace("straight", 1), AnalogRace("ring", 5)]
    results, stats = play_both_ways(settings, plans)[0]
    assert stats["race_finished"]
    actions = results["actions"]
    assert (actions.dtype, actions.shape) == (np.float32, (len(results["input_w"]), 3))
    np.testing.assert_array_equal(results["input_w"], actions[:, 1] > 0)
    places = ObservationLayout(settings.observation, "analog")["previous_actions"]
    np.testing.assert_array_equal(results["state_float"][1:, places][:, -3:], actions)
    assert results["q_values"].shape == (len(actions), 1)
    assert " steer " in stats["inputs"]


RECORDED = json.loads(Path(__file__).with_name("recorded_races.json").read_text())
RECORDED_RACES = {
    # (image, settings, tracks); a track with ! is driven by the scripted driver, to the finish
    "floats": (False, (), ("valley!", "kart!", "ring!", "hills", "jump", "rally", "speedway")),
    "horizon": (False, ("horizon=40",), ("valley!", "kart", "rally")),
    "image": (True, ("cutoff_no_progress_within_ms=1000",), ("jump!", "valley", "kart")),
    "image, horizon": (True, ("horizon=60",), ("hills!", "rally")),
    "ranges on the track": (False, (f"observation_blocks={RANGES}", "fourier_wavelengths={}"), ("valley!", "jump")),
    "ranges in the picture": (
        True,
        (f"observation_blocks={RANGES}", "fourier_wavelengths={}", "range_finder_source=picture", "horizon=60"),
        ("speedway!", "kart"),
    ),
    "road ahead": (False, (f"observation_blocks={ROAD}", "fourier_wavelengths={}"), ("rally!", "ring")),
    "analog": (False, ("actions=analog", "cutoff_race_longer_than_ms=9000"), ("valley", "kart")),
}


def digest_of(value):
    if isinstance(value, float):
        value = round(value, 9)
    content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def digests_of(race):
    """Digest of each column and figure of a race but its timings."""
    results, stats = race
    columns = {name: digest_of(value) for name, value in results.items()}
    return columns | {f"stats {name}": digest_of(value) for name, value in stats.items() if name != "timings_ms"}


def digest_of_simulator(maps_folder):
    """Digest of physics and pictures alone, which may have other last digits on another processor."""
    track = load_track(maps_folder / "valley.toml")
    race = SimulatedRace(track)
    race.advance(20)
    return digest_of(drive(track).position_m) + digest_of(np.array(race.render(40, 30)))


@pytest.mark.parametrize("case", RECORDED_RACES)
def test_races_on_the_shipped_tracks_are_the_recorded_bytes(case, make_settings, play_both_ways, scripted, maps_folder):
    has_image, overrides, tracks = RECORDED_RACES[case]
    settings = make_settings(has_image, *overrides)
    plans = []
    for seed, track in enumerate(tracks):
        if settings.game.actions == "analog":
            plans.append(AnalogRace(track, seed))
        elif track.endswith("!"):
            plans.append(scripted(track.removesuffix("!")))
        else:
            plans.append(dataclasses.replace(wandering(seed), map_name=track))
    races = dict(zip(tracks, map(digests_of, play_both_ways(settings, plans)), strict=True))
    if digest_of_simulator(maps_folder) != RECORDED["simulator"]:
        pytest.skip("the simulator's numbers on this processor are not those of the recording")
    recorded = RECORDED[case]
    assert races.keys() == recorded.keys()
    for track, digests in recorded.items():
        assert {name: races[track][name] for name in digests} == digests, track


def test_in_halves_every_game_drives_its_own_race(maps_folder, make_settings, entry_of):
    settings, plans = make_settings(False), [wandering(seed) for seed in range(5)]
    alternating = settings.sync.model_copy(update={"sampling": "alternating"})

    def make(numbers):
        return InProcessGames(len(numbers), settings.game, settings.observation, maps_folder)

    expected, _ = play_in_process(games_for(settings.sync, range(5), make), entry_of, plans)
    games = games_for(alternating, range(5), make)
    assert games.n_games == 5
    for _ in range(2):
        races, all_received = play_in_process(games, entry_of, plans)
        halves = [received.ids.tolist() for received in all_received[:4]]
        assert halves[0] in ([0, 1], [2, 3, 4])
        assert halves[0] == halves[2] != halves[1] == halves[3]
        for ours, theirs in zip(races, expected, strict=True):
            assert_same(ours, theirs)
    games.game = settings.game.model_copy(update={"cutoff_race_longer_than_ms": 300})
    races, _ = play_in_process(games, entry_of, plans)
    assert [len(columns["actions"]) for columns, _ in races] == [7] * 5
    assert games.close()


def one_decision(action):
    return BatchDecision(np.array([action]), np.array([True]), np.zeros((1, 12), dtype=np.float32))


def settings_on(maps_folder, settings):
    return settings.model_copy(update={"game": settings.game.model_copy(update={"maps_folder": str(maps_folder)})})


class TwoFloats(RaceGames):
    extra_mean: Any = (3.0, 0.0)
    extra_std: Any = (2.0, 1.0)
    calls = 0

    def extra_floats(self, floats):
        self.calls += 1
        speed_m_s = np.linalg.norm(floats[:, self.layout["velocity_m_s"]], axis=1)
        return np.stack((speed_m_s, np.full(len(floats), self.calls)), axis=1)  # tells when it was asked


def test_floats_of_ones_own_are_kept_as_they_were_shown(maps_folder, make_settings, entry_of):
    settings, rng, plans = make_settings(False), np.random.default_rng(0), [wandering(1), wandering(2)]
    builder, plain = TwoFloats(settings), RaceGames(settings)
    assert builder.spaces.n_floats == plain.spaces.n_floats + 2
    assert builder.spaces.float_mean[-2:] == (3.0, 0.0)
    assert builder.spaces.float_std[-2:] == (2.0, 1.0)
    with pytest.raises(SettingsError, match=r"has 1 numbers in extra_mean and 2 in extra_std, .*\(2, 2\)"):
        type("OneMeanTooFew", (TwoFloats,), {"extra_mean": (3.0,)})(settings)
    races, all_received = play_in_process(builder.make_games(0, maps_folder, rng), entry_of, plans)
    expected, _ = play_in_process(plain.make_games(0, maps_folder, rng), entry_of, plans)
    for game, (columns, _) in enumerate(races):
        floats, n_actions = columns["state_float"], len(columns["actions"])
        shown = [received.floats[received.ids == game][0] for received in all_received if game in received.ids]
        assert (floats.dtype, floats.shape) == (np.float32, (n_actions + 1, builder.spaces.n_floats))
        np.testing.assert_array_equal(floats[:-1], shown[:n_actions])
        np.testing.assert_array_equal(floats[:, :-2], expected[game][0]["state_float"])
        speed_m_s = np.linalg.norm(floats[:, builder.layout["velocity_m_s"]], axis=1)
        np.testing.assert_array_equal(floats[:, -2], speed_m_s)

    of_socket = TwoFloats(settings_on(maps_folder, settings))
    games = of_socket.behind_sockets([SimulatedGameLauncher(find_free_port(), maps_folder)])
    try:
        [(columns, _)], all_received = play_in_process(games, entry_of, plans[:1])
    finally:
        games.close()
    n_actions = len(columns["actions"])
    np.testing.assert_array_equal(columns["state_float"][:, :-1], races[0][0]["state_float"][:, :-1])
    shown = [received.floats[0] for received in all_received[:n_actions]]
    np.testing.assert_array_equal(columns["state_float"][:-1], shown)


class WithoutSky(RaceGames):
    def change_images(self, images):
        images = images.copy()
        images[:, : images.shape[1] // 2] = 7
        return images


def test_agents_and_races_have_changed_images(maps_folder, make_settings, entry_of):
    settings, rng, plans = make_settings(True), np.random.default_rng(0), [wandering(1), wandering(2)]
    races, all_received = play_in_process(WithoutSky(settings).make_games(0, maps_folder, rng), entry_of, plans)
    plain, _ = play_in_process(RaceGames(settings).make_games(0, maps_folder, rng), entry_of, plans)
    half = settings.game.image_height_px // 2
    for game, (columns, _) in enumerate(races):
        frames, before = columns["frames"][:, 0], plain[game][0]["frames"][:, 0]
        assert (frames[:, :half] == 7).all()
        np.testing.assert_array_equal(frames[:, half:], before[:, half:])
        shown = [received.images[received.ids == game][0, -1] for received in all_received if game in received.ids]
        np.testing.assert_array_equal(frames[: len(shown)], shown)
        np.testing.assert_array_equal(columns["state_float"], plain[game][0]["state_float"])  # measured before
    of_socket = WithoutSky(settings_on(maps_folder, settings))
    games = of_socket.behind_sockets([SimulatedGameLauncher(find_free_port(), maps_folder)])
    try:
        [(columns, _)], _ = play_in_process(games, entry_of, plans[:1])
    finally:
        games.close()
    np.testing.assert_array_equal(columns["frames"], races[0][0]["frames"])
    with pytest.raises(SettingsError, match=r"change_images of Smaller made uint8 \(2, 1, .*of two images"):
        type("Smaller", (RaceGames,), {"change_images": lambda _, images: images[:, :1]})(settings)


def test_maps_in_memory_are_bounded_and_one_in_use_stays(maps_folder, make_settings, tmp_path, monkeypatch):
    generator = {"difficulty": 0.4, "first_seed": 0, "last_seed": 10**6}
    entry = MapEntry(map_name="made", generator=generator, is_explo=True, fill_buffer=True)
    generated = GeneratedMaps(tmp_path / "tracks", np.random.SeedSequence(1))
    entries = [generated.draw(entry) for _ in range(7)]
    monkeypatch.setattr(in_process, "SPARE_MAPS", 1)
    settings = make_settings(False)
    games, alone = (InProcessGames(n, settings.game, settings.observation, maps_folder) for n in (2, 1))
    games.begin(0, entries[0])
    alone.begin(0, entries[0])
    for other in (*entries[1:], entries[1], *entries):  # game 1 plays all maps while game 0 stays on its own
        games.begin(1, other)
        games.send(np.array([1]), one_decision(0))
        games.send(np.array([0]), one_decision(0))
        alone.send(np.array([0]), one_decision(0))
        assert len(games._maps) <= 3
        ours, expected = games.recv(), alone.recv()
        np.testing.assert_array_equal(ours.images[:1], expected.images)
        np.testing.assert_array_equal(ours.floats[:1], expected.floats)
