"""A run folder as training leaves it, whose driver holds the throttle down, and a short curve for it to drive."""

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from trackmania_rl.agents.run_network import make_network
from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.checkpoints import save_checkpoint
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.settings.live import LiveSettings, write_snapshot
from trackmania_rl.telemetry.statistics import TrainingStatistics
from trackmania_rl.training.learner import build_learning

RADIUS_M, LENGTH_M = 80.0, 60.0
FORWARD = 0
FRAMES_TOTAL = 1234
TRAINING_S = 567.5


@pytest.fixture(scope="session")
def maps_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`curve.npy` bends to one side: full throttle along its wall arrives."""
    folder = tmp_path_factory.mktemp("maps with spaces")
    angle = np.arange(0, LENGTH_M, 0.5) / RADIUS_M
    height_m = np.full_like(angle, 100.0)
    np.save(
        folder / "curve.npy", np.stack((RADIUS_M * (1 - np.cos(angle)), height_m, RADIUS_M * np.sin(angle)), axis=1)
    )
    return folder


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, repository_root: Path, maps_folder: Path) -> Path:
    """`save/{run_name}` with a configuration and a checkpoint as the trainer writes it."""
    folder = tmp_path_factory.mktemp("run")
    entry = {"map_name": "bend", "map_path": "curve.npy", "reference_line": "curve.npy"}
    cycle = tuple(entry | {"is_explo": is_explo, "fill_buffer": True} for is_explo in (True, False))
    overrides = [
        *("float_hidden_dim=11", "dense_hidden_dimension=14", "iqn_embedding_dimension=9", "torch_device=cpu"),
        *(f"maps_folder={str(maps_folder)!r}", f"map_cycle={cycle!r}"),
    ]
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", folder / "config", overrides)
    save_checkpoint(folder, _checkpoint_state(LiveSettings(snapshot, load_settings(snapshot))), 0)
    return folder


@pytest.fixture(scope="session")
def run_settings(run_folder: Path) -> Settings:
    return load_settings(run_folder / "config" / "config.py")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _checkpoint_state(live: LiveSettings) -> dict:
    seeds = SeedTree(live.current.run.seed)
    layout = ObservationLayout.from_settings(live.current.observation)
    network = make_network(live.current, layout, seeds)
    with torch.no_grad():
        network.A_head[-1].bias[FORWARD] = 10.0
    learning = build_learning(
        live,
        network,
        layout,
        seeds,
        run_state=LocalRunState(live.current),
        receive=lambda: None,
        should_stop=lambda: True,
        on_race=lambda race: None,
        housekeeping=lambda: None,
    )
    state = learning.trainer.state_dict()
    untrained = make_network(live.current, layout, SeedTree(99)).state_dict()
    state["loss_module"] |= {"online": untrained, "target": untrained}  # only the averaged weights are to drive
    statistics = TrainingStatistics(clock=lambda: TRAINING_S)
    statistics.frames_total = FRAMES_TOTAL
    return {"trainer": state, "statistics": statistics.state_dict()}
