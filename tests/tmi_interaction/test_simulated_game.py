"""The client against the simulated game, through real processes and sockets."""

import os
import signal
import time

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.protocol.input_script import parse_input_script
from trackmania_rl.settings import MapEntry
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port

from ..scripted_policies import playing, random_actions

COAST = 3
LINE_M = 50


@pytest.fixture(scope="module")
def maps_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    np.save(folder / "straight.npy", np.arange(0, LINE_M, 0.5)[:, None] * np.array([0.0, 0.0, 1.0]) + (0, 100, 0))
    return folder


@pytest.fixture(scope="module")
def straight():
    return MapEntry(
        map_name="straight",
        map_path="straight.npy",
        reference_line="straight.npy",
        is_explo=True,
        fill_buffer=True,
    )


def make_manager(settings, maps_folder, **changes):
    game = settings.game.model_copy(update={"game": "simulated", "maps_folder": str(maps_folder), **changes})
    return GameInstanceManager(game, settings.observation, SimulatedGameLauncher(find_free_port(), maps_folder))


@pytest.fixture(scope="module")
def manager(settings, maps_folder):
    made = make_manager(settings, maps_folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def manager_without_image(settings_without_image, maps_folder):
    made = make_manager(settings_without_image, maps_folder)
    yield made
    made.close()


def test_a_race_is_driven_to_the_finish(manager, straight):
    results, stats = manager.rollout(straight, playing([]))
    assert stats["race_finished"]
    assert stats["checkpoint_times_ms"] == [results["race_time"]]
    assert 1000 < results["race_time"] < 10_000
    assert len(results["actions"]) == -(-results["race_time"] // 50)
    assert results["frames"].std() > 5
    assert stats["meters"] == pytest.approx(LINE_M, abs=1)


def test_same_actions_give_the_same_bytes_with_and_without_image(manager, manager_without_image, straight):
    rounds = [
        game.rollout(straight, playing(random_actions(1)))[0] for game in (manager, manager_without_image, manager)
    ]
    for other in rounds[1:]:
        assert other["race_time"] == rounds[0]["race_time"]
        assert other["state_float"].tobytes() == rounds[0]["state_float"].tobytes()
    assert rounds[2]["frames"].tobytes() == rounds[0]["frames"].tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_the_input_script_plays_the_race_again_to_the_millisecond(manager_without_image, maps_folder, straight, seed):
    results, stats = manager_without_image.rollout(straight, playing(random_actions(seed)))
    race = SimulatedRace(load_track(maps_folder / "straight.npy"))
    race.play_script(parse_input_script(stats["inputs"]))
    while not race.is_finished and race.race_time_ms < 60_000:
        race.advance()
    assert stats["race_finished"]
    assert race.checkpoint_times_ms[-1] == results["race_time"]


def test_after_a_cut_off_the_next_race_is_driven(manager, straight):
    _, cut_off = manager.rollout(straight, playing([COAST] * 1000))
    assert cut_off["cutoff_reason"] == "no_progress"
    assert manager.rollout(straight, playing([]))[1]["race_finished"]


def test_a_killed_game_costs_one_race(manager_without_image, straight):
    manager = manager_without_image
    expected = manager.rollout(straight, playing([]))[0]["race_time"]
    starts_before = manager.game_starts
    pid = manager._launcher.pid
    forward = playing([])
    decisions = iter(range(10_000))

    def killing(frame, floats):
        if next(decisions) == 10:
            os.kill(pid, signal.SIGKILL)
        return forward(frame, floats)

    assert manager.rollout(straight, killing)[0]["race_time"] == expected
    assert manager.game_starts == starts_before + 1


def test_a_hung_game_is_replaced(settings_without_image, maps_folder, straight):
    manager = make_manager(settings_without_image, maps_folder, tmi_protection_timeout_s=2.0)
    try:
        expected = manager.rollout(straight, playing([]))[0]["race_time"]
        os.kill(manager._launcher.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        assert manager.rollout(straight, playing([]))[0]["race_time"] == expected
        assert time.monotonic() - began_s < 20
        assert manager.game_starts == 2
    finally:
        manager.close()


@pytest.mark.parametrize(("name", "content"), [("absent.toml", None), ("damaged.toml", "name = "), ("bad.npy", "x")])
def test_a_map_that_the_game_cannot_load_is_named_before_it_is_asked(manager, maps_folder, straight, name, content):
    if content is not None:
        (maps_folder / name).write_text(content)
    with pytest.raises(UserError, match=name):
        manager.rollout(straight.model_copy(update={"map_path": name}), playing([]))
