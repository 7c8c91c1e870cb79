"""What test_shared_rollouts' spawned collectors do; a module of its own, so that they import little."""

import sys
import time

import numpy as np


def make_rollout(seed, n_actions, frames=None):
    """A small race; its arrays follow from the seed. `frames` is where to write the pictures, if not in new memory."""
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (n_actions, 1, 6, 8), dtype=np.uint8)
    if frames is not None:
        frames[:n_actions] = pictures
        pictures = frames[:n_actions]
    results = {
        "frames": pictures,
        "state_float": rng.random((n_actions, 5), dtype=np.float32),
        "actions": rng.integers(0, 3, n_actions),
        "action_was_greedy": rng.random(n_actions) < 0.5,
        "current_zone_idx": np.arange(n_actions + 1),
        "furthest_zone_idx": n_actions,
        "race_time": 50 * n_actions,
    }
    stats = {"race_finished": True, "checkpoint_times_ms": [100, 200], "inputs": "0.00 press up\n" * n_actions}
    return results, stats


def send_races(sink, seeds, n_actions):
    """Sends one race for each seed and reports by its exit code whether torch stayed out."""
    for seed in seeds:
        frames = sink.acquire_frames(0)
        sink.put(0, *make_rollout(seed, n_actions, frames if seed % 2 else None))
    del frames
    sink.close()
    sys.exit(3 if "torch" in sys.modules else 0)


def send_then_hang(sink, seed):
    """Sends one race, takes the next slot and never ends by itself."""
    sink.acquire_frames(0)
    sink.put(0, *make_rollout(seed, 4))
    sink.acquire_frames(0)
    time.sleep(600)
