"""`Rollouts`, the way of races from collectors to the learner, in shared memory.

`RolloutSink` is the collector's end; `remote` has that of collectors on other machines.

The learner opens a sink for each collector, and receives::

    with rollouts.get(timeout_s=60) as race:      # its arrays are valid in here
        memory.extend(race)

The learner creates a `_Link` for each collector: a few slots of memory, and pipes. The collector receives the number of
a free slot, pickles the race into the slot with its arrays as out-of-band buffers, and sends the places of the buffers.
The learner unpickles the race from views of the slot, and returns the slot after copying the race. Without a free slot
the collector waits.

A collector may be killed at any moment without blocking another process: a message enters its pipe whole, no lock is
shared, and a restarted collector gets another link. The memory has no name, so killed processes leave none.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import multiprocessing
import pickle
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.heap import BufferWrapper
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.errors import UserError
from trackmania_rl.processes import PipeEnd
from trackmania_rl.race.race import Race, RaceFacts
from trackmania_rl.race.spaces import Spaces

Got = TypeVar("Got")

ROLLOUT_SLOTS_PER_COLLECTOR: Final = 4
"""Races of one collector that wait for the learner; without a free slot the collector waits."""
WAIT_FOREVER_S: Final = float("inf")
POLL_S: Final = 0.1
"""Timeout of one wait for a race, after which the receiver does its other work."""
WAKE_EVERY_S: Final = 0.5
"""Interval of heartbeats, and of tests for the run's end, while a collector waits."""
SHARED_MEMORY_FOLDER: Final = Path("/dev/shm")
"""Shared memory of Linux; containers often give it 64 MB."""
ALIGNMENT_BYTES: Final = 64
"""Arrays start at multiples of a cache line."""
OTHER_BYTES_PER_ACTION: Final = 512
"""Room for the values of an action beside frame, floats and Q values, and its share of the input script."""
OTHER_BYTES_PER_RACE: Final = 1 << 16
"""Room for values that do not grow with the race, and for alignment."""
SPAWN: Final = multiprocessing.get_context("spawn")


class ChannelError(UserError):
    """Data that does not fit a channel, or a channel that does not fit into memory."""


def make_stop_flag() -> Any:
    """Make the shared flag for the end of the run. A `multiprocessing.Event` has a lock, which dies with its holder."""
    return SPAWN.RawValue(ctypes.c_bool, False)


def frames_shape(max_actions: int, spaces: Spaces) -> tuple[int, int, int, int]:
    """Return the shape of the frames of the longest race."""
    return (max_actions, 1, *spaces.image_size_px)


def _frames_bytes(shape: tuple[int, int, int, int]) -> int:
    return _aligned(math.prod(shape))  # uint8


def slot_bytes(max_actions: int, spaces: Spaces) -> int:
    """Return the size of a slot for the longest race: its frames come first.

    The system provides pages at the first write, so unused length costs nothing.
    """
    bytes_per_action = 4 * (spaces.n_row_floats + spaces.n_values) + OTHER_BYTES_PER_ACTION
    frames_bytes = _frames_bytes(frames_shape(max_actions, spaces))
    return frames_bytes + _aligned((max_actions + 1) * bytes_per_action) + OTHER_BYTES_PER_RACE


@dataclass(frozen=True)
class _Link:
    """Memory and pipes of one collector and the learner; picklable while a process is being spawned."""

    frames_shape: tuple[int, int, int, int]  # of the longest race
    slot_bytes: int
    n_games: int
    memory: BufferWrapper  # all slots
    headers: PipeEnd  # of (slot, places of buffers): the learner's end
    headers_in: PipeEnd  # the collector's end
    free: PipeEnd  # numbers of free slots: the collector's end
    free_in: PipeEnd  # the learner's end
    turns: PipeEnd  # numbers of turns: the collector's end
    turns_in: PipeEnd  # the learner's end
    n_turns_ended: Any  # shared c_int64
    heartbeat: Heartbeat
    stop: Any  # see `make_stop_flag`

    def slot(self, number: int) -> memoryview:
        """Return the memory of a slot."""
        begin = number * self.slot_bytes
        return self.memory.create_memoryview()[begin : begin + self.slot_bytes]

    def release(self, slot: int) -> None:
        """Return a slot to the collector."""
        with contextlib.suppress(OSError):  # the collector is closed
            self.free_in.send(slot)


