"""The simulated game reads what a hostile client sends: it goes on, serves the next client, and memory stays."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "fuzzed_game.py"

spec = importlib.util.spec_from_file_location("fuzzed_game", PROGRAM)
fuzzed_game = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fuzzed_game)


@pytest.fixture(scope="module")
def served(maps_folder):
    running = fuzzed_game.Served(maps_folder)
    yield running
    running.close()


def test_after_any_stream_a_fresh_client_is_served(served):
    for seed in range(60):
        fuzzed_game.fuzz(served, seed)
        began_s = time.monotonic()
        assert fuzzed_game.is_served(served), f"seed {seed}"
        assert time.monotonic() - began_s < fuzzed_game.SERVED_WITHIN_S, f"seed {seed}"
    assert served.thread.is_alive()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_many_more_streams(served):
    for seed in range(1000, 3000):
        fuzzed_game.fuzz(served, seed)
        assert fuzzed_game.is_served(served), f"seed {seed}"


def test_memory_does_not_grow(maps_folder):
    done = subprocess.run([sys.executable, PROGRAM, maps_folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200_000
