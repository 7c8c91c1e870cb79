"""Our own client plays whole races through the executed plugin; they are those of the simulated game's own server."""

import sys
from pathlib import Path

import numpy as np
import pytest
from plugin_game import SCRIPT

from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers import SimulatedGameLauncher, find_free_port
from trackmania_rl.tmi_interaction.plugin_files import read_version
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface

from ..scripted_policies import playing, random_actions

COAST = 3
LINE_M = 50
ON_A_BUSY_MACHINE = ("game_reboot_below_speed_share=0",)
"""How fast a game seems to play says how busy this machine is, and no race may be lost for it."""


class PluginGameLauncher(SimulatedGameLauncher):
    """Starts the game that has our plugin instead of the one that speaks the protocol itself."""

    def __init__(self, port, maps_folder, library):
        super().__init__(port, maps_folder, ("--library", str(library)))
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
def managers(request, library, maps_folder, repository_root):
    """(of the game with the plugin, of the simulated game)."""
    sides_px = (16, 8) if request.param == "with an image" else (0, 0)
    settings = load_settings(
        repository_root / "config_files" / "config_tmnf.py",
        [f"image_width_px={sides_px[0]}", f"image_height_px={sides_px[1]}", *ON_A_BUSY_MACHINE],
    )
    game = settings.game.model_copy(update={"game": "simulated", "maps_folder": str(maps_folder)})
    launchers = (
        PluginGameLauncher(find_free_port(), maps_folder, library),
        SimulatedGameLauncher(find_free_port(), maps_folder),
    )
    made = [GameInstanceManager(game, settings.observation, launcher) for launcher in launchers]
    yield made
    for manager in made:
        manager.close()


def actions_of_race(seed):
    """Random ones, with which the car arrives; every seventh race stands until it is cut off."""
    return [COAST] * 1000 if seed % 7 == 6 else random_actions(seed)


def assert_same_races(managers, straight, seeds):
    for seed in seeds:
        rounds = [manager.rollout(straight, playing(actions_of_race(seed))) for manager in managers]
        (ours, our_stats), (theirs, their_stats) = rounds
        assert ours.keys() == theirs.keys()
        assert ours.get("race_time") == theirs.get("race_time")
        for key in ("actions", "state_float", "frames", "car_gear_and_wheels"):
            assert np.asarray(ours[key]).tobytes() == np.asarray(theirs[key]).tobytes(), f"{key} of race {seed}"
        for key in ("race_finished", "checkpoint_times_ms", "cutoff_reason", "inputs", "meters"):
            assert our_stats[key] == their_stats[key], f"{key} of race {seed}"
        assert our_stats["race_finished"] == (seed % 7 != 6)
    assert [manager.game_starts for manager in managers] == [1, 1], "no race was lost"


def test_two_races_are_those_of_the_simulated_game(managers, straight):
    assert_same_races(managers, straight, (0, 1))


@pytest.mark.slow
def test_twenty_races_are_those_of_the_simulated_game(managers, straight):
    assert_same_races(managers, straight, range(20))


def test_a_killed_client_costs_the_next_one_nothing(library, maps_folder, straight, repository_root):
    """A second manager takes over a game that the first one left in the middle of a race, without a goodbye."""
    settings = load_settings(
        repository_root / "config_files" / "config_tmnf.py",
        ["image_width_px=16", "image_height_px=8", *ON_A_BUSY_MACHINE],
    )
    game = settings.game.model_copy(update={"game": "simulated", "maps_folder": str(maps_folder)})
    launcher = PluginGameLauncher(find_free_port(), maps_folder, library)
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
