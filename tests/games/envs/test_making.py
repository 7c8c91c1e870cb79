"""From arguments to environments, and copies of environments."""

import contextlib
import copy
import importlib
import pickle
import subprocess
import sys
import tempfile

import pytest
from gymnasium.utils.env_checker import data_equivalence

from trackmania_rl.errors import UserError
from trackmania_rl.games import envs
from trackmania_rl.games.envs import (
    make_race_env,
    make_race_vector_env,
    make_real_time_race_env,
)

COAST = 3
TRACK = "generated:0.2:7"


def test_an_environment_that_cannot_be_made_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for options, told in (
        ({"maps": [TRACK, "absent"]}, "absent"),
        ({"config": "absent.py"}, r"config = 'absent\.py': there is no such file here, nor in"),
        ({"render_mode": "ansi"}, "there is only rgb_array"),
        ({"reward": "score"}, r"reward = 'score': choose one of progress, trainer"),
        ({"overrides": {"batch_sise": 8}}, "batch_sise is no known setting; did you mean batch_size"),
    ):
        with pytest.raises(UserError, match=told):
            make_race_env(**{"maps": TRACK} | options)
    with pytest.raises(UserError, match="autoreset_mode = 'Sometimes': choose one of NEXT_STEP, DISABLED"):
        make_race_vector_env(2, TRACK, autoreset_mode="Sometimes")
    with pytest.raises(UserError, match="max_episode_steps = 0: it takes 1 step or more"):
        make_race_vector_env(2, TRACK, max_episode_steps=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("needed", "module", "extra", "use"),
    [
        ("rtgym.envs.real_time_env", "real_time", "realtime", lambda: make_real_time_race_env("valley")),
        ("stable_baselines3.common.vec_env", "sb3", "sb3", lambda: importlib.import_module(f"{envs.__name__}.sb3")),
    ],
)
def test_a_missing_package_is_named(monkeypatch, needed, module, extra, use):
    monkeypatch.setitem(sys.modules, needed, None)
    monkeypatch.delitem(sys.modules, f"{envs.__name__}.{module}", raising=False)
    with pytest.raises(UserError, match=rf'pip install "trackmania-rl\[{extra}\]"'):
        use()


def test_importing_the_package_registers_the_environments_without_their_code():
    code = (
        "import sys, gymnasium, trackmania_rl as t; "
        "print([gymnasium.spec(id).id for id in (t.RACE_ID, t.ANALOG_RACE_ID, t.REAL_TIME_RACE_ID)]); "
        "print(sorted({'torch', 'numba', 'trackmania_rl.games'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [
        "['TrackMania/Race-v0', 'TrackMania/RaceAnalog-v0', 'TrackMania/RealTime-v0']",
        "[]",
    ]


def steps(env, actions):
    return [env.step(action) for action in actions]


@pytest.mark.parametrize("has_image", [False, True])
def test_a_copy_and_its_original_go_on_from_the_same_state_by_themselves(make_env, image, wandering, has_image):
    never_copied, env = (make_env("straight", overrides=image if has_image else {}) for _ in range(2))
    begun, rest = wandering[:20], wandering[20:45]
    for one in (never_copied, env):
        one.reset()
        steps(one, begun)
    copied, astray = copy.deepcopy(env), copy.deepcopy(env)
    steps(astray, [COAST] * 10)
    expected = steps(never_copied, rest)
    assert data_equivalence(steps(copied, rest), expected, exact=True)
    assert data_equivalence(steps(env, rest), expected, exact=True)


def test_a_pickled_environment_begins_the_same_race(make_env):
    env = make_env("straight", "lane")
    first = env.reset(seed=2)
    with contextlib.closing(pickle.loads(pickle.dumps(env))) as pickled:
        assert data_equivalence(pickled.reset(seed=2), first, exact=True)
