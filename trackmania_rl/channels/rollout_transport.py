"""How rollouts reach the learner without pickling a frame: arrays in shared memory, a small header in a queue.

The learner owns one *set* for each collector: a few shared-memory slots, a queue of headers and a count of free slots.
A collector takes a free slot, lets the race's frames be written straight into it, and sends; the learner is given numpy
views of the slot, copies what it keeps into the replay memory, and releases the slot. With no free slot the collector
waits, so memory stays bounded whatever the learner does, and both sides measure how long they wait. A collector that
drives several games at once has one more slot for each further game, so that no game waits for another's.

A collector may be killed at any moment. Nothing it can leave locked or half-written is shared with another one: each
set has its own queue and semaphore, a header is small enough for a pipe to take it whole, and the set is thrown away
and made new when the collector is started again. Only the learner creates and unlinks memory.

The start method is `spawn`: a `RolloutSender` travels as an argument of the collector's `Process`.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any

import numpy as np

from trackmania_rl.channels.rollout_slot import (
    SHARED_MEMORY_FOLDER,
    ArrayInSlot,
    RolloutBounds,
    RolloutSlot,
    RolloutTransportError,
    available_shared_memory_bytes,
    unmap,
)
from trackmania_rl.channels.shared_segments import (
    create_segment,
    describe_segments_of_others,
    remove_leftover_segments,
)

LONGEST_TEXT_IN_HEADER = 256
"""Longer texts (the input script) travel in the slot: a header that stays within a few kB enters its pipe whole, so a
collector killed while sending cannot leave half a header behind."""


@dataclass(frozen=True)
class RolloutHeader:
    """All of a rollout except its arrays and long texts.

    Attributes:
        slot: index of the slot within the collector's set.
        arrays: the arrays of `rollout_results`.
        values: the other entries of `rollout_results`.
        texts: long texts of `end_race_stats`, as UTF-8 bytes in the slot.
        end_race_stats: the other entries of `end_race_stats`.
        waited_s: time the collector's games waited for free slots since its last rollout, on average.
        elapsed_s: time since its last rollout.
    """

    slot: int
    arrays: tuple[ArrayInSlot, ...]
    values: dict[str, Any]
    texts: tuple[ArrayInSlot, ...]
    end_race_stats: dict[str, Any]
    waited_s: float
    elapsed_s: float


@dataclass(frozen=True)
class _CollectorSet:
    """What one collector and the learner share; picklable while a process is being spawned."""

    collector: int
    bounds: RolloutBounds
    n_games: int
    memory_names: tuple[str, ...]
    headers: Any  # multiprocessing.SimpleQueue of RolloutHeader
    announced: Any  # Semaphore, shared by all sets: wakes the learner
    n_free: Any  # Semaphore: how many slots are free
    is_free: Any  # shared array of c_bool, one for each slot


class RolloutSender:
    """The collector's end: made by `RolloutReceiver.open_collector`, handed to the spawned process.

    Each of the collector's games may use it from a thread of its own.

    Attributes:
        waited_s: total time spent waiting for a free slot, the average of the games.
    """

    def __init__(self, shared: _CollectorSet) -> None:
        """Wraps a collector's set; `RolloutReceiver.open_collector` does this."""
        self._shared = shared
        self._memories: dict[int, SharedMemory] = {}
        self._held: dict[int, RolloutSlot] = {}
        self._lock = threading.Lock()
        self.waited_s = 0.0
        self._waited_until_last_send_s = 0.0
        self._last_send_s: float | None = None

    def __reduce__(self) -> tuple[type[RolloutSender], tuple[_CollectorSet]]:
        return RolloutSender, (self._shared,)  # on its way to the spawned process, it holds nothing yet

    def acquire(self, timeout_s: float | None = None, game: int = 0) -> RolloutSlot | None:
        """A free slot for a game's next race; None if there is none within the time. None as time waits for ever.

        A slot that the game acquired but did not send (the race was lost) is handed out again.
        """
        now_s = time.monotonic()
        self._last_send_s = self._last_send_s or now_s
        if game not in self._held:
            acquired = self._shared.n_free.acquire(timeout=timeout_s)
            with self._lock:
                self.waited_s += (time.monotonic() - now_s) / self._shared.n_games
                if not acquired:
                    return None
                index = next(i for i, free in enumerate(self._shared.is_free) if free)
                self._shared.is_free[index] = False
                if index not in self._memories:
                    self._memories[index] = SharedMemory(self._shared.memory_names[index])
                self._held[game] = RolloutSlot(index, self._memories[index], self._shared.bounds)
        self._held[game].clear()
        return self._held[game]

    def send(self, slot: RolloutSlot, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        """Writes a rollout into the slot and tells the learner. The slot belongs to the learner afterwards.

        Args:
            slot: what `acquire` returned.
            rollout_results: arrays and plain values by name.
            end_race_stats: plain values by name.

        Raises:
            RolloutTransportError: if the race is longer than the slot was made for.
            ValueError: if `slot` is not one that is acquired and not sent.
        """
        game = next((game for game, held in tuple(self._held.items()) if held is slot), None)
        if game is None:
            raise ValueError(f"slot {slot.index} was sent already; acquire a slot for each rollout")
        slot.clear()
        long_texts = {
            name: value
            for name, value in end_race_stats.items()
            if isinstance(value, str) and len(value) > LONGEST_TEXT_IN_HEADER
        }
        arrays = tuple(slot.put(k, v) for k, v in rollout_results.items() if isinstance(v, np.ndarray))
        texts = tuple(slot.put(k, np.frombuffer(v.encode(), dtype=np.uint8)) for k, v in long_texts.items())
        with self._lock:
            now_s = time.monotonic()
            header = RolloutHeader(
                slot=slot.index,
                arrays=arrays,
                values={k: v for k, v in rollout_results.items() if not isinstance(v, np.ndarray)},
                texts=texts,
                end_race_stats={k: v for k, v in end_race_stats.items() if k not in long_texts},
                waited_s=self.waited_s - self._waited_until_last_send_s,
                elapsed_s=now_s - (self._last_send_s or now_s),
            )
            del self._held[game]
            self._waited_until_last_send_s = self.waited_s
            self._last_send_s = now_s
            # In this order: SimpleQueue.put returns when the header is in the pipe, so an announced header can be read.
            self._shared.headers.put(header)
            self._shared.announced.release()

    def close(self) -> None:
        """Unmaps the slots; the learner still has what was sent."""
        self._held.clear()
        for memory in self._memories.values():
            unmap(memory)
        self._memories.clear()


class ReceivedRollout:
    """A rollout in the learner: read-only views of a slot, valid until `release`. A context manager that releases.

    Attributes:
        collector: who drove it.
        rollout_results: arrays (read-only views) and plain values by name.
        end_race_stats: plain values by name.
        waited_s: time the collector waited for free slots since its last rollout.
        elapsed_s: time since the collector's last rollout.
    """

    def __init__(self, shared: _CollectorSet, memory: SharedMemory, header: RolloutHeader) -> None:
        """Makes the views; `RolloutReceiver.receive` does this."""
        self.collector = shared.collector
        self.rollout_results: dict[str, Any] = {entry.name: entry.view(memory) for entry in header.arrays}
        for array in self.rollout_results.values():
            array.flags.writeable = False
        self.rollout_results |= header.values
        self.end_race_stats = header.end_race_stats | {
            entry.name: entry.view(memory).tobytes().decode() for entry in header.texts
        }
        self.waited_s = header.waited_s
        self.elapsed_s = header.elapsed_s
        self._shared = shared
        self._slot = header.slot
        self._is_released = False

    def release(self) -> None:
        """Gives the slot back to its collector and lets go of the views; a second call changes nothing."""
        if not self._is_released:
            self._is_released = True
            self.rollout_results = {}
            self._shared.is_free[self._slot] = True
            self._shared.n_free.release()

    def __enter__(self) -> ReceivedRollout:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class RolloutReceiver:
    """The learner's end: owns all shared memory and hands out one `RolloutSender` for each collector.

    Attributes:
        waited_s: total time spent in `receive` waiting for a rollout.
    """

    def __init__(self, bounds: RolloutBounds, slots_per_collector: int, games_per_collector: int = 1) -> None:
        """Prepares for collectors; memory is created when one is opened. What killed runs left behind is removed.

        Args:
            bounds: size of the largest rollout.
            slots_per_collector: at least 1. With 2, a collector drives into one slot while the learner reads the other.
            games_per_collector: races that a collector drives at the same time, each into a slot of its own. Those
                beyond the first have their slots in addition.
        """
        self._bounds = bounds
        self._games_per_collector = games_per_collector
        self._slots_per_collector = slots_per_collector + games_per_collector - 1
        self._context: SpawnContext = multiprocessing.get_context("spawn")
        self._announced = self._context.Semaphore(0)
        self._sets: dict[int, _CollectorSet] = {}
        self._memories: dict[int, list[SharedMemory]] = {}
        remove_leftover_segments()
        self._available_bytes = available_shared_memory_bytes()
        self.waited_s = 0.0

    def open_collector(self, collector: int) -> RolloutSender:
        """Makes a fresh set of slots; rollouts and memory of a previous set of this collector are dropped.

        Call it only when the collector's former process has ended.

        Raises:
            RolloutTransportError: if the machine does not have that much shared memory.
        """
        self.close_collector(collector)
        self._require_memory()
        memories = [create_segment(self._bounds.slot_bytes) for _ in range(self._slots_per_collector)]
        shared = _CollectorSet(
            collector=collector,
            bounds=self._bounds,
            n_games=self._games_per_collector,
            memory_names=tuple(memory.name for memory in memories),
            headers=self._context.SimpleQueue(),
            announced=self._announced,
            n_free=self._context.Semaphore(self._slots_per_collector),
            is_free=self._context.RawArray(ctypes.c_bool, [True] * self._slots_per_collector),
        )
        self._memories[collector] = memories
        self._sets[collector] = shared
        return RolloutSender(shared)

    def close_collector(self, collector: int) -> None:
        """Frees a collector's set, if it has one. Views of its rollouts must not be used any more."""
        shared = self._sets.pop(collector, None)
        if shared is None:
            return
        shared.headers.close()
        for memory in self._memories.pop(collector):
            memory.unlink()
            unmap(memory)

    def receive(self, timeout_s: float) -> ReceivedRollout | None:
        """The next rollout of any collector, in turn; None if none arrives within the time.

        Args:
            timeout_s: 0 only looks.
        """
        started_s = time.monotonic()
        try:
            # An announcement may outlive its header (the collector was closed): then look further.
            while self._announced.acquire(timeout=max(0.0, started_s + timeout_s - time.monotonic())):
                rollout = self._take_one()
                if rollout is not None:
                    return rollout
            return None
        finally:
            self.waited_s += time.monotonic() - started_s

    def close(self) -> None:
        """Frees everything; call it when the collectors have ended."""
        for collector in tuple(self._sets):
            self.close_collector(collector)

    def _take_one(self) -> ReceivedRollout | None:
        for collector, shared in tuple(self._sets.items()):
            if not shared.headers.empty():
                header: RolloutHeader = shared.headers.get()
                self._sets[collector] = self._sets.pop(collector)  # to the end of the row: every collector has its turn
                return ReceivedRollout(shared, self._memories[collector][header.slot], header)
        return None

    def _require_memory(self) -> None:
        """Refuses what does not fit: writing beyond the end of shared memory would kill the collector (SIGBUS)."""
        if self._available_bytes is None:
            return
        needed_bytes = (len(self._sets) + 1) * self._slots_per_collector * self._bounds.slot_bytes
        if needed_bytes > self._available_bytes:
            others = describe_segments_of_others()
            raise RolloutTransportError(
                f"{SHARED_MEMORY_FOLDER} has {self._available_bytes >> 20} MB free; {len(self._sets) + 1} collectors "
                f"with {self._slots_per_collector} rollouts of up to {self._bounds.slot_bytes / 2**20:.1f} MB need "
                f"{(needed_bytes >> 20) + 1} MB. Lower cutoff_race_longer_than_ms, the image size, n_collectors, "
                "games_per_collector or rollout_slots_per_collector, or give the machine more "
                f"(docker run --shm-size=1g){others and f'. {others}'}"
            )