class RolloutSink(ABC):
    """A collector's end of the way of races to the learner. Each game may use it from its own thread.

    Args:
        n_games: games that use it.
        heartbeat: of the collector.
        stop: see `make_stop_flag`.

    Attributes:
        heartbeat: of the collector; `put` stamps its progress.
        waited_s: total time spent waiting for room, mean of the games.
    """

    def __init__(self, n_games: int, heartbeat: Heartbeat, stop: Any) -> None:
        self.waited_s = 0.0
        self._n_games = n_games
        self.heartbeat = heartbeat
        self._stop = stop
        self._held: dict[int, Any] = {}  # room, by game
        self._waited_until_last_put_s = 0.0
        self._last_put_s: float | None = None
        self._lock = threading.RLock()

    def acquire_frames(self, game: int, timeout_s: float = WAIT_FOREVER_S) -> npt.NDArray[np.uint8] | None:
        """Wait for room, and return an array for frames (longest race's states, 1, H, W).

        Frames written there are not copied: pass `frames[:T]` to `put`. Before `put`, further calls return the same
        array. Return None if the run ends, or after the time-out.
        """
        began_s = time.monotonic()
        self._last_put_s = self._last_put_s or began_s
        if game not in self._held:
            room = self._wait(self._take_room, began_s + timeout_s)
            with self._lock:
                self.waited_s += (time.monotonic() - began_s) / self._n_games
            if room is None:
                return None
            self._held[game] = room
        return self._frames(self._held[game])

    def put(self, game: int, race: Race) -> None:
        """Send a finished race, or a fragment of one, to the learner, with the game's room.

        Raises:
            ChannelError: if the race is too large. The game keeps its room.
            ValueError: if the game holds no room.
        """
        if game not in self._held:
            raise ValueError(f"game {game} holds no slot: acquire_frames comes before each put")
        with self._lock:
            now_s = time.monotonic()
            waited_s = self.waited_s - self._waited_until_last_put_s
            elapsed_s = now_s - (self._last_put_s or now_s)
            self._waited_until_last_put_s = self.waited_s
            self._last_put_s = now_s
        self._send(game, Race(race.columns, race.facts.with_changes(waited_s=waited_s, elapsed_s=elapsed_s)))
        self.heartbeat.progress_at_s = time.monotonic()

    def beat(self) -> None:
        """Send a heartbeat; cheap enough between any two actions. Waits of the sink send their own."""
        self.heartbeat.beat()

    def await_turn(self) -> int | None:
        """Wait for a turn of synchronous sampling and return its number; None if the run ends."""
        raise NotImplementedError

    def end_turn(self) -> None:
        """End the turn, after all its rollouts were put."""
        raise NotImplementedError

    @abstractmethod
    def _take_room(self, timeout_s: float) -> Any | None:
        """Take room for a race; None after the time-out."""

    @abstractmethod
    def _frames(self, room: Any) -> npt.NDArray[np.uint8]:
        """Return the frames' array of room that a game holds."""

    @abstractmethod
    def _send(self, game: int, race: Race) -> None:
        """Send a race, and take the room from the game."""

    def _wait(self, take: Callable[[float], Got | None], deadline_s: float) -> Got | None:
        """Call `take` with time-outs until it returns something; None after the deadline, or if the run ends."""
        self._add_waiting(1)
        try:
            while not self._stop.value:
                self.beat()
                left_s = deadline_s - time.monotonic()
                if (taken := take(max(0.0, min(left_s, WAKE_EVERY_S)))) is not None:
                    return taken
                if left_s <= 0:
                    break
            return None
        finally:
            self._add_waiting(-1)

    def _add_waiting(self, number: int) -> None:
        with self._lock:
            self.heartbeat.n_waiting += number


