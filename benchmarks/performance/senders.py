"""The collector's side of `transport`, in processes of its own. Imports little, as collectors' senders do."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.performance.races import as_lists, random_race
from trackmania_rl.channels.protocols import RolloutSink


def send_through_slots(connection: Connection, sink: RolloutSink, n_frames: int) -> None:
    """The collector's process of this project's way: a race is in its slot before it is asked for."""
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
        sink.put(0, race | {"sent_at_s": time.perf_counter()}, {})
        seed += 1
    del race, frames  # views of the slot
    sink.close()


def send_through_queue(connection: Connection, queue: Any, n_frames: int, image_size_px: tuple[int, int]) -> None:
    """The collector's process of the classic way: a race is there as lists before it is asked for."""
    seed = 0
    while True:
        race: dict[str, Any] = as_lists(random_race(n_frames, image_size_px, seed))
        connection.send("ready")
        if not connection.recv():
            break
        race["sent_at_s"] = time.perf_counter()
        queue.put(race)
        seed += 1
