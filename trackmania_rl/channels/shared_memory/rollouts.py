"""`Rollouts` in shared memory: arrays in slots, a small header in a pipe.

The learner creates a `_Link` for each collector: a few slots, a pipe of headers and a count of free slots. A collector
takes a free slot, writes the race into it and sends the header. The learner gets numpy views of the slot and releases
the slot when it has copied what it needs. Without a free slot the collector waits, which bounds the memory.

A collector may be killed at any moment. Each link has its own pipes and semaphores, a header is small enough to enter
its pipe whole, and the link is made anew when the collector is started again. Only the learner creates and unlinks
memory. Processes are spawned, with a `SharedRolloutSink` as an argument.
"""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final

import numpy as np
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.protocols import WAIT_FOREVER_S, ChannelError, ReceivedRollout, RolloutSource
from trackmania_rl.channels.shared_memory.segments import (
    SHARED_MEMORY_FOLDER,
    available_shared_memory_bytes,
    create_segment,
    describe_segments_of_others,
    remove_leftover_segments,
    unmap,
)
from trackmania_rl.channels.shared_memory.slots import ArrayInSlot, RolloutBounds, RolloutSlot
from trackmania_rl.channels.sinks import BaseSink

LONGEST_TEXT_IN_HEADER: Final = 256
"""Longer texts (the input script) are written to the slot. A pipe takes a header of a few kB whole, so that a collector
killed during the send leaves no half header."""
SPAWN: Final = multiprocessing.get_context("spawn")


def make_stop_flag() -> Any:
    """Make the shared flag for the end of the run. A `multiprocessing.Event` has a lock, which dies with its holder."""
    return SPAWN.RawValue(ctypes.c_bool, False)


@dataclass(frozen=True)
class _Link:
    """Everything that one collector and the learner share; picklable while a process is being spawned."""

    collector: int
    bounds: RolloutBounds
    n_games: int
    memory_names: tuple[str, ...]
    headers: Connection  # of (slot, ReceivedRollout with places of arrays): the learner's end
    headers_in: Connection  # the collector's end
    n_free: Any  # Semaphore: number of free slots
    is_free: Any  # shared array of c_bool, one for each slot
    turns: Connection  # numbers of turns: the collector's end
    turns_in: Connection  # the learner's end
    n_turns_ended: Any  # shared c_int64
    heartbeat: Heartbeat
    stop: Any  # see `make_stop_flag`

    def release(self, slot: int) -> None:
        """Return a slot to the collector."""
        self.is_free[slot] = True
        self.n_free.release()


