"""`Rollouts` in shared memory: arrays in slots, a small header in a pipe.

The learner creates a `_Link` for each collector: a few slots of memory, and pipes. The collector receives the number of
a free slot, pickles the race into the slot with its arrays as out-of-band buffers, and sends the places of the buffers.
The learner unpickles the race from views of the slot, and returns the slot after copying the race. Without a free slot
the collector waits.

A collector may be killed at any moment: a message enters its pipe whole, no lock is shared, and a restarted collector
gets another link. The memory has no name, so killed processes leave none. Processes are spawned.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import pickle
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.heap import BufferWrapper
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.protocols import (
    ChannelError,
    ReceivedRollout,
    RolloutSink,
    RolloutSource,
    Room,
)
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import GameSettings

SHARED_MEMORY_FOLDER: Final = Path("/dev/shm")
"""Shared memory of Linux; containers often give it 64 MB."""
ALIGNMENT_BYTES: Final = 64
"""Arrays start at multiples of a cache line."""
OTHER_BYTES_PER_ACTION: Final = 512
"""Room for the values of an action beside frame, floats and Q values, and its share of the input script."""
OTHER_BYTES_PER_RACE: Final = 1 << 16
"""Room for values that do not grow with the race, and for alignment."""
SPAWN: Final = multiprocessing.get_context("spawn")


def make_stop_flag() -> Any:
    """Make the shared flag for the end of the run. A `multiprocessing.Event` has a lock, which dies with its holder."""
    return SPAWN.RawValue(ctypes.c_bool, False)


@dataclass(frozen=True)
class RolloutBounds:
    """Size of the largest rollout."""

    max_actions: int  # decisions in the longest race
    image_height_px: int  # 0 without images
    image_width_px: int  # 0 without images
    n_floats: int  # floats that one state has of its own
    n_values: int  # entries of one Q-value vector

    @classmethod
    def of_game(cls, game: GameSettings, spaces: Spaces) -> RolloutBounds:
        """Derive the bounds from the longest race that is not cut off."""
        return cls(
            max_actions=game.cutoff_race_longer_than_ms // game.ms_per_action + 2,
            image_height_px=spaces.image_size_px[0],
            image_width_px=spaces.image_size_px[1],
            n_floats=spaces.n_own_floats,
            n_values=spaces.n_values,
        )

    @property
    def frames_shape(self) -> tuple[int, int, int, int]:
        """Shape of the frames of the longest race."""
        return (self.max_actions, 1, self.image_height_px, self.image_width_px)

    @property
    def frames_bytes(self) -> int:
        """Size of these frames (uint8), aligned."""
        return _aligned(self.max_actions * self.image_height_px * self.image_width_px)

    @property
    def slot_bytes(self) -> int:
        """Size of one slot. The system provides pages at the first write, so unused length costs nothing."""
        bytes_per_action = 4 * (self.n_floats + self.n_values) + OTHER_BYTES_PER_ACTION
        return self.frames_bytes + _aligned((self.max_actions + 1) * bytes_per_action) + OTHER_BYTES_PER_RACE


@dataclass(frozen=True)
class _Link:
    """Memory and pipes of one collector and the learner; picklable while a process is being spawned."""

    collector: int
    bounds: RolloutBounds
    n_games: int
    memory: BufferWrapper  # all slots
    headers: Connection  # of (slot, places of buffers, waited_s, elapsed_s): the learner's end
    headers_in: Connection  # the collector's end
    free: Connection  # numbers of free slots: the collector's end
    free_in: Connection  # the learner's end
    turns: Connection  # numbers of turns: the collector's end
    turns_in: Connection  # the learner's end
    n_turns_ended: Any  # shared c_int64
    heartbeat: Heartbeat
    stop: Any  # see `make_stop_flag`

    def slot(self, number: int) -> memoryview:
        """Return the memory of a slot."""
        begin = number * self.bounds.slot_bytes
        return self.memory.create_memoryview()[begin : begin + self.bounds.slot_bytes]

    def release(self, slot: int) -> None:
        """Return a slot to the collector."""
        with contextlib.suppress(OSError):  # the collector is closed
            self.free_in.send(slot)


class SharedRolloutSink(RolloutSink):
    """Collector's end; `SharedRolloutSource.open_collector` makes it."""

    def __init__(self, link: _Link) -> None:
        super().__init__(link.n_games, link.heartbeat)
        self._link = link

    def __reduce__(self) -> tuple[type[SharedRolloutSink], tuple[_Link]]:
        return SharedRolloutSink, (self._link,)

    @override
    def end_turn(self) -> None:
        self._link.n_turns_ended.value += 1  # every header of the turn is in its pipe

    @property
    @override
    def _run_ends(self) -> bool:
        return bool(self._link.stop.value)

    @override
    def _take_turn(self, timeout_s: float) -> int | None:
        return self._link.turns.recv() if self._link.turns.poll(timeout_s) else None

    @override
    def _take_room(self, timeout_s: float) -> Room | None:
        if not self._link.free.poll(timeout_s):
            return None
        with self._lock:
            if not self._link.free.poll(0):  # another game was faster
                return None
            slot = self._link.free.recv()
        bounds = self._link.bounds
        return Room(np.ndarray(bounds.frames_shape, dtype=np.uint8, buffer=self._link.slot(slot)), slot)

    @override
    def _pack(
        self, room: Room, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]
    ) -> list[tuple[int, int]]:
        """Write a race to its slot; return offset and length of the pickle and of each buffer."""
        buffers: list[pickle.PickleBuffer] = []
        race = pickle.dumps((dict(rollout_results), dict(end_race_stats)), 5, buffer_callback=buffers.append)
        views = [memoryview(race), *(buffer.raw() for buffer in buffers)]
        frames_at = room.frames.ctypes.data
        in_place = [view.nbytes > 0 and np.asarray(view).ctypes.data == frames_at for view in views]
        slot, next_offset = self._link.slot(room.number), self._link.bounds.frames_bytes if any(in_place) else 0
        places: list[tuple[int, int]] = []
        for view, is_in_place in zip(views, in_place, strict=True):
            places.append((0 if is_in_place else next_offset, view.nbytes))
            if not is_in_place:
                if next_offset + view.nbytes > len(slot):
                    raise ChannelError(
                        f"a rollout does not fit its shared-memory slot of {len(slot)} bytes, which is made for races "
                        f"of at most {self._link.bounds.max_actions} actions. Was cutoff_race_longer_than_ms raised "
                        "while the run was on? That takes effect at the next start"
                    )
                slot[next_offset : next_offset + view.nbytes] = view
                next_offset += _aligned(view.nbytes)
        return places

    @override
    def _send(self, room: Room, packed: Any, waited_s: float, elapsed_s: float) -> None:
        self._link.headers_in.send((room.number, packed, waited_s, elapsed_s))


