"""Tracks, settings and planned races for games of both kinds."""

import contextlib

import numpy as np
import pytest
import torch

from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.settings import MapEntry, load_settings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.kept_game import KeptGame
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port

IMAGE_PX = (40, 30)


def make_memory(settings, spaces):
    """Make both sides of a small replay memory for these spaces."""
    return make_buffers(
        settings.replay.model_copy(update={"memory_size_schedule": ((0, 500),)}),
        n_floats=spaces.n_row_floats,
        image_size_px=spaces.image_size_px,
        device="cpu",
        generator=torch.Generator(),
        views=spaces.views,
        action_shape=spaces.action_shape,
    )


@pytest.fixture(scope="session")
def maps_folder(tmp_path_factory, repository_root):
    """`straight`: 60 m with two checkpoints; `gates`: the same with twenty; and the shipped tracks."""
    folder = tmp_path_factory.mktemp("maps")
    np.save(folder / "straight_0.5m.npy", np.arange(0.0, 60.0, 0.5)[:, None] * np.array([0, 0, 1.0]) + (0, 100, 0))
    (folder / "straight.toml").write_text(
        'name = "straight"\nline = "straight_0.5m.npy"\nedge = "wall"\ncheckpoints_m = [17.3, 40.1]\n'
    )
    np.save(folder / "gates_0.5m.npy", np.load(folder / "straight_0.5m.npy"))
    (folder / "gates.toml").write_text(
        f'name = "gates"\nline = "gates_0.5m.npy"\nedge = "wall"\ncheckpoints_m = {[10.0 + 2 * i for i in range(20)]}\n'
    )
    for file in (*repository_root.glob("maps/*.toml"), *repository_root.glob("maps/*.npy")):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(scope="session")
def make_settings(repository_root):
    """`make_settings(has_image, *overrides)`."""

    def make(has_image, *overrides):
        width, height = IMAGE_PX if has_image else (0, 0)
        image = (f"image_width_px={width}", f"image_height_px={height}")
        return load_settings(repository_root / "config_files" / "config.py", (*image, *overrides))

    return make


@pytest.fixture(scope="session")
def entry_of():
    """`entry_of(name)` is a map cycle's line for a track."""

    def make(name):
        return MapEntry(
            map_name=name,
            map_path=f"{name}.toml",
            reference_line=f"{name}_0.5m.npy",
            is_explo=True,
            fill_buffer=True,
        )

    return make


@pytest.fixture(scope="session")
def kept_game(maps_folder):
    """Launcher of a game in a process of its own, which stays for the next test."""
    game = SimulatedGameLauncher(find_free_port(), maps_folder)
    game.start()
    game.wait_until_connectable(60.0)
    yield KeptGame(game.port, maps_folder, locks_folder=maps_folder)
    game.kill()


@pytest.fixture
def open_socket_game(maps_folder, kept_game):
    """`with open_socket_game(settings) as manager`: that game, reached through its socket."""

    def open_game(settings):
        game = settings.game.model_copy(update={"maps_folder": str(maps_folder)})
        return contextlib.closing(GameInstanceManager(game, settings.observation, kept_game))

    return open_game