class SharedRolloutSink(BaseSink[RolloutSlot]):
    """Collector's end; `SharedRolloutSource.open_collector` makes it."""

    def __init__(self, link: _Link) -> None:
        super().__init__(link.n_games, link.heartbeat)
        self._link = link
        self._memories: dict[int, SharedMemory] = {}

    def __reduce__(self) -> tuple[type[SharedRolloutSink], tuple[_Link]]:
        return SharedRolloutSink, (self._link,)  # it holds no slot before it reaches the spawned process

    @override
    def await_turn(self) -> int | None:
        return self._wait(self._take_turn, WAIT_FOREVER_S)

    @override
    def end_turn(self) -> None:
        self._link.n_turns_ended.value += 1  # every header of the turn is in its pipe

    @override
    def close(self) -> None:
        super().close()
        for memory in self._memories.values():
            unmap(memory)
        self._memories.clear()

    @property
    def _run_ends(self) -> bool:
        return bool(self._link.stop.value)

    def _take_turn(self, timeout_s: float) -> int | None:
        return self._link.turns.recv() if self._link.turns.poll(timeout_s) else None

    def _take_room(self, timeout_s: float) -> RolloutSlot | None:
        if not self._link.n_free.acquire(timeout=timeout_s):
            return None
        with self._lock:
            index = next(i for i, free in enumerate(self._link.is_free) if free)
            self._link.is_free[index] = False
            if index not in self._memories:
                self._memories[index] = SharedMemory(self._link.memory_names[index])
            return RolloutSlot(index, self._memories[index], self._link.bounds)

    def _pack(self, room: RolloutSlot, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> Any:
        arrays = {name: value for name, value in rollout_results.items() if isinstance(value, np.ndarray)}
        texts = {
            name: np.frombuffer(value.encode(), dtype=np.uint8)
            for name, value in end_race_stats.items()
            if isinstance(value, str) and len(value) > LONGEST_TEXT_IN_HEADER
        }
        places = room.write({**arrays, **{f"text {name}": text for name, text in texts.items()}})
        results = {name: places.get(name, value) for name, value in rollout_results.items()}
        return results, {name: places.get(f"text {name}", value) for name, value in end_race_stats.items()}

    def _send(self, room: RolloutSlot, packed: Any, waited_s: float, elapsed_s: float) -> None:
        results, stats = packed
        rollout = ReceivedRollout(self._link.collector, results, stats, waited_s, elapsed_s)
        self._link.headers_in.send((room.index, rollout))


class SharedRolloutSource(RolloutSource):
    """Learner's end, which owns all shared memory; see `RolloutSource`.

    Segments of killed runs are removed at once. Memory is created when a collector is opened.

    Args:
        bounds: size of the largest rollout.
        slots_per_collector: at least 1. With 2, a collector drives into one slot while the learner reads the other.
        games_per_collector: races that a collector drives at the same time; each beyond the first adds a slot.
        stop: see `make_stop_flag`.
    """

    def __init__(
        self, bounds: RolloutBounds, slots_per_collector: int, games_per_collector: int = 1, *, stop: Any
    ) -> None:
        self.waited_s = 0.0
        self.left_out: Mapping[str, int] = {}
        self._bounds = bounds
        self._stop = stop
        self._games_per_collector = games_per_collector
        self._slots_per_collector = slots_per_collector + games_per_collector - 1
        self._links: dict[int, _Link] = {}
        self._memories: dict[int, list[SharedMemory]] = {}
        self._n_turns_given: dict[int, int] = {}
        remove_leftover_segments()
        self._available_bytes = available_shared_memory_bytes()

    @override
    def open_collector(self, collector: int) -> SharedRolloutSink:
        self.close_collector(collector)
        self._require_memory()
        n_slots = self._slots_per_collector
        headers, headers_in = SPAWN.Pipe(duplex=False)
        turns, turns_in = SPAWN.Pipe(duplex=False)
        memories = [create_segment(self._bounds.slot_bytes) for _ in range(n_slots)]
        link = _Link(
            collector=collector,
            bounds=self._bounds,
            n_games=self._games_per_collector,
            memory_names=tuple(memory.name for memory in memories),
            headers=headers,
            headers_in=headers_in,
            n_free=SPAWN.Semaphore(n_slots),
            is_free=SPAWN.RawArray(ctypes.c_bool, [True] * n_slots),
            turns=turns,
            turns_in=turns_in,
            n_turns_ended=SPAWN.RawValue(ctypes.c_int64, 0),
            heartbeat=SPAWN.RawValue(Heartbeat),
            stop=self._stop,
        )
        self._memories[collector] = memories
        self._links[collector] = link
        self._n_turns_given[collector] = 0
        return SharedRolloutSink(link)

    @override
    def close_collector(self, collector: int) -> None:
        link = self._links.pop(collector, None)
        if link is None:
            return
        for pipe in (link.headers, link.headers_in, link.turns, link.turns_in):
            pipe.close()
        for memory in self._memories.pop(collector):
            memory.unlink()
            unmap(memory)

    @override
    def get(self, timeout_s: float) -> ReceivedRollout | None:
        began_s = time.monotonic()
        try:
            while (rollout := self._take_one()) is None:
                left_s = began_s + timeout_s - time.monotonic()
                if left_s <= 0:
                    break
                if self._links:
                    wait([link.headers for link in self._links.values()], left_s)
                else:
                    time.sleep(left_s)
            return rollout
        finally:
            self.waited_s += time.monotonic() - began_s

    @override
    def give_turn(self, collector: int, number: int) -> None:
        if collector in self._links:
            self._n_turns_given[collector] += 1
            self._links[collector].turns_in.send(number)

    @override
    def is_at_turn(self, collector: int) -> bool:
        link = self._links.get(collector)
        return link is not None and link.n_turns_ended.value < self._n_turns_given[collector]

    @override
    def heartbeat(self, collector: int) -> Heartbeat:
        return self._links[collector].heartbeat

    @override
    def close(self) -> None:
        for collector in tuple(self._links):
            self.close_collector(collector)

    def _take_one(self) -> ReceivedRollout | None:
        for collector, link in tuple(self._links.items()):
            if link.headers.poll():
                slot, rollout = link.headers.recv()
                self._links[collector] = self._links.pop(collector)  # to the end of the row: collectors take turns
                memory = self._memories[collector][slot]
                for name, value in rollout.rollout_results.items():
                    if isinstance(value, ArrayInSlot):
                        rollout.rollout_results[name] = value.view(memory)
                        rollout.rollout_results[name].flags.writeable = False
                for name, value in rollout.end_race_stats.items():
                    if isinstance(value, ArrayInSlot):
                        rollout.end_race_stats[name] = value.view(memory).tobytes().decode()
                rollout.give_back = functools.partial(link.release, slot)
                return rollout
        return None

    def _require_memory(self) -> None:
        """Raise `ChannelError` without enough memory: a write beyond its end kills the collector (SIGBUS)."""
        if self._available_bytes is None:
            return
        needed_bytes = (len(self._links) + 1) * self._slots_per_collector * self._bounds.slot_bytes
        if needed_bytes > self._available_bytes:
            others = describe_segments_of_others()
            raise ChannelError(
                f"{SHARED_MEMORY_FOLDER} has {self._available_bytes >> 20} MB free; {len(self._links) + 1} collectors "
                f"with {self._slots_per_collector} rollouts of up to {self._bounds.slot_bytes / 2**20:.1f} MB need "
                f"{(needed_bytes >> 20) + 1} MB. Lower cutoff_race_longer_than_ms, the image size, n_collectors "
                "or games_per_collector, or give the machine more "
                f"(docker run --shm-size=1g){others and f'. {others}'}"
            )
