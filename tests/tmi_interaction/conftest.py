"""Settings and a check of processes, for all tests of games."""

import contextlib

import psutil
import pytest

from trackmania_rl.processes import is_running
from trackmania_rl.settings import load_settings

from ..keep_games_command import wait_until


@pytest.fixture(scope="session")
def settings(repository_root):
    return load_settings(
        repository_root / "config_files" / "config_tmnf.py", ["image_width_px=16", "image_height_px=8"]
    )


@pytest.fixture(scope="session")
def settings_without_image(repository_root):
    return load_settings(repository_root / "config_files" / "config_tmnf.py", ["image_width_px=0", "image_height_px=0"])


@pytest.fixture(scope="session")
def is_gone():
    """Whether a process ends within 60 s."""

    def wait(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            wait_until(lambda: not is_running(process), within_s=60.0)
        return True

    return wait
