"""`Rollouts` without pickling a frame: arrays in shared memory, a small header in a pipe.

The learner owns one *set* for each collector: a few shared-memory slots, a pipe of headers and a count of free slots.
A collector takes a free slot, lets the race's frames be written straight into it, and puts the race; the learner is
given numpy views of the slot, copies what it keeps into the replay memory, and releases the slot. With no free slot the
collector waits, so memory stays bounded whatever the learner does, and both sides measure how long they wait. A
collector that drives several games at once has one more slot for each further game, so that no game waits for
another's.

A collector may be killed at any moment. Nothing it can leave locked or half-written is shared with another one: each
set has its own pipe and semaphores, a header is small enough for a pipe to take it whole, and the set is thrown away
and made new when the collector is started again. The learner waits for all pipes at once, so there is nothing beside
the header that could be missing. Only the learner creates and unlinks memory.

The start method is `spawn`: a `SharedRolloutSink` travels as an argument of the collector's `Process`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import numpy.typing as npt

from trackmania_rl.channels.protocols import WAIT_FOREVER_S, ChannelError, ReceivedRollout, SignsOfLife
from trackmania_rl.channels.shared_memory.segments import (
    create_segment,
    describe_segments_of_others,
    remove_leftover_segments,
)
from trackmania_rl.channels.shared_memory.slots import (
    SHARED_MEMORY_FOLDER,
    ArrayInSlot,
    RolloutBounds,
    RolloutSlot,
    available_shared_memory_bytes,
    unmap,
)
from trackmania_rl.channels.shared_memory.stop_flag import StopFlag

LOOK_FOR_THE_END_EVERY_S = 0.5
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
    headers: Connection  # of RolloutHeader: the learner's end
    headers_in: Connection  # the collector's end
    n_free: Any  # Semaphore: how many slots are free
    is_free: Any  # shared array of c_bool, one for each slot
    turn: Any  # Semaphore: a turn to play
    turn_number: Any  # shared c_int64
    n_turns_ended: Any  # shared c_int64
    n_beats: Any  # shared c_int64
    n_waiting: Any  # shared c_int64: games that wait for room, and the collector for its turn
    stop: StopFlag

    def release(self, slot: int) -> None:
        """Give a slot that the learner has read back to the collector."""
        self.is_free[slot] = True
        self.n_free.release()


class SharedRolloutSink:
    """A collector's end; see `RolloutSink`. `SharedRolloutSource.open_collector` makes it."""

    def __init__(self, shared: _CollectorSet) -> None:
        self._shared = shared
        self._memories: dict[int, SharedMemory] = {}
        self._held: dict[int, RolloutSlot] = {}
        self._lock = threading.Lock()
        self.waited_s = 0.0
        self._waited_until_last_put_s = 0.0
        self._last_put_s: float | None = None

    def __reduce__(self) -> tuple[type[SharedRolloutSink], tuple[_CollectorSet]]:
        return SharedRolloutSink, (self._shared,)  # on its way to the spawned process, it holds nothing yet

    def acquire_frames(self, game: int, timeout_s: float = WAIT_FOREVER_S) -> npt.NDArray[np.uint8] | None:
        """Take a free slot for a game's next race; see `RolloutSink`."""
        began_s = time.monotonic()
        self._last_put_s = self._last_put_s or began_s
        if game not in self._held:
            acquired = self._wait_for_slot(began_s + timeout_s)
            with self._lock:
                self.waited_s += (time.monotonic() - began_s) / self._shared.n_games
                if not acquired:
                    return None
                index = next(i for i, free in enumerate(self._shared.is_free) if free)
                self._shared.is_free[index] = False
                if index not in self._memories:
                    self._memories[index] = SharedMemory(self._shared.memory_names[index])
                self._held[game] = RolloutSlot(index, self._memories[index], self._shared.bounds)
        return self._held[game].frames

    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        """Write a race into its game's slot and tell the learner; see `RolloutSink`."""
        if game not in self._held:
            raise ValueError(f"game {game} holds no room: acquire_frames comes before each put")
        slot = self._held[game]
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
                waited_s=self.waited_s - self._waited_until_last_put_s,
                elapsed_s=now_s - (self._last_put_s or now_s),
            )
            del self._held[game]
            self._waited_until_last_put_s = self.waited_s
            self._last_put_s = now_s
            self._shared.headers_in.send(header)

    def beat(self) -> None:
        """Say that the collector goes on; see `RolloutSink`."""
        self._shared.n_beats.value += 1  # two threads may count one beat for two: it changes all the same

    def await_turn(self) -> int | None:
        """Wait for a turn; see `RolloutSink`."""
        with self._waiting():
            while not self._shared.stop.is_set():
                self.beat()
                if self._shared.turn.acquire(timeout=LOOK_FOR_THE_END_EVERY_S):
                    return int(self._shared.turn_number.value)
        return None

    def end_turn(self) -> None:
        """End it; see `RolloutSink`."""
        self._shared.n_turns_ended.value += 1  # every header of the turn is in its pipe

    def close(self) -> None:
        """Unmap the slots; see `RolloutSink`."""
        self._held.clear()
        for memory in self._memories.values():
            unmap(memory)
        self._memories.clear()

    def _wait_for_slot(self, deadline_s: float) -> bool:
        """Take one off the count of free slots; False if the time is over or the run ends."""
        with self._waiting():
            while not self._shared.stop.is_set():
                self.beat()
                left_s = deadline_s - time.monotonic()
                if self._shared.n_free.acquire(timeout=max(0.0, min(left_s, LOOK_FOR_THE_END_EVERY_S))):
                    return True
                if left_s <= 0:
                    break
        return False

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Tell the learner that there is nothing to expect meanwhile."""
        with self._lock:
            self._shared.n_waiting.value += 1
        try:
            yield
        finally:
            with self._lock:
                self._shared.n_waiting.value -= 1


class SharedRolloutSource:
    """The learner's end, which owns all shared memory; see `RolloutSource`.

    Memory is made when a collector is opened. What killed runs left behind is removed at once.

    Args:
        bounds: size of the largest rollout.
        slots_per_collector: at least 1. With 2, a collector drives into one slot while the learner reads the other.
        games_per_collector: races that a collector drives at the same time, each into a slot of its own. Those beyond
            the first have their slots in addition.
        stop: tells the collectors that the run ends.
    """

    def __init__(
        self, bounds: RolloutBounds, slots_per_collector: int, games_per_collector: int = 1, *, stop: StopFlag
    ) -> None:
        self.left_out: Mapping[str, int] = {}
        self._bounds = bounds
        self._stop = stop
        self._games_per_collector = games_per_collector
        self._slots_per_collector = slots_per_collector + games_per_collector - 1
        self._context: SpawnContext = multiprocessing.get_context("spawn")
        self._sets: dict[int, _CollectorSet] = {}
        self._memories: dict[int, list[SharedMemory]] = {}
        self._n_turns_given: dict[int, int] = {}
        remove_leftover_segments()
        self._available_bytes = available_shared_memory_bytes()
        self.waited_s = 0.0

    def open_collector(self, collector: int) -> SharedRolloutSink:
        """Make a fresh set of slots; see `RolloutSource`."""
        self.close_collector(collector)
        self._require_memory()
        headers, headers_in = self._context.Pipe(duplex=False)
        memories = [create_segment(self._bounds.slot_bytes) for _ in range(self._slots_per_collector)]
        shared = _CollectorSet(
            collector=collector,
            bounds=self._bounds,
            n_games=self._games_per_collector,
            memory_names=tuple(memory.name for memory in memories),
            headers=headers,
            headers_in=headers_in,
            n_free=self._context.Semaphore(self._slots_per_collector),
            is_free=self._context.RawArray(ctypes.c_bool, [True] * self._slots_per_collector),
            turn=self._context.Semaphore(0),
            turn_number=self._context.RawValue(ctypes.c_int64, 0),
            n_turns_ended=self._context.RawValue(ctypes.c_int64, 0),
            n_beats=self._context.RawValue(ctypes.c_int64, 0),
            n_waiting=self._context.RawValue(ctypes.c_int64, 0),
            stop=self._stop,
        )
        self._memories[collector] = memories
        self._sets[collector] = shared
        self._n_turns_given[collector] = 0
        return SharedRolloutSink(shared)

    def close_collector(self, collector: int) -> None:
        """Free a collector's set; see `RolloutSource`."""
        shared = self._sets.pop(collector, None)
        if shared is None:
            return
        shared.headers.close()
        shared.headers_in.close()
        for memory in self._memories.pop(collector):
            memory.unlink()
            unmap(memory)

    def get(self, timeout_s: float) -> ReceivedRollout | None:
        """Take the next rollout; see `RolloutSource`."""
        started_s = time.monotonic()
        try:
            while (rollout := self._take_one()) is None:
                left_s = started_s + timeout_s - time.monotonic()
                if left_s <= 0:
                    break
                self._wait_for_header(left_s)
            return rollout
        finally:
            self.waited_s += time.monotonic() - started_s

    def give_turn(self, collector: int, number: int) -> None:
        """Let a collector play; see `RolloutSource`."""
        if collector in self._sets:
            self._n_turns_given[collector] += 1
            self._sets[collector].turn_number.value = number
            self._sets[collector].turn.release()

    def is_at_turn(self, collector: int) -> bool:
        """Say whether it plays; see `RolloutSource`."""
        shared = self._sets.get(collector)
        return shared is not None and shared.n_turns_ended.value < self._n_turns_given[collector]

    def signs_of_life(self, collector: int) -> SignsOfLife:
        """Look how a collector is; see `RolloutSource`."""
        shared = self._sets[collector]
        return SignsOfLife(shared.n_beats.value, is_waiting=shared.n_waiting.value > 0)

    def close(self) -> None:
        """Free everything; see `RolloutSource`."""
        for collector in tuple(self._sets):
            self.close_collector(collector)

    def _take_one(self) -> ReceivedRollout | None:
        for collector, shared in tuple(self._sets.items()):
            if shared.headers.poll():
                header: RolloutHeader = shared.headers.recv()
                self._sets[collector] = self._sets.pop(collector)  # to the end of the row: every collector has its turn
                return _received(shared, self._memories[collector][header.slot], header)
        return None

    def _wait_for_header(self, timeout_s: float) -> None:
        pipes = [shared.headers for shared in self._sets.values()]
        if pipes:
            wait(pipes, timeout_s)
        else:
            time.sleep(timeout_s)

    def _require_memory(self) -> None:
        """Refuse what does not fit: writing beyond the end of shared memory would kill the collector (SIGBUS)."""
        if self._available_bytes is None:
            return
        needed_bytes = (len(self._sets) + 1) * self._slots_per_collector * self._bounds.slot_bytes
        if needed_bytes > self._available_bytes:
            others = describe_segments_of_others()
            raise ChannelError(
                f"{SHARED_MEMORY_FOLDER} has {self._available_bytes >> 20} MB free; {len(self._sets) + 1} collectors "
                f"with {self._slots_per_collector} rollouts of up to {self._bounds.slot_bytes / 2**20:.1f} MB need "
                f"{(needed_bytes >> 20) + 1} MB. Lower cutoff_race_longer_than_ms, the image size, n_collectors "
                "or games_per_collector, or give the machine more "
                f"(docker run --shm-size=1g){others and f'. {others}'}"
            )


def _received(shared: _CollectorSet, memory: SharedMemory, header: RolloutHeader) -> ReceivedRollout:
    """Make the rollout, its arrays read-only views of its slot."""
    arrays = {entry.name: entry.view(memory) for entry in header.arrays}
    for array in arrays.values():
        array.flags.writeable = False
    texts = {entry.name: entry.view(memory).tobytes().decode() for entry in header.texts}
    return ReceivedRollout(
        shared.collector,
        arrays | header.values,
        header.end_race_stats | texts,
        header.waited_s,
        header.elapsed_s,
        functools.partial(shared.release, header.slot),
    )
