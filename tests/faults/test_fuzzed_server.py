"""The simulated game reads a hostile client's messages: it goes on, serves the next client, and memory stays."""

import subprocess
import sys

import pytest

from .fuzzed_game import Served, fuzz, is_served


@pytest.fixture(scope="module")
def served(maps_folder):
    running = Served(maps_folder)
    yield running
    running.close()


@pytest.mark.parametrize(
    "seeds",
    [range(40), pytest.param(range(1000, 3000), marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
    ids=["few", "many"],
)
def test_after_any_stream_a_fresh_client_is_served(served, seeds):
    for seed in seeds:
        fuzz(served, seed)
        assert is_served(served), f"seed {seed}"
    assert served.thread.is_alive()


def test_memory_does_not_grow(repository_root, maps_folder):
    command = [sys.executable, "-m", "tests.faults.fuzzed_game", maps_folder]
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200_000
