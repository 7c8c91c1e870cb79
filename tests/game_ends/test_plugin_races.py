"""Our own client plays whole races through the executed plugin; they are those of the simulated game's own server."""

import dataclasses
import json
import re
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from plugin_game import SCRIPT, Unknowns

from trackmania_rl.games.protocol import rollout
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.simulator.server.chaos import parse_faults
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.launchers.plugin_files import read_version
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface

from ..scripted_policies import playing, random_actions

UNKNOWNS = {
    "the step comes before the tick": Unknowns(step_before_tick=True),
    "a speed counts from the next frame on": Unknowns(speed_waits=True),
    "no tick follows a rewind before the next frame": Unknowns(rewind_ends_frame=True),
    "no step in the countdown": Unknowns(countdown_is_silent=True),
    "the race time lags behind a rewind": Unknowns(race_time_lags=True),
    "both clocks lag behind a rewind": Unknowns(race_time_lags=True, tick_time_lags=True),
    "states of the game are not told": Unknowns(states_are_untold=True),
    "the finish comes before its step": Unknowns(checkpoint_before_step=True),
    "frames come one late": Unknowns(frame_is_late=True),
    "one tick in a frame": Unknowns(ticks_per_frame=1),
    "133 ticks in a frame": Unknowns(ticks_per_frame=133),
    "steps before ticks, and clocks that lag": Unknowns(
        step_before_tick=True, race_time_lags=True, tick_time_lags=True
    ),
    "all at once": Unknowns(True, True, False, True, True, False, True, True, True, 133),
}
"""What is not known of the real game."""
COAST = 3
LINE_M = 50
ON_A_BUSY_MACHINE = ("game_reboot_below_speed_share=0",)
"""How fast a game seems to play says how busy this machine is, and no race may be lost for it."""

TIMEOUT_S = 2.0
LATE_S = 0.8
FAULTS = f"kill@race=4,time=1;hang@race=5,time=1;late@race=6,time=1,seconds={LATE_S};kill@race=9,time=0.5"
"""Each game counts its own races, and begins with the one that was lost by the game before."""
LOST_RACES = (3, 7, 15)
"""Counted from 0 over all games."""
LATE_RACE = 12
KILLED = "closed the connection|Connection reset"
SILENT = f"silent for {TIMEOUT_S:g} s"


class PluginGameLauncher(SimulatedGameLauncher):
    """Starts the game that has our plugin instead of the one that speaks the protocol itself."""

    def __init__(self, port, maps_folder, library, interface, *arguments):
        if interface is not None:
            arguments = ("--interface", str(interface), *arguments)
        super().__init__(port, maps_folder, ("--library", str(library), *arguments))
        self._command[:2] = [sys.executable, str(Path(__file__).resolve().parent / "plugin_game.py")]


@pytest.fixture(scope="module")
def maps_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    np.save(folder / "straight.npy", np.arange(0, LINE_M, 0.5)[:, None] * np.array([0.0, 0.0, 1.0]) + (0, 100, 0))
    return folder


@pytest.fixture(scope="module")
def straight():
    return MapEntry(
        map_name="straight", map_path="straight.npy", reference_line="straight.npy", is_explo=True, fill_buffer=True
    )


@pytest.fixture(params=["with an image", "without"])
def make_games(request, library, interface, maps_folder, repository_root):
    """`make_games(argument of the first one's game, ..., setting of the first one=value, ...)` makes two.

    They are the game with the plugin and the simulated game, which nothing disturbs.
    """
    sides_px = (16, 8) if request.param == "with an image" else (0, 0)
    settings = load_settings(
        repository_root / "config_files" / "config_tmnf.py",
        [f"image_width_px={sides_px[0]}", f"image_height_px={sides_px[1]}", *ON_A_BUSY_MACHINE],
    )
    game = settings.game.model_copy(update={"game": "simulated", "maps_folder": str(maps_folder)})
    made = []

    def make(*arguments, **changes):
        launchers = (
            PluginGameLauncher(find_free_port(), maps_folder, library, interface, *arguments),
            SimulatedGameLauncher(find_free_port(), maps_folder),
        )
        for played, launcher in zip((game.model_copy(update=changes), game), launchers, strict=True):
            made.append(SocketGames([GameInstanceManager(played, settings.observation, launcher)]))
        return made

    yield make
    for games in made:
        games.close()


@pytest.fixture
def games(make_games):
    return make_games()


def actions_of_race(seed):
    """Random ones, with which the car arrives; every seventh race stands until it is cut off."""
    return [COAST] * 1000 if seed % 7 == 6 else random_actions(seed)


