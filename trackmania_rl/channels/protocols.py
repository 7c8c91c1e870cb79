"""The two channels between collectors and learner: `Rollouts` one way, `RunState` the other.

Other modules use these classes only. `shared_memory` implements them between processes and threads of one machine,
`over_ray` between machines.

The learner opens a sink for each collector, publishes, and receives::

    with channels.rollouts.get(timeout_s=60) as rollout:      # its arrays are valid in here
        memory.extend(rollout.rollout_results)

A collector drives until the run ends::

    while (frames := sink.acquire_frames(game)) is not None:
        run_state.pull()
        version = run_state.pull_weights("exploration", network, version)
        sink.put(game, *play(frames, run_state.settings, run_state.frames_total, sink.beat))

With synchronous sampling the learner calls `give_turn` and receives until no collector `is_at_turn`; a collector plays
from `await_turn` to `end_turn`. A collector may be killed at any moment without blocking any other process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypedDict, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.errors import UserError
from trackmania_rl.race.progress import Fragment, RacePosition
from trackmania_rl.settings import Settings

if TYPE_CHECKING:
    from torch import nn

Got = TypeVar("Got")

WeightsKind = Literal["exploration", "evaluation"]
"""Collectors explore with the online network's weights, and evaluate with averaged ones."""
WEIGHTS_KINDS: Final[tuple[WeightsKind, ...]] = ("exploration", "evaluation")
ROLLOUT_SLOTS_PER_COLLECTOR: Final = 4
"""Races of one collector that wait for the learner; without a free slot the collector waits."""
NO_WEIGHTS: Final = 0
"""Version of a network that has pulled no weights yet."""
WAIT_FOREVER_S: Final = float("inf")
LOOK_EVERY_S: Final = 0.5
"""Interval of heartbeats, and of tests for the run's end, while a collector waits."""


class ChannelError(UserError):
    """Data that does not fit a channel, or a channel that does not fit into memory."""


@dataclass
class ReceivedRollout:
    """Finished race, or a fragment of one, as the learner receives it; a context manager that releases it.

    Attributes:
        rollout_results: arrays and plain values by name; the arrays are read-only and valid until `release`.
        waited_s: mean time that the collector's games waited for room since its last rollout.
        elapsed_s: time since the collector's last rollout.
        give_back: called once by `release`, to free the arrays' memory.
    """

    collector: int
    rollout_results: dict[str, Any]
    end_race_stats: dict[str, Any]
    waited_s: float = 0.0
    elapsed_s: float = 0.0
    give_back: Callable[[], None] | None = None

    @property
    def fragment(self) -> Fragment | None:
        """New part of the race; None for a whole race."""
        return self.end_race_stats.get("fragment")

    @property
    def position(self) -> RacePosition | None:
        """Position among the races of its collector; None for a race outside the map cycle."""
        return self.end_race_stats.get("position")

    @property
    def weights_age_s(self) -> float | None:
        """Age of the weights that drove the race; None without weights."""
        return self.end_race_stats.get("weights_age_s")

    @property
    def is_under_way(self) -> bool:
        """Return whether this is a fragment of a race that continues."""
        return self.fragment is not None and not self.fragment.is_last

    def release(self) -> None:
        """Drop the arrays and free their memory. A second call has no effect."""
        give_back, self.give_back = self.give_back, None
        if give_back is not None:
            self.rollout_results = {}
            give_back()

    def __enter__(self) -> ReceivedRollout:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass
class Room:
    """Memory for one race's frames, (longest race's states, 1, H, W), and its index among the collector's rooms."""

    frames: npt.NDArray[np.uint8]
    number: int


