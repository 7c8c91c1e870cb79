"""Both channels within one process: for training without collector processes, notebooks and tests."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.protocols import (
    NO_WEIGHTS,
    Published,
    ReceivedRollout,
    RolloutSink,
    RolloutSource,
    Room,
    RunState,
    WeightsKind,
)
from trackmania_rl.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn


class LocalRunState:
    """`RunState` within one process."""

    def __init__(self, settings: Settings) -> None:
        self._published_settings = self.settings = settings
        self.frames_total = 0
        self.stop_requested = False
        self._weights: dict[WeightsKind, tuple[int, Tensor]] = {}  # version and vector

    def publish(self, **values: Unpack[Published]) -> None:
        """Publish the given values."""
        from trackmania_rl.agents.flat_parameters import flatten_parameters

        for kind, network in (values.get("weights") or {}).items():
            version, _ = self._weights.get(kind, (NO_WEIGHTS, None))
            self.set_weights(kind, version + 1, flatten_parameters(network).clone())
        self._published_settings = values.get("settings") or self._published_settings
        self.frames_total = values.get("frames_total") or self.frames_total
        self.stop_requested |= values.get("stop", False)

    def pull(self) -> bool:
        """Take over published settings."""
        is_new = self.settings is not self._published_settings
        self.settings = self._published_settings
        return is_new

    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        """Copy newer weights."""
        from trackmania_rl.agents.flat_parameters import flatten_parameters

        if kind not in self._weights or self._weights[kind][0] == known_version:
            return known_version
        version, vector = self._weights[kind]
        flatten_parameters(network).copy_(vector)
        return version

    def set_weights(self, kind: WeightsKind, version: int, vector: Tensor) -> None:
        """Publish a vector of weights under a version."""
        self._weights[kind] = version, vector


class LocalRollouts(RolloutSource):
    """`RolloutSource` of collectors that are threads of this process.

    Args:
        frames_shape: of the room for one race, (states of the longest race, 1, H, W).
        run_state: holds the stop request.
        slots_per_collector: races of a collector that may be under way or unreleased.
        games_per_collector: races that it drives at the same time; each beyond the first adds a room.
    """

    def __init__(
        self,
        frames_shape: tuple[int, int, int, int],
        run_state: RunState,
        slots_per_collector: int = 2,
        games_per_collector: int = 1,
    ) -> None:
        self.waited_s = 0.0
        self.run_state = run_state
        self.n_games = games_per_collector
        self.changed = threading.Condition()
        self._frames_shape = frames_shape
        self._n_slots = slots_per_collector
        self._queues: dict[int, Any] = {}  # objects with `waiting` rollouts and a `heartbeat`, by collector

    @override
    def open_collector(self, collector: int) -> RolloutSink:
        n_rooms = self._n_slots + self.n_games - 1
        rooms = [Room(np.empty(self._frames_shape, dtype=np.uint8), number) for number in range(n_rooms)]
        sink = self._queues[collector] = LocalSink(collector, self, rooms)
        return sink

    @override
    def close_collector(self, collector: int) -> None:
        with self.changed:
            self._queues.pop(collector, None)

    @override
    def get(self, timeout_s: float) -> ReceivedRollout | None:
        began_s = time.monotonic()
        with self.changed:
            self.changed.wait_for(lambda: any(queue.waiting for queue in self._queues.values()), timeout_s)
            self.waited_s += time.monotonic() - began_s
            for collector, queue in self._queues.items():
                if queue.waiting:
                    self._queues[collector] = self._queues.pop(collector)  # to the end of the row
                    rollout: ReceivedRollout = queue.waiting.popleft()
                    return rollout
        return None

    @override
    def give_turn(self, collector: int, number: int) -> None:
        with self.changed:
            if collector in self._queues:
                self._queues[collector].turn = number
                self.changed.notify_all()

    @override
    def is_at_turn(self, collector: int) -> bool:
        with self.changed:
            return collector in self._queues and self._queues[collector].turn is not None

    @override
    def heartbeat(self, collector: int) -> Heartbeat:
        heartbeat: Heartbeat = self._queues[collector].heartbeat
        return heartbeat

    @override
    def close(self) -> None:
        with self.changed:
            self._queues.clear()


class LocalSink(RolloutSink):
    """Collector's end of `LocalRollouts`: its `heartbeat`, `waiting` rollouts, and the number of its `turn`."""

    def __init__(self, collector: int, source: LocalRollouts, rooms: list[Room]) -> None:
        self.heartbeat = Heartbeat()
        super().__init__(source.n_games, self.heartbeat)
        self.waiting: deque[ReceivedRollout] = deque()
        self.turn: int | None = None
        self._collector = collector
        self._source = source
        self._free = rooms

    @override
    def end_turn(self) -> None:
        with self._source.changed:
            self.turn = None
            self._source.changed.notify_all()

    @property
    @override
    def _run_ends(self) -> bool:
        return self._source.run_state.stop_requested

    @override
    def _take_turn(self, timeout_s: float) -> int | None:
        with self._source.changed:
            self._source.changed.wait_for(lambda: self.turn is not None, timeout_s)
            return self.turn

    @override
    def _take_room(self, timeout_s: float) -> Room | None:
        with self._source.changed:
            self._source.changed.wait_for(lambda: self._free, timeout_s)
            return self._free.pop() if self._free else None

    @override
    def _pack(self, room: Room, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> Any:
        results = dict(rollout_results)
        for name, value in rollout_results.items():
            if isinstance(value, np.ndarray):
                results[name] = value[...] if value.base is room.frames else value.copy()
                results[name].flags.writeable = False
        return results, dict(end_race_stats)

    @override
    def _send(self, room: Room, packed: Any, waited_s: float, elapsed_s: float) -> None:
        results, stats = packed
        give_back = functools.partial(self._give_back, room)
        with self._source.changed:
            self.waiting.append(ReceivedRollout(self._collector, results, stats, waited_s, elapsed_s, give_back))
            self._source.changed.notify_all()

    def _give_back(self, room: Room) -> None:
        with self._source.changed:
            self._free.append(room)
            self._source.changed.notify_all()
