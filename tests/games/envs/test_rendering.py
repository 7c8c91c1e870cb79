"""Pictures of `RaceEnv.render`."""

import sys
import time
from pathlib import Path

import cv2
import gymnasium
import numpy as np
import pytest

from trackmania_rl.games.envs import RACE_ID
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.training.demonstrations import actions_of_inputs, read_inputs

SOCKET = {"game_transport": "socket"}


def test_a_game_in_this_process_draws_the_view_from_behind_the_car(make_env, tracks):
    env = make_env("straight", render_mode="rgb_array")
    env.reset()
    first = env.render()
    for _ in range(20):
        env.step(0)
    shown = env.render()
    assert shown.shape == first.shape == (240, 320, 3)
    assert shown.dtype == np.uint8
    assert (shown != first).any()
    car = env.races.games._cars.cars[0]
    drawn = Renderer(load_track(Path(tracks["straight"]))).render(
        car["position_m"], car["rotation"], car["surface_index"], 320, 240
    )
    np.testing.assert_array_equal(shown, cv2.cvtColor(drawn, cv2.COLOR_BGRA2RGB))
    assert env.metadata["render_fps"] == 20
    unwatched = make_env("straight")
    unwatched.reset()
    assert unwatched.render() is None


def test_a_game_behind_a_socket_shows_the_newest_frame_of_its_image(make_env, image):
    env = make_env("straight", overrides=image | SOCKET, render_mode="rgb_array")
    env.reset()
    seen = env.step(0)[0]["image"]
    shown = env.render()
    assert shown.shape == (30, 40, 3)
    assert (shown == seen[-1][..., np.newaxis]).all()


@pytest.mark.filterwarnings("ignore:.*'human' rendering")  # the wrapper is meant
def test_a_window_shows_the_race_at_the_clocks_speed(tracks, monkeypatch):
    pygame = pytest.importorskip("pygame", reason="python -m pip install pygame-ce")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = gymnasium.make(RACE_ID, maps=tracks["straight"], render_mode="human")
    env.reset()
    began_s = time.perf_counter()
    for _ in range(12):
        env.step(0)
    assert time.perf_counter() - began_s > 11 * 0.05
    assert env.render() is None
    shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
    np.testing.assert_array_equal(shown, env.unwrapped.races.games.picture(0, 320, 240))
    env.close()
    assert not pygame.display.get_init()


@pytest.fixture
def drive_by_hand(tracks, monkeypatch, tmp_path):
    """Drives examples/keyboard.py to the finish of a straight; returns the environment's actions and the file."""
    pygame = pytest.importorskip("pygame", reason="python -m pip install pygame-ce")
    from examples import keyboard

    step, driven = keyboard.Laps.step, []

    def press_up_until_the_finish(laps, action):
        driven.append(action)
        result = step(laps, action)
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_UP))
        if result[4]["race_finished"]:
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        return result

    def drive(*words):
        monkeypatch.setattr(sys, "argv", ["keyboard", "--map", tracks["straight"], "--folder", str(tmp_path), *words])
        keyboard.main()
        (file,) = tmp_path.glob("straight_*.inputs")
        return driven, file

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(keyboard.Laps, "step", press_up_until_the_finish)
    return drive


def require_exact_inputs(env, driven, file):
    """Check that the actions drive to the time in a file's name, and that the file is those actions."""
    game = env.unwrapped.races.settings.game
    actions, n_exact = actions_of_inputs(read_inputs(file), game)
    assert n_exact == len(actions) > 1
    assert (actions == driven[: len(actions)]).all()
    env.reset()
    for action in driven:
        *_, info = env.step(action)
    assert info["race_finished"]
    assert file.stem == f"straight_{info['race_time_ms']}"
    env.close()
    return actions


def test_a_race_at_the_keyboard_becomes_inputs(tracks, drive_by_hand):
    driven, file = drive_by_hand("--speed", "50")
    assert driven[0] == 3  # nothing is pressed yet
    assert set(driven[1:]) == {0}
    actions = require_exact_inputs(gymnasium.make(RACE_ID, maps=tracks["straight"]), driven, file)
    assert set(driven[len(actions) :]) <= {actions[-1]}


class Gamepad:
    """Has a stick, a brake that was never moved, and a gas pedal that is at 1 when released."""

    def __init__(self, number):
        self.axes = (0.001, 0.0, -1.0)

    def get_axis(self, axis):
        return self.axes[axis]


def test_a_race_at_a_wheel_becomes_inputs(tracks, drive_by_hand, monkeypatch):
    pygame = pytest.importorskip("pygame", reason="python -m pip install pygame-ce")
    monkeypatch.setattr(pygame.joystick, "get_count", lambda: 1)
    monkeypatch.setattr(pygame.joystick, "Joystick", Gamepad)
    driven, file = drive_by_hand("--speed", "50", "--wheel", "0", "-2", "1")
    np.testing.assert_allclose(driven[-1], (0.001, 1.0, -1.0), atol=1e-6)
    env = gymnasium.make(RACE_ID, maps=tracks["straight"], overrides={"actions": "analog"})
    game = env.unwrapped.races.settings.game
    actions, _ = actions_of_inputs(read_inputs(file), game)
    np.testing.assert_allclose(actions, driven[: len(actions)], atol=2e-5)  # a script has whole numbers
    assert "steer" in file.read_text()


def test_without_a_wheel_one_line_says_so(drive_by_hand, capsys):
    with pytest.raises(SystemExit):
        drive_by_hand("--wheel", "0", "5", "2")
    assert "--wheel: no wheel or gamepad is connected" in capsys.readouterr().err
