"""Settings and a check of processes, for all tests of games."""

import time

import psutil
import pytest

from trackmania_rl.settings import load_settings


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
        deadline_s = time.monotonic() + 60.0
        while time.monotonic() < deadline_s:
            if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.02)
        return False

    return wait
