"""A run folder as training leaves it, whose driver holds the throttle down, and a short curve for it to drive."""

import socket
import sys

import numpy as np
import pytest
import torch

from tests.training.conftest import make_context, open_channels_here
from trackmania_rl.agents.builder import IQN
from trackmania_rl.drivers.driver_file import write_driver
from trackmania_rl.drivers.loading import pack_run
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.snapshot import LiveSettings, write_snapshot
from trackmania_rl.runs.store import save_checkpoint
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.training.building import begin_run
from trackmania_rl.training.hooks.checkpoints import state_of

RADIUS_M, LENGTH_M = 80.0, 60.0
FORWARD = 0
FRAMES_TOTAL = 1234
TRAINING_S = 567.5


@pytest.fixture(scope="session")
def maps_folder(tmp_path_factory):
    """`curve.npy` bends to one side: full throttle along its wall arrives."""
    folder = tmp_path_factory.mktemp("maps with spaces")
    angle = np.arange(0, LENGTH_M, 0.5) / RADIUS_M
    height_m = np.full_like(angle, 100.0)
    np.save(
        folder / "curve.npy", np.stack((RADIUS_M * (1 - np.cos(angle)), height_m, RADIUS_M * np.sin(angle)), axis=1)
    )
    return folder


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory, repository_root, maps_folder):
    """`save/{run_name}` with a configuration and a checkpoint as the trainer writes it."""
    return _make_run(tmp_path_factory, repository_root, maps_folder)


@pytest.fixture(scope="session")
def run_in_own_environment(tmp_path_factory, repository_root, maps_folder):
    """The same of a run in a Gymnasium environment that renders nothing."""
    return _make_run(tmp_path_factory, repository_root, maps_folder, "games=examples.hovering:HoveringGames")


def _make_run(tmp_path_factory, repository_root, maps_folder, *more):
    folder = tmp_path_factory.mktemp("run")
    entry = {"map_name": "bend", "map_path": "curve.npy", "reference_line": "curve.npy"}
    cycle = tuple(entry | {"is_explo": is_explo, "fill_buffer": True} for is_explo in (True, False))
    overrides = [
        "temporal_mini_race_duration_actions=100",  # for all diagnostics
        *("float_hidden_dim=11", "dense_hidden_dimension=14", "iqn_embedding_dimension=9", "torch_device=cpu"),
        *(f"maps_folder={str(maps_folder)!r}", f"map_cycle={cycle!r}"),
        *more,
    ]
    snapshot = write_snapshot(repository_root / "config_files" / "config.py", folder, overrides)
    save_checkpoint(
        folder,
        _checkpoint_state(LiveSettings(snapshot, load_settings(snapshot)), tmp_path_factory.mktemp("scratch")),
        0,
    )
    return folder


@pytest.fixture(scope="session")
def run_settings(run_folder):
    return load_settings(run_folder / "settings.toml")


@pytest.fixture(scope="session")
def driver_file(run_folder, tmp_path_factory):
    """The driver of that run, as one file."""
    return write_driver(tmp_path_factory.mktemp("drivers") / "tested.driver", pack_run(run_folder))


@pytest.fixture
def script(script_module, monkeypatch, capsys):
    """`script(name, *arguments)` runs a script's `main` in this process; returns exit code, output and errors."""

    def run(name, *arguments):
        module = script_module(name)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        try:
            code = module.main()
        except SystemExit as end:  # argparse
            code = end.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _checkpoint_state(live, scratch):
    """What the trainer saves, but for online and target weights: only the averaged ones are to drive."""
    settings, folder = live.current, RunFolder.create(scratch, "scratch")
    channels = open_channels_here(settings)
    run = make_context(live, SeedTree(settings.run.seed), folder, channels, clock=lambda: TRAINING_S)
    with torch.no_grad():
        run.agent.evaluation_network.A_head[-1].bias[FORWARD] = 10.0
    run.statistics.frames_total = FRAMES_TOTAL
    begin_run(run)
    state = state_of(run)
    untrained = IQN(settings, run.spaces, SeedTree(99)).make_network().state_dict()
    state["agent"] |= {"online": untrained, "target": untrained}
    return state
