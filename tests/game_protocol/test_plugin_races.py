"""Our own client plays whole races through the executed plugin; they are those of the simulated game's own server."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from plugin_game import Unknowns

from trackmania_rl.race.actions import PolicyDecision
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port

from ..scripted_policies import playing, random_actions

UNKNOWNS = {
    "as the simulated game": Unknowns(),
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
"""Unknown properties of the real game."""
COAST = 3


class PluginGameLauncher(SimulatedGameLauncher):
    """Starts the game that has our plugin instead of the one that speaks the protocol itself."""

    def __init__(self, port, maps_folder, library, interface, unknowns):
        arguments = ("--library", str(library), "--unknowns", json.dumps(dataclasses.asdict(unknowns)))
        if interface is not None:
            arguments += ("--interface", str(interface))
        super().__init__(port, maps_folder, arguments)
        self._command[:2] = [sys.executable, str(Path(__file__).resolve().parent / "plugin_game.py")]


@pytest.fixture
def make_managers(library, interface, straight_folder, repository_root):
    """`make_managers(unknowns, has_image, ...)` plays on the game with the plugin, and on the simulated game."""
    made = []

    def make(unknowns=UNKNOWNS["as the simulated game"], has_image=False, actions="keys"):
        sides_px = (16, 8) if has_image else (0, 0)
        # How fast a game seems to play depends on this machine's other work, and must cost no race.
        overrides = [
            f"image_width_px={sides_px[0]}",
            f"image_height_px={sides_px[1]}",
            "game_reboot_below_speed_share=0",
        ]
        settings = load_settings(
            repository_root / "config_files" / "config_tmnf.py", [*overrides, f"actions={actions}"]
        )
        game = settings.game.model_copy(update={"game": "simulated", "maps_folder": str(straight_folder)})
        for launcher in (
            PluginGameLauncher(find_free_port(), straight_folder, library, interface, unknowns),
            SimulatedGameLauncher(find_free_port(), straight_folder),
        ):
            made.append(GameInstanceManager(game, settings.observation, launcher))
        return made

    yield make
    for manager in made:
        manager.close()


def play_analog(seed):
    actions = iter(np.random.default_rng(seed).uniform((-0.3, -0.1, -1), (0.3, 1, 0.05), (400, 3)).astype(np.float32))
    return lambda frame, floats: PolicyDecision(next(actions), True, np.zeros(1, np.float32))


def play_keys(seed):
    """Random actions, with which the car arrives; every seventh race stands until it is cut off."""
    return playing([COAST] * 1000 if seed % 7 == 6 else random_actions(seed))


def assert_same_races(managers, straight, seeds, make_policy=play_keys):
    for seed in seeds:
        (ours, our_stats), (theirs, their_stats) = (
            manager.rollout(straight, make_policy(seed)) for manager in managers
        )
        assert ours.keys() == theirs.keys()
        assert ours.get("race_time") == theirs.get("race_time")
        for key in ("actions", "state_float", "frames", "car_gear_and_wheels", "position_m"):
            assert np.asarray(ours[key]).tobytes() == np.asarray(theirs[key]).tobytes(), f"{key} of race {seed}"
        for key in ("race_finished", "checkpoint_times_ms", "cutoff_reason", "inputs", "meters"):
            assert our_stats[key] == their_stats[key], f"{key} of race {seed}"
        assert our_stats["race_finished"] == (seed % 7 != 6)
    assert [manager.game_starts for manager in managers] == [1, 1]


def test_races_with_pictures_are_the_same_whatever_the_game_does_that_is_not_known(make_managers, straight):
    assert_same_races(make_managers(UNKNOWNS["all at once"], has_image=True), straight, (0, 1))


def test_an_analog_race_is_that_of_the_simulated_game(make_managers, straight):
    assert_same_races(make_managers(actions="analog"), straight, (0,), play_analog)


@pytest.mark.slow
@pytest.mark.parametrize("has_image", [True, False], ids=["with an image", "without"])
@pytest.mark.parametrize("unknowns", UNKNOWNS)
def test_twenty_races_are_the_same_whatever_is_not_known(make_managers, straight, unknowns, has_image):
    assert_same_races(make_managers(UNKNOWNS[unknowns], has_image), straight, range(20))
