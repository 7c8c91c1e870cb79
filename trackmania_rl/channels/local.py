"""Both channels within one process: for training without collector processes, notebooks and tests."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trackmania_rl.channels.protocols import WAIT_FOREVER_S, ReceivedRollout, RunStateView, SignsOfLife, WeightsKind
from trackmania_rl.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

LOOK_FOR_THE_END_EVERY_S = 0.5


class LocalRunState:
    """Publisher and view in one object.

    Args:
        settings: those in force.
    """

    def __init__(self, settings: Settings) -> None:
        self._published_settings = self.settings = settings
        self.frames_total = 0
        self.stop_requested = False
        self._weights: dict[WeightsKind, tuple[int, Tensor]] = {}  # version and vector

    def publish(
        self,
        *,
        weights: Mapping[WeightsKind, nn.Module] | None = None,
        settings: Settings | None = None,
        frames_total: int | None = None,
        stop: bool = False,
    ) -> None:
        """Publish what is given; see `RunStatePublisher`."""
        from trackmania_rl.agents.flat_parameters import flatten_parameters

        for kind, network in (weights or {}).items():
            version, _ = self._weights.get(kind, (0, None))
            self._weights[kind] = version + 1, flatten_parameters(network).clone()
        if settings is not None:
            self._published_settings = settings
        if frames_total is not None:
            self.frames_total = frames_total
        self.stop_requested |= stop

    def view(self) -> LocalRunState:
        """Return this object."""
        return self

    def pull(self) -> bool:
        """Take over published settings; see `RunStateView`."""
        is_new = self.settings is not self._published_settings
        self.settings = self._published_settings
        return is_new

    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        """Copy newer weights; see `RunStateView`."""
        from trackmania_rl.agents.flat_parameters import flatten_parameters

        if kind not in self._weights or self._weights[kind][0] == known_version:
            return known_version
        version, vector = self._weights[kind]
        flatten_parameters(network).copy_(vector)
        return version


class LocalRollouts:
    """The learner's end of races that stay in this process; collectors may be threads.

    Args:
        frames_shape: of a collector's room for one race, (states of the longest race, 1, H, W).
        run_state: tells the collectors that the run ends.
        slots_per_collector: races that a collector may have under way and put before it waits.
        games_per_collector: races that it drives at the same time; those beyond the first have rooms in addition.
    """

    def __init__(
        self,
        frames_shape: tuple[int, int, int, int],
        run_state: RunStateView,
        slots_per_collector: int = 2,
        games_per_collector: int = 1,
    ) -> None:
        self.waited_s = 0.0
        self.left_out: Mapping[str, int] = {}
        self.run_state = run_state
        self.n_games = games_per_collector
        self.changed = threading.Condition()
        self._frames_shape = frames_shape
        self._n_rooms = slots_per_collector + games_per_collector - 1
        self._sinks: dict[int, LocalSink] = {}

    def open_collector(self, collector: int) -> LocalSink:
        """Make a new sink; see `RolloutSource`."""
        rooms = [np.empty(self._frames_shape, dtype=np.uint8) for _ in range(self._n_rooms)]
        self._sinks[collector] = LocalSink(collector, self, rooms)
        return self._sinks[collector]

    def close_collector(self, collector: int) -> None:
        """Drop what a collector put; see `RolloutSource`."""
        self._sinks.pop(collector, None)

    def get(self, timeout_s: float) -> ReceivedRollout | None:
        """Take the next rollout; see `RolloutSource`."""
        began_s = time.monotonic()
        with self.changed:
            self.changed.wait_for(lambda: any(sink.waiting for sink in self._sinks.values()), timeout_s)
            self.waited_s += time.monotonic() - began_s
            for collector, sink in self._sinks.items():
                if sink.waiting:
                    self._sinks[collector] = self._sinks.pop(collector)  # to the end of the row
                    return sink.waiting.pop(0)
        return None

    def give_turn(self, collector: int, number: int) -> None:
        """Let a collector play; see `RolloutSource`."""
        with self.changed:
            if collector in self._sinks:
                self._sinks[collector].turn = number
                self.changed.notify_all()

    def is_at_turn(self, collector: int) -> bool:
        """Say whether it plays; see `RolloutSource`."""
        with self.changed:
            return collector in self._sinks and self._sinks[collector].turn is not None

    def signs_of_life(self, collector: int) -> SignsOfLife:
        """Look how a collector is; see `RolloutSource`."""
        sink = self._sinks[collector]
        return SignsOfLife(sink.n_beats, is_waiting=sink.n_waiting > 0)

    def close(self) -> None:
        """Drop everything; see `RolloutSource`."""
        self._sinks.clear()


class LocalSink:
    """One collector's end of `LocalRollouts`, which makes it.

    Attributes:
        waited_s: see `RolloutSink`.
        waiting: what was put and not yet received.
        turn: number of the turn that it was given and has not ended.
        n_beats: see `SignsOfLife`.
        n_waiting: games that wait for room, and the collector for its turn.
    """

    def __init__(self, collector: int, source: LocalRollouts, rooms: list[npt.NDArray[np.uint8]]) -> None:
        self.waited_s = 0.0
        self.waiting: list[ReceivedRollout] = []
        self.turn: int | None = None
        self.n_beats = 0
        self.n_waiting = 0
        self._collector = collector
        self._source = source
        self._free = rooms
        self._held: dict[int, npt.NDArray[np.uint8]] = {}
        self._last_put_s: float | None = None
        self._waited_until_last_put_s = 0.0

    def acquire_frames(self, game: int, timeout_s: float = WAIT_FOREVER_S) -> npt.NDArray[np.uint8] | None:
        """Wait for room for a race's frames; see `RolloutSink`."""
        began_s = time.monotonic()
        self._last_put_s = self._last_put_s or began_s
        with self._source.changed:
            if game not in self._held:
                while not self._free and not self._source.run_state.stop_requested:
                    left_s = began_s + timeout_s - time.monotonic()
                    if left_s <= 0:
                        break
                    self._wait(min(left_s, LOOK_FOR_THE_END_EVERY_S))
                self.waited_s += (time.monotonic() - began_s) / self._source.n_games
                if not self._free or self._source.run_state.stop_requested:
                    return None
                self._held[game] = self._free.pop()
            return self._held[game]

    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        """Copy a race, but for frames in the room; see `RolloutSink`."""
        if game not in self._held:
            raise ValueError(f"game {game} holds no room: acquire_frames comes before each put")
        room = self._held[game]
        results = dict(rollout_results)
        for name, value in rollout_results.items():
            if isinstance(value, np.ndarray):
                results[name] = value[...] if value.base is room else value.copy()
                results[name].flags.writeable = False
        with self._source.changed:
            now_s = time.monotonic()
            self.waiting.append(
                ReceivedRollout(
                    self._collector,
                    results,
                    dict(end_race_stats),
                    waited_s=self.waited_s - self._waited_until_last_put_s,
                    elapsed_s=now_s - (self._last_put_s or now_s),
                    give_back=functools.partial(self._give_back, room),
                )
            )
            del self._held[game]
            self._last_put_s, self._waited_until_last_put_s = now_s, self.waited_s
            self._source.changed.notify_all()

    def beat(self) -> None:
        """Say that the collector goes on; see `RolloutSink`."""
        self.n_beats += 1

    def await_turn(self) -> int | None:
        """Wait for a turn; see `RolloutSink`."""
        with self._source.changed:
            while self.turn is None and not self._source.run_state.stop_requested:
                self._wait(LOOK_FOR_THE_END_EVERY_S)
            return None if self._source.run_state.stop_requested else self.turn

    def end_turn(self) -> None:
        """End it; see `RolloutSink`."""
        with self._source.changed:
            self.turn = None
            self._source.changed.notify_all()

    def close(self) -> None:
        """Let go of the rooms; see `RolloutSink`."""
        self._held.clear()

    def _wait(self, seconds: float) -> None:
        self.beat()
        self.n_waiting += 1
        self._source.changed.wait(seconds)
        self.n_waiting -= 1

    def _give_back(self, room: npt.NDArray[np.uint8]) -> None:
        with self._source.changed:
            self._free.append(room)
            self._source.changed.notify_all()
