"""Base of all rollout sinks: the room that each game holds, waits with heartbeats, and waiting times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.protocols import WAIT_FOREVER_S, RolloutSink

Got = TypeVar("Got")

LOOK_EVERY_S: Final = 0.5
"""Interval of heartbeats, and of tests for the run's end, during a wait."""


@dataclass
class Room:
    """Memory for the frames of a race, (longest race's states, 1, H, W)."""

    frames: npt.NDArray[np.uint8]


ARoom = TypeVar("ARoom", bound=Room)


class BaseSink(RolloutSink, Generic[ARoom]):
    """`RolloutSink` but for turns and for the methods that raise `NotImplementedError`.

    Args:
        n_games: games of the collector.
        heartbeat: of the collector's process.
    """

    def __init__(self, n_games: int, heartbeat: Heartbeat) -> None:
        self.waited_s = 0.0
        self._n_games = n_games
        self._heartbeat = heartbeat
        self._held: dict[int, ARoom] = {}
        self._waited_until_last_put_s = 0.0
        self._last_put_s: float | None = None
        self._lock = threading.RLock()

    @override
    def acquire_frames(self, game: int, timeout_s: float = WAIT_FOREVER_S) -> npt.NDArray[np.uint8] | None:
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

    @override
    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        if game not in self._held:
            raise ValueError(f"game {game} holds no room: acquire_frames comes before each put")
        packed = self._pack(self._held[game], rollout_results, end_race_stats)
        with self._lock:
            now_s = time.monotonic()
            waited_s, elapsed_s = self.waited_s - self._waited_until_last_put_s, now_s - (self._last_put_s or now_s)
            self._waited_until_last_put_s, self._last_put_s = self.waited_s, now_s
            self._send(self._held.pop(game), packed, waited_s, elapsed_s)

    @override
    def beat(self) -> None:
        self._heartbeat.beat()

    @override
    def close(self) -> None:
        self._held.clear()

    @property
    def _run_ends(self) -> bool:
        raise NotImplementedError

    def _take_room(self, timeout_s: float) -> ARoom | None:
        raise NotImplementedError

    def _pack(self, room: ARoom, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> Any:
        """Write a race to where the learner reads it."""
        raise NotImplementedError

    def _send(self, room: ARoom, packed: Any, waited_s: float, elapsed_s: float) -> None:
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
