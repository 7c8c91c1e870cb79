"""Races to send and to store, and the processes that send them. Imports little, so that the processes start quickly."""

from __future__ import annotations

import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from trackmania_rl.channels.rollouts import RolloutSink
from trackmania_rl.race.race import Race, RaceFacts

N_FLOATS = 184
N_ACTIONS = 12


def random_race(n_frames: int, image_size_px: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return the columns that replay reads, of a race that was cut off, its last frame included."""
    rng = np.random.default_rng(seed)
    return {
        "frames": rng.integers(0, 256, (n_frames, 1, *image_size_px), dtype=np.uint8),
        "state_float": rng.normal(size=(n_frames, N_FLOATS)).astype(np.float32),
        "actions": rng.integers(0, N_ACTIONS, n_frames - 1),
        "action_was_greedy": rng.random(n_frames - 1) < 0.9,
        "meters_advanced_along_centerline": rng.random(n_frames).cumsum(),
    }


def race_of(columns: dict[str, Any]) -> Race:
    """Return columns as a race."""
    n_actions = len(columns["actions"])
    return Race(columns, RaceFacts(map_name="random", is_explo=True, fill_buffer=True, n_actions=n_actions))


def as_lists(race: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return a race as the classic client leaves it: a list entry, and an array of its own, for each state."""
    return {
        name: [step.copy() if isinstance(step, np.ndarray) else step.item() for step in column]
        for name, column in race.items()
    }


def send_through_slots(connection: Connection, sink: RolloutSink, n_frames: int) -> None:
    """Send races through shared memory; each is in its slot before it is asked for."""
    seed = 0
    while True:
        frames = sink.acquire_frames(0)
        assert frames is not None
        race = random_race(n_frames, frames.shape[2:], seed)
        frames[:n_frames] = race["frames"]
        race["frames"] = frames[:n_frames]
        connection.send("ready")
        if not connection.recv():
            break
        sent = race_of(race)
        sent.facts = sent.facts.with_changes(figures={"sent_at_s": time.perf_counter()})
        sink.put(0, sent)
        seed += 1
    del sent, race, frames  # views of the slot


def send_through_queue(connection: Connection, queue: Any, n_frames: int, image_size_px: tuple[int, int]) -> None:
    """Send races as lists through a queue, the classic way; each is made before it is asked for."""
    seed = 0
    while True:
        race: dict[str, Any] = as_lists(random_race(n_frames, image_size_px, seed))
        connection.send("ready")
        if not connection.recv():
            break
        race["sent_at_s"] = time.perf_counter()
        queue.put(race)
        seed += 1