class SharedRolloutSource(RolloutSource):
    """Learner's end; see `RolloutSource`. Memory is created when a collector is opened.

    Args:
        bounds: size of the largest rollout.
        slots_per_collector: races of a collector that may be under way or unreleased.
        games_per_collector: races that it drives at the same time; each beyond the first adds a slot.
        stop: see `make_stop_flag`.
    """

    def __init__(
        self, bounds: RolloutBounds, slots_per_collector: int, games_per_collector: int = 1, *, stop: Any
    ) -> None:
        self.waited_s = 0.0
        self._bounds = bounds
        self._stop = stop
        self._games_per_collector = games_per_collector
        self._n_slots = slots_per_collector + games_per_collector - 1
        self._links: dict[int, _Link] = {}
        self._n_turns_given: dict[int, int] = {}
        self._available_bytes = available_shared_memory_bytes()

    @override
    def open_collector(self, collector: int) -> SharedRolloutSink:
        self.close_collector(collector)
        self._require_memory()
        headers, headers_in = SPAWN.Pipe(duplex=False)
        free, free_in = SPAWN.Pipe(duplex=False)
        turns, turns_in = SPAWN.Pipe(duplex=False)
        link = _Link(
            collector=collector,
            bounds=self._bounds,
            n_games=self._games_per_collector,
            memory=BufferWrapper(self._n_slots * self._bounds.slot_bytes),
            headers=headers,
            headers_in=headers_in,
            free=free,
            free_in=free_in,
            turns=turns,
            turns_in=turns_in,
            n_turns_ended=SPAWN.RawValue(ctypes.c_int64, 0),
            heartbeat=SPAWN.RawValue(Heartbeat),
            stop=self._stop,
        )
        for slot in range(self._n_slots):
            link.release(slot)
        self._links[collector] = link
        self._n_turns_given[collector] = 0
        return SharedRolloutSink(link)

    @override
    def close_collector(self, collector: int) -> None:
        if (link := self._links.pop(collector, None)) is not None:
            for pipe in (link.headers, link.headers_in, link.free, link.free_in, link.turns, link.turns_in):
                pipe.close()

    @override
    def get(self, timeout_s: float) -> ReceivedRollout | None:
        began_s = time.monotonic()
        try:
            while (rollout := self._take_one()) is None:
                left_s = began_s + timeout_s - time.monotonic()
                if left_s <= 0:
                    break
                if self._links:
                    wait([link.headers for link in tuple(self._links.values())], left_s)
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
                number, places, waited_s, elapsed_s = link.headers.recv()
                self._links[collector] = self._links.pop(collector)  # to the end of the row: collectors take turns
                slot = link.slot(number).toreadonly()
                race, *buffers = [slot[offset : offset + n_bytes] for offset, n_bytes in places]
                results, stats = pickle.loads(race, buffers=buffers)
                give_back = functools.partial(link.release, number)
                return ReceivedRollout(collector, results, stats, waited_s, elapsed_s, give_back)
        return None

    def _require_memory(self) -> None:
        """Raise `ChannelError` without enough memory: a write beyond its end kills the collector (SIGBUS)."""
        if self._available_bytes is None:
            return
        needed_bytes = (len(self._links) + 1) * self._n_slots * self._bounds.slot_bytes
        if needed_bytes > self._available_bytes:
            raise ChannelError(
                f"{SHARED_MEMORY_FOLDER} has {self._available_bytes >> 20} MB free; {len(self._links) + 1} collectors "
                f"with {self._n_slots} rollouts of up to {self._bounds.slot_bytes / 2**20:.1f} MB need "
                f"{(needed_bytes >> 20) + 1} MB. Lower cutoff_race_longer_than_ms, the image size, n_collectors "
                "or games_per_collector, or give the machine more (docker run --shm-size=1g)"
            )


def available_shared_memory_bytes() -> int | None:
    """Return the free shared memory; None where it has no limit of its own (Windows, macOS)."""
    return shutil.disk_usage(SHARED_MEMORY_FOLDER).free if SHARED_MEMORY_FOLDER.is_dir() else None


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