class SharedRolloutSink(RolloutSink):
    """A collector's end of `Rollouts`, made by `open_collector`."""

    def __init__(self, link: _Link) -> None:
        super().__init__(link.n_games, link.heartbeat, link.stop)
        self._link = link

    def __reduce__(self) -> tuple[type[SharedRolloutSink], tuple[_Link]]:
        return SharedRolloutSink, (self._link,)

    @override
    def await_turn(self) -> int | None:
        turns = self._link.turns
        return self._wait(lambda timeout_s: turns.recv() if turns.poll(timeout_s) else None, WAIT_FOREVER_S)

    @override
    def end_turn(self) -> None:
        self._link.n_turns_ended.value += 1  # every header of the turn is in its pipe

    @override
    def _take_room(self, timeout_s: float) -> int | None:
        if not self._link.free.poll(timeout_s):
            return None
        with self._lock:
            if not self._link.free.poll(0):  # another game was faster
                return None
            return int(self._link.free.recv())

    @override
    def _frames(self, room: int) -> npt.NDArray[np.uint8]:
        return np.ndarray(self._link.frames_shape, dtype=np.uint8, buffer=self._link.slot(room))

    @override
    def _send(self, game: int, race: Race) -> None:
        places = self._write(self._link.slot(self._held[game]), race.columns, race.facts)
        with self._lock:
            self._link.headers_in.send((self._held.pop(game), places))

    def _write(self, slot: memoryview, columns: Mapping[str, Any], facts: RaceFacts) -> list[tuple[int, int]]:
        """Write a race to a slot; return offset and length of the pickle and of each buffer."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps((dict(columns), facts), 5, buffer_callback=buffers.append)
        views = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
        frames_at = np.asarray(slot).ctypes.data
        in_place = [view.nbytes > 0 and np.asarray(view).ctypes.data == frames_at for view in views]
        next_offset = _frames_bytes(self._link.frames_shape) if any(in_place) else 0
        places: list[tuple[int, int]] = []
        for view, is_in_place in zip(views, in_place, strict=True):
            places.append((0 if is_in_place else next_offset, view.nbytes))
            if not is_in_place:
                if next_offset + view.nbytes > len(slot):
                    raise ChannelError(
                        f"a rollout does not fit its shared-memory slot of {len(slot)} bytes, which is made for races "
                        f"of at most {self._link.frames_shape[0]} actions. Was cutoff_race_longer_than_ms raised "
                        "while the run was on? That takes effect at the next start"
                    )
                slot[next_offset : next_offset + view.nbytes] = view
                next_offset += _aligned(view.nbytes)
        return places


class Rollouts:
    """The learner's end: opens a sink for each collector and receives what collectors put.

    Args:
        max_actions: decisions in the longest race.
        spaces: of the run's games.
        slots_per_collector: races of a collector that may be under way or unreleased.
        games_per_collector: races that it drives at the same time; each beyond the first adds a slot.
        stop: see `make_stop_flag`.

    Attributes:
        waited_s: total time spent in `get`.
    """

    def __init__(
        self,
        max_actions: int,
        spaces: Spaces,
        slots_per_collector: int,
        games_per_collector: int = 1,
        *,
        stop: Any,
    ) -> None:
        self.waited_s = 0.0
        self._frames_shape = frames_shape(max_actions, spaces)
        self._slot_bytes = slot_bytes(max_actions, spaces)
        self._stop = stop
        self._games_per_collector = games_per_collector
        self._n_slots = slots_per_collector + games_per_collector - 1
        self._links: dict[int, _Link] = {}
        self._n_turns_given: dict[int, int] = {}
        self._available_bytes = available_shared_memory_bytes()
        self._added: deque[Race] = deque()
        self._adding = threading.Lock()
        self._n_taken = 0
        self._woken, self._wake = SPAWN.Pipe(duplex=False)

    def open_collector(self, collector: int) -> SharedRolloutSink:
        """Make a new sink for a collector whose former process has ended; drop its unreceived rollouts.

        Raises:
            ChannelError: if memory is short.
        """
        self.close_collector(collector)
        self._require_memory()
        headers, headers_in = SPAWN.Pipe(duplex=False)
        free, free_in = SPAWN.Pipe(duplex=False)
        turns, turns_in = SPAWN.Pipe(duplex=False)
        link = _Link(
            frames_shape=self._frames_shape,
            slot_bytes=self._slot_bytes,
            n_games=self._games_per_collector,
            memory=BufferWrapper(self._n_slots * self._slot_bytes),
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

    def close_collector(self, collector: int) -> None:
        """Free the memory of a collector's sink, if there is one. Its rollouts become invalid."""
        if (link := self._links.pop(collector, None)) is not None:
            for pipe in (link.headers, link.headers_in, link.free, link.free_in, link.turns, link.turns_in):
                pipe.close()

    def add(self, race: Race) -> None:
        """Let `get` return a race of a collector on another machine; for other threads."""
        with self._adding:
            self._added.append(race)
            self._wake.send(None)

    def get(self, timeout_s: float) -> Race | None:
        """Return the next rollout, of each collector in turn; None after the time-out."""
        began_s = time.monotonic()
        try:
            while (rollout := self._take_one()) is None:
                left_s = began_s + timeout_s - time.monotonic()
                if left_s <= 0:
                    break
                wait([self._woken, *(link.headers for link in tuple(self._links.values()))], left_s)
            return rollout
        finally:
            self.waited_s += time.monotonic() - began_s

    def give_turn(self, collector: int, number: int) -> None:
        """Start a collector's turn; no effect if the collector is not open."""
        if collector in self._links:
            self._n_turns_given[collector] += 1
            self._links[collector].turns_in.send(number)

    def is_at_turn(self, collector: int) -> bool:
        """Return whether a collector still plays its turn. Afterwards `get` returns its rollouts at once."""
        link = self._links.get(collector)
        return link is not None and link.n_turns_ended.value < self._n_turns_given[collector]

    def close(self) -> None:
        """Free everything, after the collectors have ended."""
        for collector in tuple(self._links):
            self.close_collector(collector)
        for pipe in (self._woken, self._wake):
            pipe.close()

    def _take_one(self) -> Race | None:
        """Take a race of this machine, or one that was added, in turns."""
        self._n_taken += 1
        if self._n_taken % 2:
            return self._take_added() or self._take_local()
        return self._take_local() or self._take_added()

    def _take_added(self) -> Race | None:
        if not self._woken.poll():
            return None
        self._woken.recv()
        return self._added.popleft()

    def _take_local(self) -> Race | None:
        for collector, link in tuple(self._links.items()):
            if link.headers.poll():
                number, places = link.headers.recv()
                self._links[collector] = self._links.pop(collector)  # to the end of the row: collectors take turns
                slot = link.slot(number).toreadonly()
                pickled, *buffers = [slot[offset : offset + n_bytes] for offset, n_bytes in places]
                columns, facts = pickle.loads(pickled, buffers=buffers)
                give_back = functools.partial(link.release, number)
                return Race(columns, facts.with_changes(collector=collector), give_back=give_back)
        return None

    def _require_memory(self) -> None:
        """Raise `ChannelError` without enough memory: a write beyond its end kills the collector (SIGBUS)."""
        if self._available_bytes is None:
            return
        needed_bytes = (len(self._links) + 1) * self._n_slots * self._slot_bytes
        if needed_bytes > self._available_bytes:
            raise ChannelError(
                f"{SHARED_MEMORY_FOLDER} has {self._available_bytes >> 20} MB free; {len(self._links) + 1} collectors "
                f"with {self._n_slots} rollouts of up to {self._slot_bytes / 2**20:.1f} MB need "
                f"{(needed_bytes >> 20) + 1} MB. Lower cutoff_race_longer_than_ms, the image size, n_collectors "
                "or games_per_collector, or give the machine more (docker run --shm-size=1g)"
            )


def available_shared_memory_bytes() -> int | None:
    """Return the free shared memory; None where it has no limit of its own (Windows, macOS)."""
    return shutil.disk_usage(SHARED_MEMORY_FOLDER).free if SHARED_MEMORY_FOLDER.is_dir() else None


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