def assert_same_races(games, straight, seeds, lost_races=()):
    for seed in seeds:
        make_policy = partial(playing, actions_of_race(seed))
        # The undisturbed game first: what is compiled for the first time ever must not meet a short timeout.
        undisturbed, disturbed = (rollout(one, straight, make_policy) for one in reversed(games))
        theirs, their_stats = undisturbed.rollout_results, undisturbed.end_race_stats
        ours, our_stats = disturbed.rollout_results, disturbed.end_race_stats
        assert ours.keys() == theirs.keys()
        assert ours.get("race_time") == theirs.get("race_time")
        for key in ("actions", "state_float", "frames", "car_gear_and_wheels"):
            assert np.asarray(ours[key]).tobytes() == np.asarray(theirs[key]).tobytes(), f"{key} of race {seed}"
        for key in ("race_finished", "checkpoint_times_ms", "cutoff_reason", "inputs", "meters"):
            assert our_stats[key] == their_stats[key], f"{key} of race {seed}"
        assert our_stats["race_finished"] == (seed % 7 != 6)
        n_lost = sum(race <= seed for race in lost_races)
        assert [one._drivers[0].game_starts for one in games] == [1 + n_lost, 1], f"games up to race {seed}"


def test_two_races_are_those_of_the_simulated_game(games, straight):
    assert_same_races(games, straight, (0, 1))


def test_an_analog_race_is_that_of_the_simulated_game(library, interface, maps_folder, straight, repository_root):
    settings = load_settings(
        repository_root / "config_files" / "config_tmnf.py",
        ["image_width_px=0", "image_height_px=0", "actions=analog", *ON_A_BUSY_MACHINE],
    )
    game = settings.game.model_copy(update={"game": "simulated", "maps_folder": str(maps_folder)})
    launchers = (
        SimulatedGameLauncher(find_free_port(), maps_folder),
        PluginGameLauncher(find_free_port(), maps_folder, library, interface),
    )
    rng = np.random.default_rng(0)
    actions = rng.uniform((-0.3, -0.1, -1), (0.3, 1, 0.05), (400, 3)).astype(np.float32)
    races = []
    for launcher in launchers:
        manager = GameInstanceManager(game, settings.observation, launcher)
        waiting = iter(actions)
        races.append(
            manager.rollout(straight, lambda *_, w=waiting: PolicyDecision(next(w), True, np.zeros(1, np.float32)))
        )
        manager.close()
    (theirs, their_stats), (ours, our_stats) = races
    assert ours["race_time"] == theirs["race_time"]
    for key in ("actions", "state_float", "car_gear_and_wheels", "position_m"):
        assert ours[key].tobytes() == theirs[key].tobytes(), key
    assert our_stats["inputs"] == their_stats["inputs"]


def _as_argument(unknowns):
    return "--unknowns", json.dumps(dataclasses.asdict(unknowns))


def test_two_races_are_the_same_whatever_the_game_does_that_is_not_known(make_games, straight):
    assert_same_races(make_games(*_as_argument(UNKNOWNS["all at once"])), straight, (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("unknowns", UNKNOWNS)
def test_twenty_races_are_the_same_whatever_is_not_known(make_games, straight, unknowns):
    assert_same_races(make_games(*_as_argument(UNKNOWNS[unknowns])), straight, range(20))


@pytest.mark.slow
def test_twenty_races_are_those_of_the_simulated_game(games, straight):
    assert_same_races(games, straight, range(20))


@pytest.mark.slow
def test_twenty_races_are_the_same_though_the_game_dies_hangs_and_is_late(make_games, straight, tmp_path, caplog):
    ledger = tmp_path / "ledger"
    faults = ("--chaos", FAULTS, "--chaos-ledger", str(ledger))
    games = make_games("--try-out", straight.map_path, *faults, tmi_protection_timeout_s=TIMEOUT_S)
    assert_same_races(games, straight, range(LATE_RACE), LOST_RACES)
    began_s = time.monotonic()
    assert_same_races(games, straight, [LATE_RACE], LOST_RACES)
    assert time.monotonic() - began_s >= LATE_S
    assert_same_races(games, straight, range(LATE_RACE + 1, 20), LOST_RACES)

    lost = [record.getMessage() for record in caplog.records if " lost (attempt 1 of 3)" in record.getMessage()]
    for message, reason in zip(lost, (KILLED, SILENT, KILLED), strict=True):
        assert re.search(reason, message)
    kill, hang, late, second_kill = map(str, parse_faults(FAULTS))
    made = ["start", kill, "start", hang, "start", late, second_kill, "start"]
    assert ledger.read_text().splitlines() == made, "each fault once, and a game after each that it cost"


def test_a_killed_client_costs_the_next_one_nothing(library, interface, maps_folder, straight, repository_root):
    """A second manager takes over a game that the first one left in the middle of a race, without a goodbye."""
    settings = load_settings(
        repository_root / "config_files" / "config_tmnf.py",
        ["image_width_px=16", "image_height_px=8", *ON_A_BUSY_MACHINE],
    )
    game = settings.game.model_copy(update={"game": "simulated", "maps_folder": str(maps_folder)})
    launcher = PluginGameLauncher(find_free_port(), maps_folder, library, interface)
    manager = GameInstanceManager(game, settings.observation, launcher)
    try:
        expected = manager.rollout(straight, playing([]))[0]["race_time"]
        manager._transport._socket.close()  # as the system does when a process dies
        newcomer = TMInterface(launcher.port, timeout_s=10)
        event = newcomer.next_event()
        assert newcomer.plugin_version() == read_version(SCRIPT)
        newcomer.answer(event)
        newcomer.close()
        assert manager.rollout(straight, playing([]))[0]["race_time"] == expected
    finally:
        manager.close()
