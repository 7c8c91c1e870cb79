"""Time of filling the replay memory with a 1,000-frame race and of drawing a batch, beside a list of objects.

    python benchmarks/replay.py [--device cuda]

Both are measured in turns in one run, as only their ratio means anything on another machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from naive_replay import NaiveReplay

from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.buffer_utilities import make_buffers
from trackmania_rl.rewards import EngineeredRewards, race_rewards, state_potentials
from trackmania_rl.settings import load_settings

N_FRAMES = 1_000
MEMORY_SIZE = 4_000
N_FLOATS = 184
MS_PER_ACTION = 50
PLACES = {
    "previous_actions": slice(1, 21),
    "wheel_has_ground_contact": slice(25, 29),
    "velocity_m_s": slice(56, 59),
    "zone_centers_m": slice(62, 182),
}


def random_race(image_size_px: tuple[int, int], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "frames": rng.integers(0, 256, (N_FRAMES, 1, *image_size_px), dtype=np.uint8),
        "state_float": rng.normal(size=(N_FRAMES, N_FLOATS)).astype(np.float32),
        "actions": rng.integers(0, 12, N_FRAMES),
        "action_was_greedy": rng.random(N_FRAMES) < 0.9,
        "meters_advanced_along_centerline": rng.random(N_FRAMES).cumsum(),
    }


def times_in_turns_ms(device: str, repeats: int, **actions: Callable[[], object]) -> dict[str, float]:
    """Median time of each action, taken alternately."""
    times_s: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            start_s = time.perf_counter()
            action()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            times_s[name].append(time.perf_counter() - start_s)
    return {name: 1000 * median(values) for name, values in times_s.items()}


def measure(image_size_px: tuple[int, int], batch_size: int, device: str) -> None:
    config = Path(__file__).resolve().parent.parent / "config_files" / "config.py"
    settings = load_settings(config, [f"memory_size_schedule=((0, {MEMORY_SIZE}),)", f"batch_size={batch_size}"])
    replay = settings.replay
    buffer, buffer_test = make_buffers(
        replay,
        n_floats=N_FLOATS,
        image_size_px=image_size_px,
        device=device,
        generator=torch.Generator(device).manual_seed(1),
        gamma=0.999,
    )
    naive = NaiveReplay(MEMORY_SIZE, replay.n_steps, replay.temporal_mini_race_duration_actions, gamma=0.999)
    races = [random_race(image_size_px, seed) for seed in range(3)]
    turn = iter(range(1_000_000))

    def fill() -> None:
        fill_buffer_from_rollout_with_n_steps_rule(
            buffer,
            buffer_test,
            races[next(turn) % len(races)],
            places=PLACES,
            reward_settings=settings.reward,
            replay_settings=replay,
            ms_per_action=MS_PER_ACTION,
        )

    def fill_naive() -> None:
        race = races[next(turn) % len(races)]
        rewards = race_rewards(
            race["state_float"],
            race["meters_advanced_along_centerline"],
            None,
            places=PLACES,
            settings=settings.reward,
            engineered=EngineeredRewards(),
            ms_per_action=MS_PER_ACTION,
        )
        naive.fill(race, rewards, state_potentials(race["state_float"], places=PLACES, settings=settings.reward))

    for _ in range(2 * MEMORY_SIZE // N_FRAMES):  # from here on, every race overwrites another one
        fill()
        fill_naive()
    for action, repeats, columnar, list_of_objects in (
        (f"fill with {N_FRAMES} frames", 15, fill, fill_naive),
        (f"draw a batch of {batch_size}", 100, buffer.sample, lambda: naive.sample(batch_size, device)),
    ):
        times_ms = times_in_turns_ms(device, repeats, columnar=columnar, naive=list_of_objects)
        height, width = image_size_px
        print(
            f"{width:3} x {height:<3} {action:24} columnar {times_ms['columnar']:7.3f} ms   list of objects "
            f"{times_ms['naive']:7.3f} ms   ratio {times_ms['naive'] / times_ms['columnar']:5.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="where the replay memory lives (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for image_size_px, batch_size in (((0, 0), 64), ((36, 48), 64), ((120, 160), 512)):
        measure(image_size_px, batch_size, arguments.device)


if __name__ == "__main__":
    main()
