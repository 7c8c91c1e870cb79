"""Races that go on while their driver thinks; twenty times as fast as the clock, so that tests are."""

import threading
import time

import gymnasium
import pytest

import trackmania_rl  # noqa: F401  # registers the environments
from trackmania_rl.games.envs import REAL_TIME_RACE_ID

pytest.importorskip(
    "trackmania_rl.games.envs.real_time", reason="python -m pip install rtgym", exc_type=ModuleNotFoundError
)
pytestmark = pytest.mark.filterwarnings("ignore:Time-step timed out")  # other programs may keep the processor busy

SPEED = 20.0
STEP_S = 0.05 / SPEED


@pytest.fixture
def make_env():
    made = []

    def make(overrides=None, **options):
        settings = {"running_speed": SPEED} | (overrides or {})
        made.append(gymnasium.make(REAL_TIME_RACE_ID, maps="valley", overrides=settings, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


def test_the_observation_ends_with_the_last_actions(make_env):
    env = make_env(act_buf_len=3)
    observation, _ = env.reset()
    assert observation[0].shape == (184,)
    forward = observation[1]
    assert observation[1:] == (forward,) * 3
    for action in (4, 5):
        observation, *_ = env.step(action)
    assert observation[1:] == (forward, 4, 5)


def test_the_game_goes_on_while_the_driver_thinks(make_env):
    env = make_env()
    env.reset()
    env.step(0)
    time.sleep(40 * STEP_S)
    with pytest.warns(UserWarning, match="Time-step timed out"):
        env.step(0)
    *_, info = env.step(0)
    n_asked_for = 3
    while info["race_time_ms"] < 35 * 50 and n_asked_for < 30:  # other programs may keep the processor busy
        time.sleep(40 * STEP_S)
        *_, info = env.step(0)
        n_asked_for += 1
    assert info["race_time_ms"] >= 35 * 50, "more time steps than were asked for"
    assert info["meters"] > 10


def test_a_race_that_is_cut_off_is_truncated_and_its_rewards_are_all_there(make_env):
    overrides = {"cutoff_no_progress_within_ms": 500, "constant_reward_per_ms": -0.001}
    env = make_env(overrides, reward="trainer", act_buf_len=1)
    env.reset()
    brake = next(
        number
        for number, keys in enumerate(env.unwrapped._race.settings.game.inputs)
        if keys.brake and not keys.accelerate
    )
    total, is_over = 0.0, False
    while not is_over:
        _, reward, terminated, truncated, info = env.step(brake)
        total += reward
        is_over = terminated or truncated
    assert truncated
    assert not terminated
    assert info["cutoff_reason"] == "no_progress"
    assert total < -0.3
    assert info["race_time_ms"] >= 500
    _, info = env.reset()
    assert info["race_time_ms"] == 0


def test_an_error_of_the_game_reaches_the_driver(make_env, monkeypatch):
    env, failed = make_env(), threading.Event()
    env.reset()

    def fail(_):
        failed.set()
        raise OSError("the game is gone")

    monkeypatch.setattr(env.unwrapped._race, "step", fail)
    assert failed.wait(60)
    env.unwrapped.interface._thread.join(60)
    with pytest.raises(OSError, match="the game is gone"):
        env.unwrapped.interface.get_obs_rew_terminated_info()
