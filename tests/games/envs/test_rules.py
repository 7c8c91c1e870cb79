"""The environments under the checkers and wrappers of Gymnasium, Stable-Baselines3 and torchrl."""

import contextlib

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FlattenObservation
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from trackmania_rl.games.envs import (
    ANALOG_RACE_ID,
    RACE_ID,
    REAL_TIME_RACE_ID,
)

ID_THAT_REGISTERS_ITSELF = f"trackmania_rl.games.envs:{RACE_ID}"
ENDS_AFTER_TEN_ACTIONS = {"cutoff_no_progress_within_ms": 500}
ALL_IDS = sorted(race_id for race_id in gymnasium.registry if race_id.startswith("TrackMania/"))
KINDS = {
    "floats": {},
    "image": {"overrides": {"image_width_px": 40, "image_height_px": 30, "frames_per_state": 3}},
    "lidar": {"config": "config_files/config_lidar.py"},
    "socket": {"overrides": {"game_transport": "socket"}},
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # infinite bounds; a step on a busy machine takes long


CASES = [*((RACE_ID, kind) for kind in KINDS), (ANALOG_RACE_ID, "image"), (REAL_TIME_RACE_ID, "floats")]


@pytest.fixture(params=CASES, ids="-".join)
def registered(request, tracks):
    """Each environment that Gymnasium knows by a name; the one in real time at twenty times the clock's speed."""
    race_id, kind = request.param
    options = {"overrides": {}} | KINDS[kind]
    if race_id == REAL_TIME_RACE_ID:
        pytest.importorskip("rtgym", reason="python -m pip install rtgym")
        options["overrides"] = {"running_speed": 20.0}
    with contextlib.closing(gymnasium.make(race_id, maps=tracks["lane"], **options)) as env:
        yield env


def test_it_keeps_the_rules_of_gymnasium_torchrl_and_stable_baselines(registered):
    assert {RACE_ID, ANALOG_RACE_ID, REAL_TIME_RACE_ID} == set(ALL_IDS)
    check_env(registered.unwrapped, skip_render_check=True)
    is_tuple = isinstance(registered.observation_space, gymnasium.spaces.Tuple)  # unknown to torchrl and SB3
    flat = FlattenObservation(registered) if is_tuple else registered
    env = GymWrapper(flat)
    check_env_specs(env)
    assert env.rollout(7)["next", "reward"].shape == (7, 1)
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker", reason="python -m pip install stable-baselines3")
    sb3.check_env(flat if is_tuple else registered.unwrapped, skip_render_check=True)


def test_it_keeps_gymnasiums_rules_of_rendering_and_closing(tracks):
    check_env(gymnasium.make(RACE_ID, maps=tracks["lane"], render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize("race_id", [RACE_ID, ANALOG_RACE_ID])
@pytest.mark.parametrize("kind", ["floats", "image"])
def test_torchrl_takes_many_games_and_begins_their_next_races(tracks, race_id, kind):
    overrides = ENDS_AFTER_TEN_ACTIONS | KINDS[kind].get("overrides", {})
    envs = gymnasium.make_vec(race_id, 2, maps=tracks["lane"], overrides=overrides, autoreset_mode="DISABLED")
    with contextlib.closing(envs):
        check_env_specs(wrapped := GymWrapper(envs))
        rollout = wrapped.rollout(25, break_when_any_done=False)
        assert rollout["next", "reward"].shape == (2, 25, 1)
        done = rollout["next", "done"][..., 0]
        assert done.nonzero().tolist() == [[game, step] for game in range(2) for step in (9, 19)]
        floats = rollout["floats" if kind == "image" else "observation"]
        assert (floats[:, 10] == floats[:, 0]).all(), "the start of the next race"


@pytest.mark.parametrize("vectorization_mode", ["sync", "async"])
def test_gymnasium_makes_several_of_one(tracks, vectorization_mode):
    envs = gymnasium.make_vec(
        ID_THAT_REGISTERS_ITSELF, 2, vectorization_mode, maps=tracks["lane"], overrides=ENDS_AFTER_TEN_ACTIONS
    )
    with contextlib.closing(envs):
        observations, infos = envs.reset(seed=0)
        assert observations.shape == (2, 184)
        for _ in range(10):
            *_, truncated, infos = envs.step(np.zeros(2, dtype=np.int64))
        assert truncated.all()
        assert list(infos["cutoff_reason"]) == ["no_progress"] * 2


def test_a_limit_of_steps_truncates_one_game_and_many_alike(tracks):
    one = gymnasium.make(RACE_ID, maps=tracks["lane"], max_episode_steps=4)
    many = gymnasium.make_vec(RACE_ID, num_envs=2, maps=tracks["lane"], max_episode_steps=4)
    with contextlib.closing(one), contextlib.closing(many):
        one.reset()
        many.reset()
        for step in range(1, 5):
            assert one.step(0)[2:4] == (False, step == 4)
            _, _, terminated, truncated, _ = many.step([0, 0])
            assert (terminated.tolist(), truncated.tolist()) == ([False] * 2, [step == 4] * 2)
