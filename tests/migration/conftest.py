"""A small Linesight run on disk, written by plain torch and pickle as that program writes it."""

import pickle
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.settings import load_settings

from .published_network import PublishedNetwork

SMALL = (
    "image_width_px=19",
    "image_height_px=17",
    "conv_channels=(3, 5)",
    "conv_kernel_sizes=(4, 3)",
    "conv_strides=(2, 1)",
    "float_hidden_dim=11",
    "dense_hidden_dimension=14",
    "iqn_embedding_dimension=9",
    "torch_device=cpu",
    "use_torch_compile=False",
)
STATISTICS = {
    "alltime_min_ms": {"hock": np.int64(54_320), "map5": 118_450, "never finished": 300_000},
    "rolling_mean_ms": {"hock": 55_000.5},
    "cumul_number_frames_played": 1_234_567,
    "cumul_number_memories_generated": np.int32(1_200_000),
    "cumul_training_hours": np.float64(7.5),
    "cumul_number_batches_done": 71_234,
}


def published_network(settings):
    """The published network in the sizes of a configuration, with random weights."""
    layout = ObservationLayout(settings.observation)
    agent = settings.agent
    return PublishedNetwork(
        layout.mean.tolist(),
        layout.std.tolist(),
        channels=agent.conv_channels,
        kernels=agent.conv_kernel_sizes,
        strides=agent.conv_strides,
        image_px=(settings.game.image_height_px, settings.game.image_width_px),
        hidden=agent.float_hidden_dim,
        dense=agent.dense_hidden_dimension,
        cosines=agent.iqn_embedding_dimension,
        n_actions=len(settings.game.inputs),
    )


@dataclass
class WrittenRun:
    """A Linesight run on disk, and its source."""

    folder: Path
    online: PublishedNetwork
    target: PublishedNetwork
    optimizer: torch.optim.RAdam


def make_gradients(network, seed):
    """The same gradients for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-2


def write_run(folder, settings, *, prefix="", n_steps=7, statistics=None):
    folder.mkdir(parents=True)
    torch.manual_seed(5)
    online, target = published_network(settings), published_network(settings)
    optimizer = torch.optim.RAdam(online.parameters(), lr=1e-3, eps=1e-4, betas=(0.9, 0.999))
    for step in range(n_steps):
        make_gradients(online, step)
        optimizer.step()
    for name, network in (("weights1", online), ("weights2", target)):
        torch.save({prefix + key: value for key, value in network.state_dict().items()}, folder / f"{name}.torch")
    torch.save(optimizer.state_dict(), folder / "optimizer1.torch")
    scaler = {"scale": 8192.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
    torch.save({**scaler, "_growth_tracker": 123}, folder / "scaler.torch")
    stored = defaultdict(int, STATISTICS if statistics is None else statistics)
    (folder / "accumulated_stats.joblib").write_bytes(pickle.dumps(stored))
    return WrittenRun(folder, online, target, optimizer)


@pytest.fixture(scope="session")
def full_size_config(repository_root):
    return repository_root / "config_files" / "config_tmnf.py"


@pytest.fixture(scope="session")
def small_settings(full_size_config):
    return load_settings(full_size_config, SMALL)


@pytest.fixture
def small_run(tmp_path, small_settings):
    return write_run(tmp_path / "linesight" / "small", small_settings, prefix="_orig_mod.")


@pytest.fixture
def tool(script_module):
    """`tool("NAME", *words)` runs scripts/tools/NAME.py as from a command line."""
    return lambda name, *words: script_module(f"tools/{name}").main([str(word) for word in words])


@pytest.fixture(scope="session")
def small_words():
    """--set ... for the small sizes."""
    return [word for text in SMALL for word in ("--set", text)]
