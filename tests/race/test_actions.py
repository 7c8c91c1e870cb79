"""Actions of both kinds in the observation, on the wire, in the simulated car and in scripts."""

import gymnasium
import numpy as np
import pytest

from trackmania_rl.protocol.input_script import parse_input_script, write_input_script
from trackmania_rl.protocol.messages import AnalogInput, KeyState, key_states
from trackmania_rl.race.actions import actions_of_game, wire_values
from trackmania_rl.settings import load_settings
from trackmania_rl.simulator.inputs import controls_of_keys

ANALOG = np.array([[0.5, 0.3, -0.2], [-1.0, -0.1, 0.01], [1.0, 0.0, 0.0]], dtype=np.float32)


@pytest.fixture(scope="module")
def game(repository_root):
    return load_settings(repository_root / "config_files" / "config.py").game


@pytest.fixture
def analog(game):
    return actions_of_game(game.model_copy(update={"actions": "analog"}))


def test_keys_are_unchanged(game):
    keys, actions = actions_of_game(game), np.arange(12)
    assert (keys.space(), keys.n_values) == (gymnasium.spaces.Discrete(12), 12)
    assert keys.held(actions) == key_states(game.inputs)
    np.testing.assert_array_equal(keys.controls(actions), [controls_of_keys(k) for k in key_states(game.inputs)])
    expected = [[k.accelerate, k.brake, k.left, k.right] for k in game.inputs]
    np.testing.assert_array_equal(keys.shown(actions), expected)
    np.testing.assert_array_equal(keys.presses_gas(actions), [k.accelerate for k in game.inputs])
    assert keys.held(np.array([keys.forward])) == [KeyState(False, False, True, False)]


def test_steer_is_proportional_and_pedals_are_pressed_above_0(analog):
    assert (analog.space(), analog.n_values) == (gymnasium.spaces.Box(-1, 1, (3,), np.float32), 1)
    expected = [AnalogInput(32768, 65536, False), AnalogInput(-65536, 0, True), AnalogInput(65536, 0, False)]
    assert analog.held(ANALOG) == expected
    np.testing.assert_array_equal(analog.controls(ANALOG), [[1, 0, 0.5], [0, 1, -1], [0, 0, 1]])
    np.testing.assert_array_equal(analog.presses_gas(ANALOG), [True, False, False])
    np.testing.assert_array_equal(analog.shown(ANALOG), ANALOG)
    assert analog.shown(ANALOG).dtype == np.float32
    assert analog.held(np.array([analog.forward])) == [AnalogInput(0, 65536, False)]
    beyond = np.array([[1.5, 7.0, -3.0]], dtype=np.float32)
    assert analog.held(beyond) == [AnalogInput(65536, 65536, False)]
    np.testing.assert_array_equal(analog.shown(beyond), [[1, 1, -1]])
    for wrong in (np.nan, np.inf):
        with pytest.raises(FloatingPointError, match="not finite"):
            wire_values(np.array([[0.0, 0.0, wrong]], dtype=np.float32))


def test_analog_actions_are_a_script_of_changes(analog):
    actions = ANALOG[[0, 0, 1, 2]]
    script = write_input_script(analog.events(np.array([0, 50, 100, 150]), actions))
    assert script == (
        "0.00 steer 32768\n0.00 gas 65536\n0.10 steer -65536\n0.10 gas 0\n0.10 press down\n0.15 steer 65536\n"
        "0.15 rel down\n"
    )
    assert parse_input_script(script) == analog.events(np.array([0, 50, 100, 150]), actions)
    steer = np.arange(-65536, 65537)
    every = np.stack([steer / 65536, np.ones(len(steer)), -np.ones(len(steer))], axis=1).astype(np.float32)
    np.testing.assert_array_equal(wire_values(every), np.stack([steer, 0 * steer + 65536, 0 * steer], axis=1))
