"""Drivers as ONNX: the same actions as `act`, computed by onnxruntime."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.drivers.evaluation import TrainedDriver, load_driver
from trackmania_rl.drivers.onnx_export import export_onnx
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings

N_STATES = 1000
CLOSE = 0.02
"""Share of the range of values within which actions may be exchanged: `act` may compute in bfloat16."""


def untrained(config: Path, overrides: tuple[str, ...]) -> TrainedDriver:
    """A driver of the configuration's first network."""
    settings = load_settings(config, overrides)
    seeds = SeedTree(0)
    spaces = make_games_builder(settings).spaces
    builder = make_agent_builder(settings, spaces, seeds)
    actor = builder.make_actor(builder.make_network(), torch.device("cpu"), seeds.rng("actor"))
    return TrainedDriver(settings, spaces, actor, 0, 0.0, config)


def floats_of(driver: TrainedDriver, n_states: int) -> np.ndarray:
    """(n, F) states around the mean, at the beginning of a mini-race."""
    drawn = np.random.default_rng(0).normal(size=(n_states, driver.spaces.n_floats))
    floats = (drawn * driver.spaces.float_std + driver.spaces.float_mean).astype(np.float32)
    floats[:, 0] = 0.0
    return floats


def test_an_exported_driver_decides_as_act_does(repository_root, tmp_path):
    driver = load_driver(repository_root / "drivers" / "generalist.driver", torch_device="cpu")
    export_onnx(driver, tmp_path / "generalist.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "generalist.onnx")
    floats = floats_of(driver, N_STATES)
    [actions] = session.run(None, {"floats": floats})
    acted = np.array([driver.act(state) for state in floats])
    values = driver.actor.act_batch(np.empty((N_STATES, 1, 0, 0), np.uint8), floats).q_values
    loss = values.max(axis=1) - values[np.arange(N_STATES), actions]
    assert actions.dtype == np.int64
    assert (actions == acted).mean() > 0.97
    assert (loss <= CLOSE * np.ptp(values, axis=1)).all()


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        ("config.py", ("image_width_px=80", "image_height_px=60")),
        ("config_ppo.py", ("actions=analog",)),
        ("config_sac.py", ()),
        ("config_discrete_sac.py", ()),
    ],
)
def test_images_and_agents_of_torchrl_are_exported(repository_root, tmp_path, config, overrides):
    driver = untrained(repository_root / "config_files" / config, (*overrides, "autocast_dtype=float32"))
    export_onnx(driver, tmp_path / "x.onnx")
    states = {"floats": floats_of(driver, 50)}
    images = np.empty((50, 1, 0, 0), np.uint8)
    if driver.settings.game.has_image:
        images = np.random.default_rng(1).integers(0, 256, (50, *driver.spaces.image_shape), dtype=np.uint8)
        states["image"] = images
    [actions] = onnxruntime.InferenceSession(tmp_path / "x.onnx").run(None, states)
    np.testing.assert_allclose(actions, driver.actor.act_batch(images, states["floats"]).actions, atol=1e-3)
