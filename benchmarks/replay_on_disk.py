"""Replay memory with 160x120 frames, in RAM or on disk: times to store races, draw batches, update, save and resume.

python -m benchmarks.replay_on_disk --rows 500000 --folder measured --storage ram
systemd-run --scope -p MemoryMax=4G python -m benchmarks.replay_on_disk --rows 500000 --folder measured

500,000 transitions take 10 GB of RAM, or 12.5 GB of disk. Batches are drawn evenly: the share of them that comes from
the disk depends on the memory that the system has for its page cache.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from benchmarks.performance.learner_step import LEARNING_RATE, make_network
from benchmarks.performance.measuring import FULL_SIZE
from benchmarks.performance.senders import random_race
from trackmania_rl.agents.iqn import IQNAgent
from trackmania_rl.cli import whole_number
from trackmania_rl.experience_replay.memory import RewardedRollout
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.runs import CheckpointStore, load_checkpoint
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.training.building import make_memory

RACE_STATES = 1000


def main() -> int:
    """Measure a memory that is full and was overwritten by a tenth, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=whole_number(RACE_STATES, 10**8), default=500_000)
    parser.add_argument("--storage", choices=("disk", "ram"), default="disk")
    parser.add_argument("--folder", type=Path, required=True, help="new folder, which is deleted at the end")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True)
    try:
        print(json.dumps({name: round(value, 1) for name, value in measure(asked).items()}, indent=1))
    finally:
        shutil.rmtree(asked.folder)
    return 0


def measure(asked: argparse.Namespace) -> dict[str, float]:
    """Return the figures by name; times in ms."""
    replay = (f"memory_size_schedule=((0, {asked.rows}),)", f"replay_storage={asked.storage}", "torch_device=cpu")
    settings = load_settings(FULL_SIZE, (*replay, "memory_size_start_learn_schedule=((0, 1000),)"))
    spaces = race_spaces(settings)
    reward = RaceReward(settings, spaces, SeedTree(0))
    races = [random_race(RACE_STATES, spaces.image_size_px, seed) for seed in range(3)]
    memory = make_memory(settings, spaces, SeedTree(0))
    memory.keep_in(asked.folder / "replay")
    memory.follow(settings, 0)

    def store(number: int) -> None:
        race = races[number % len(races)]
        memory.extend(RewardedRollout(race, reward(race, settings, 0), settings, 0))

    n_races = asked.rows * 11 // 10 // RACE_STATES
    stored_ms = [timed_ms(functools.partial(store, number)) for number in range(n_races)]
    figures = {"store 1000 rows": median(stored_ms), "store 1000 rows, slowest": max(stored_ms)}
    for batch_size in (64, 512):
        drawn_ms = [timed_ms(functools.partial(memory.sample, batch_size)) for _ in range(100)]
        figures[f"draw {batch_size}, first"], figures[f"draw {batch_size}"] = drawn_ms[0], median(drawn_ms[50:])
    cpu = torch.device("cpu")
    agent = IQNAgent(make_network(settings), settings.agent, device=cpu, seed=0, use_torch_compile=False)
    agent.follow(settings.agent, LEARNING_RATE)
    figures["draw 64 and update"] = median(timed_ms(lambda: agent.update(memory.sample(64))) for _ in range(3))
    if asked.storage == "ram":  # 20 GB more would be needed
        return figures
    store_of, state = CheckpointStore(asked.folder), {"hooks": {"StoreRaces": {"buffers": memory.state_dict()}}}
    figures["first checkpoint"] = timed_ms(lambda: store_of.save(state, 0))
    for number in range(10):
        store(number)
    state["hooks"]["StoreRaces"]["buffers"] = memory.state_dict()
    figures["checkpoint after 10 races"] = timed_ms(lambda: store_of.save(state, 0))
    again = make_memory(settings, spaces, SeedTree(0))
    again.keep_in(asked.folder / "replay")

    def resume() -> None:
        loaded = load_checkpoint(asked.folder)
        assert loaded is not None
        again.load_state_dict(loaded.state["hooks"]["StoreRaces"]["buffers"])

    figures["resume"] = timed_ms(resume)
    assert len(again) == len(memory) == asked.rows
    return figures


def timed_ms(function: Callable[[], object]) -> float:
    """Return the wall time of a call."""
    begin_s = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - begin_s)


if __name__ == "__main__":
    sys.exit(main())