class RolloutSink:
    """A collector's end of `Rollouts`. Each game may use it from its own thread.

    A subclass implements the methods that raise `NotImplementedError`.

    Args:
        n_games: games of the collector.
        heartbeat: of the collector's process.

    Attributes:
        waited_s: total time spent waiting for room, mean of the games.
    """

    def __init__(self, n_games: int, heartbeat: Heartbeat) -> None:
        self.waited_s = 0.0
        self._n_games = n_games
        self._heartbeat = heartbeat
        self._held: dict[int, Room] = {}
        self._waited_until_last_put_s = 0.0
        self._last_put_s: float | None = None
        self._lock = threading.RLock()

    def acquire_frames(self, game: int, timeout_s: float = WAIT_FOREVER_S) -> npt.NDArray[np.uint8] | None:
        """Wait for a room, and return its array for frames (longest race's states, 1, H, W).

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
        return self._held[game].frames

    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        """Send a finished race to the learner, with the game's room.

        Raises:
            ChannelError: if the race is larger than the channel; the game keeps its room.
            ValueError: if the game holds no room.
        """
        if game not in self._held:
            raise ValueError(f"game {game} holds no room: acquire_frames comes before each put")
        packed = self._pack(self._held[game], rollout_results, end_race_stats)
        with self._lock:
            now_s = time.monotonic()
            waited_s, elapsed_s = self.waited_s - self._waited_until_last_put_s, now_s - (self._last_put_s or now_s)
            self._waited_until_last_put_s, self._last_put_s = self.waited_s, now_s
            self._send(self._held.pop(game), packed, waited_s, elapsed_s)

    def beat(self) -> None:
        """Send a heartbeat; cheap enough between any two actions. Waits of the sink send their own."""
        self._heartbeat.beat()

    def await_turn(self) -> int | None:
        """Wait for a turn and return its number; None if the run ends."""
        return self._wait(self._take_turn, WAIT_FOREVER_S)

    def end_turn(self) -> None:
        """End the turn, after all its rollouts were put."""
        raise NotImplementedError

    @property
    def _run_ends(self) -> bool:
        raise NotImplementedError

    def _take_turn(self, timeout_s: float) -> int | None:
        raise NotImplementedError

    def _take_room(self, timeout_s: float) -> Room | None:
        raise NotImplementedError

    def _pack(self, room: Room, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> Any:
        """Write a race to where the learner reads it."""
        raise NotImplementedError

    def _send(self, room: Room, packed: Any, waited_s: float, elapsed_s: float) -> None:
        raise NotImplementedError

    def _wait(self, take: Callable[[float], Got | None], deadline_s: float) -> Got | None:
        """Call `take` with time-outs until it returns something; None after the deadline, or if the run ends."""
        self._add_waiting(1)
        try:
            while not self._run_ends:
                self.beat()
                left_s = deadline_s - time.monotonic()
                if (taken := take(max(0.0, min(left_s, LOOK_EVERY_S)))) is not None:
                    return taken
                if left_s <= 0:
                    break
            return None
        finally:
            self._add_waiting(-1)

    def _add_waiting(self, number: int) -> None:
        with self._lock:
            self._heartbeat.n_waiting += number


class RolloutSource(Protocol):
    """The learner's end of `Rollouts`: opens a sink for each collector and receives what collectors put.

    Attributes:
        waited_s: total time spent in `get`.
    """

    waited_s: float

    def open_collector(self, collector: int) -> RolloutSink:
        """Make a new sink for a collector whose former process has ended; drop its unreceived rollouts.

        Raises:
            ChannelError: if memory is short.
        """
        ...

    def close_collector(self, collector: int) -> None:
        """Free the memory of a collector's sink, if there is one. Its rollouts become invalid."""
        ...

    def get(self, timeout_s: float) -> ReceivedRollout | None:
        """Return the next rollout, of each collector in turn; None after the time-out."""
        ...

    def give_turn(self, collector: int, number: int) -> None:
        """Start a collector's turn; no effect if the collector is not open. Turns are for one machine."""
        ...

    def is_at_turn(self, collector: int) -> bool:
        """Return whether a collector still plays its turn. Afterwards `get` returns its rollouts at once."""
        ...

    def heartbeat(self, collector: int) -> Heartbeat:
        """Return the heartbeat of an open collector; never waits."""
        ...

    def close(self) -> None:
        """Free everything, after the collectors have ended."""
        ...


class Published(TypedDict, total=False):
    """Arguments of `RunState.publish`. None is the same as no value."""

    weights: Mapping[WeightsKind, nn.Module] | None  # copied
    settings: Settings | None  # the same object again costs nothing; too large ones are logged and left out
    frames_total: int | None  # of the run
    stop: bool  # True is final


class RunState(Protocol):
    """Weights, settings, frame count and stop request of a run: the learner publishes them, collectors pull them.

    Any thread may use it. Only one process publishes.
    """

    @property
    def settings(self) -> Settings:
        """Settings in force at the last `pull`."""
        ...

    @property
    def frames_total(self) -> int:
        """Frames that the whole run has collected; at least as new as the last `pull`."""
        ...

    @property
    def stop_requested(self) -> bool:
        """True once the run is to end; cheap enough between any two actions."""
        ...

    def pull(self) -> bool:
        """Take over new settings; return whether there were any."""
        ...

    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        """Copy weights newer than `known_version` into `network`, on any device; return the version that it has now."""
        ...

    def publish(self, **values: Unpack[Published]) -> None:
        """Publish the given values; the others stay."""
        ...


@dataclass(frozen=True)
class Channels:
    """The learner's ends of both channels of a run."""

    rollouts: RolloutSource
    run_state: RunState
