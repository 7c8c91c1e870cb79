"""Settings, a straight map and a check of processes, for all tests of games."""

import time

import numpy as np
import psutil
import pytest

from trackmania_rl.settings import MapEntry, load_settings

LINE_M = 50


@pytest.fixture(scope="session")
def settings(repository_root):
    return load_settings(
        repository_root / "config_files" / "config_tmnf.py", ["image_width_px=16", "image_height_px=8"]
    )


@pytest.fixture(scope="session")
def settings_without_image(repository_root):
    return load_settings(repository_root / "config_files" / "config_tmnf.py", ["image_width_px=0", "image_height_px=0"])


@pytest.fixture(scope="session")
def maps_folder(tmp_path_factory):
    """A folder with a straight of 50 m for the simulated game."""
    folder = tmp_path_factory.mktemp("maps")
    np.save(folder / "straight.npy", np.arange(0, LINE_M, 0.5)[:, None] * np.array([0.0, 0.0, 1.0]) + (0, 100, 0))
    return folder


@pytest.fixture(scope="session")
def straight():
    return MapEntry(
        map_name="straight", map_path="straight.npy", reference_line="straight.npy", is_explo=True, fill_buffer=True
    )


@pytest.fixture(scope="session")
def is_gone():
    """Whether a process ends within 60 s."""

    def wait(pid):
        deadline_s = time.monotonic() + 60.0
        while time.monotonic() < deadline_s:
            if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.02)
        return False

    return wait
