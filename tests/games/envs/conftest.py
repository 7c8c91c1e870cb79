"""Two short tracks whose names lead to files, and environments on them that are closed after the test."""

import contextlib

import numpy as np
import pytest

from trackmania_rl.games.envs import make_race_env, make_race_vector_env


@pytest.fixture(scope="session")
def tracks(tmp_path_factory):
    """`straight` (60 m) and `lane` (50 m), walled roads with a checkpoint: their files by their names."""
    folder = tmp_path_factory.mktemp("maps")
    for name, length_m in (("straight", 60.0), ("lane", 50.0)):
        line_m = np.arange(0.0, length_m, 0.5)[:, None] * np.array([0, 0, 1.0]) + (0, 100, 0)
        np.save(folder / f"{name}_0.5m.npy", line_m)
        (folder / f"{name}.toml").write_text(
            f'name = "{name}"\nline = "{name}_0.5m.npy"\nedge = "wall"\ncheckpoints_m = [17.3]\n'
        )
    return {name: str(folder / f"{name}.toml") for name in ("straight", "lane")}


@pytest.fixture
def make_env(tracks):
    """`make_env(*names, **arguments)`; closed after the test."""
    with contextlib.ExitStack() as opened:

        def make(*names, **arguments):
            env = make_race_env([tracks.get(name, name) for name in names], **arguments)
            return opened.enter_context(contextlib.closing(env))

        yield make


@pytest.fixture
def make_envs(tracks):
    """`make_envs(num_envs, *names, **arguments)`; closed after the test."""
    with contextlib.ExitStack() as opened:

        def make(num_envs, *names, **arguments):
            envs = make_race_vector_env(num_envs, [tracks.get(name, name) for name in names], **arguments)
            return opened.enter_context(contextlib.closing(envs))

        yield make


@pytest.fixture
def wandering():
    """Actions of a race: mostly forward, so that the car arrives, with some of everything."""
    return np.random.default_rng(6).choice([0, 0, 0, 0, 1, 2, 3, 4, 5], 200).tolist()


@pytest.fixture(scope="session")
def image():
    """Settings of an observation with images (3, 30, 40)."""
    return {"image_width_px": 40, "image_height_px": 30, "frames_per_state": 3}
