"""The simulated game reads what a hostile client sends: it goes on, serves the next client, and memory stays."""

import subprocess
import sys
import time

import pytest

from .fuzzed_game import SERVED_WITHIN_S, Served, fuzz, is_served


@pytest.fixture(scope="module")
def served(maps_folder):
    running = Served(maps_folder)
    yield running
    running.close()


def test_after_any_stream_a_fresh_client_is_served(served):
    for seed in range(60):
        fuzz(served, seed)
        began_s = time.monotonic()
        assert is_served(served), f"seed {seed}"
        assert time.monotonic() - began_s < SERVED_WITHIN_S, f"seed {seed}"
    assert served.thread.is_alive()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_many_more_streams(served):
    for seed in range(1000, 3000):
        fuzz(served, seed)
        assert is_served(served), f"seed {seed}"


def test_memory_does_not_grow(repository_root, maps_folder):
    command = [sys.executable, "-m", "tests.faults.fuzzed_game", maps_folder]
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200_000
