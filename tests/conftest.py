"""Fixtures shared by all tests."""

import os
from pathlib import Path

import hypothesis
import pytest

# Before torch is imported anywhere: two threads that share a busy machine's cores can be ten times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository_root() -> Path:
    """The folder that holds trackmania_rl/, maps/ and config_files/."""
    return REPOSITORY_ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real maps, replays and a real reference line, which the repository does not ship; skips where they are absent."""
    folder = Path(os.environ.get("TRACKMANIA_RL_SHARED_DATA", REPOSITORY_ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real game files are not here ({folder}); set TRACKMANIA_RL_SHARED_DATA to their folder")
    return folder
