"""Both channels to collectors that are actors of a Ray cluster. Only `--cluster` imports it: it needs that extra.

The actor of a collector has both channels in its shared memory (`CollectorEnds`). A thread of the learner calls its
`take` repeatedly: a call brings the news of the run and returns the heartbeat and a race. Ray moves races and weights
through the object stores of the machines, and reports the loss of an actor as an error of the call. Neither `get` nor
`publish` waits for a network.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Unpack, cast

import numpy as np
import ray
import torch
from ray.exceptions import RayError
from torch import Tensor, nn
from typing_extensions import override

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.protocols import (
    NO_WEIGHTS,
    Published,
    ReceivedRollout,
    RolloutSink,
    RolloutSource,
    RunState,
    WeightsKind,
)
from trackmania_rl.channels.shared_memory.rollouts import RolloutBounds, SharedRolloutSource
from trackmania_rl.channels.shared_memory.run_state import SharedRunState
from trackmania_rl.settings import Settings

log = logging.getLogger(__name__)

TAKE_WITHIN_S: Final = 0.25
"""Longest wait of a call for a race, and so the longest way of news to a collector."""
WEIGHTS_EVERY_S: Final = 0.5
WEIGHTS_BYTES_PER_S: Final = 5 << 20
"""Weights are published at most this often, and at most so many bytes a second of each kind."""


@dataclass(frozen=True)
class News:
    """Published state of the run."""

    settings: Settings  # in force
    frames_total: int = 0  # of the run
    stop: bool = False  # whether the run is to end
    weights: Mapping[WeightsKind, tuple[int, Any]] = field(default_factory=dict)  # version, and reference to a vector


@dataclass(frozen=True)
class Taken:
    """Answer of a collector."""

    heartbeat: tuple[float, int]  # time of the last one, and number of waiting threads
    logs: list[logging.LogRecord]  # since the last answer
    rollout: ReceivedRollout | None  # a race, if there is one


class CollectorEnds:
    """Both channels of a collector, in its actor; the collector has `sink` and `run_state`.

    Args:
        bounds: size of the largest rollout.
        n_slots: see `SharedRolloutSource`, likewise the games.
        news: the first.

    Attributes:
        asked_s: time of the learner's last call, by `time.monotonic`.
    """

    def __init__(self, bounds: RolloutBounds, n_slots: int, n_games: int, news: News) -> None:
        weights = {kind: _fetch(vector) for kind, (_, vector) in news.weights.items()}
        self.run_state = SharedRunState(news.settings, weights)
        self._news = news
        self._receive(news)
        self._rollouts = SharedRolloutSource(bounds, n_slots, n_games, stop=self.run_state.stop_flag)
        self.sink = self._rollouts.open_collector(0)
        self.asked_s = time.monotonic()
        self._taken: deque[ReceivedRollout] = deque()
        self._logs: deque[logging.LogRecord] = deque()

    def take(self, news: News | None, n_released: int, within_s: float) -> Taken:
        """Take over news, free the room of released races, and wait for the next race."""
        self.asked_s = time.monotonic()
        for _ in range(n_released):
            self._taken.popleft().release()
        if news is not None:
            self._receive(news)
        rollout = self._rollouts.get(within_s)
        if rollout is not None:
            self._taken.append(rollout)
            rollout = replace(rollout, give_back=None)
        heartbeat = self._rollouts.heartbeat(0)
        return Taken((heartbeat.at_s, heartbeat.n_waiting), self.take_logs(), rollout)

    def send(self, record: logging.LogRecord, /) -> None:
        """Keep a log record for the next `take`."""
        self._logs.append(record)

    def take_logs(self) -> list[logging.LogRecord]:
        """Return the log records that were not taken yet."""
        return [self._logs.popleft() for _ in range(len(self._logs))]

    def _receive(self, news: News) -> None:
        for kind, (version, vector) in news.weights.items():
            if version != self._news.weights[kind][0]:
                self.run_state.weights[kind].write(_fetch(vector))
        settings = None if news.settings == self._news.settings else news.settings
        self.run_state.publish(settings=settings, frames_total=news.frames_total, stop=news.stop)
        self._news = news


def _fetch(vector: Any) -> Tensor:
    return torch.from_numpy(np.array(ray.get(vector)))


class RayRunState(RunState):
    """Learner's end of `RunState`. Its `news` are replaced at each change; weights in them at limited intervals."""

    def __init__(self, settings: Settings, networks: Mapping[WeightsKind, nn.Module]) -> None:
        self._weights_due_s: dict[WeightsKind, float] = {}
        self.news = News(settings)
        self.publish(weights=networks)

    @override
    def publish(self, **values: Unpack[Published]) -> None:
        vectors = dict(self.news.weights)
        for kind, network in (values.get("weights") or {}).items():
            now_s = time.monotonic()
            if now_s >= self._weights_due_s.get(kind, now_s):
                flat = flatten_parameters(network).cpu().numpy()
                self._weights_due_s[kind] = now_s + max(WEIGHTS_EVERY_S, flat.nbytes / WEIGHTS_BYTES_PER_S)
                vectors[kind] = vectors.get(kind, (NO_WEIGHTS, None))[0] + 1, ray.put(flat)
        self.news = News(
            values.get("settings") or self.settings,
            values.get("frames_total") or self.frames_total,
            values.get("stop") or self.stop_requested,
            vectors,
        )

    @property
    @override
    def settings(self) -> Settings:
        return self.news.settings

    @property
    @override
    def frames_total(self) -> int:
        return self.news.frames_total

    @property
    @override
    def stop_requested(self) -> bool:
        return self.news.stop

    @override
    def pull(self) -> bool:
        return False  # the learner's own settings are in force at once

    @override
    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        version, vector = self.news.weights[kind]
        if version != known_version:
            flatten_parameters(network).copy_(_fetch(vector))
        return version


@dataclass
class _Followed:
    """Collector that a thread of the learner follows."""

    actor: Any  # a handle of a `CollectorEnds`
    waiting: deque[ReceivedRollout] = field(default_factory=deque)  # races that have come
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    n_released: int = 0  # races since the last call
    thread: threading.Thread | None = None


class RayRollouts(RolloutSource):
    """Learner's end of `Rollouts`, filled by threads that follow the actors. There are no turns.

    Args:
        start: starts the actor of a collector with the arguments of `CollectorEnds`, and returns its handle.
        bounds: see `SharedRolloutSource`, likewise slots and games.
        run_state: holds the news.
    """

    def __init__(
        self,
        start: Callable[..., Any],
        bounds: RolloutBounds,
        run_state: RayRunState,
        slots_per_collector: int,
        games_per_collector: int,
    ) -> None:
        self.waited_s = 0.0
        self._run_state = run_state
        self._start = functools.partial(start, bounds, slots_per_collector, games_per_collector)
        self._followed: dict[int, _Followed] = {}
        self._changed = threading.Condition()

    @override
    def open_collector(self, collector: int) -> RolloutSink:
        """Start the actor of a collector and return its handle, in place of the sink that is in the actor."""
        news = self._run_state.news
        followed = _Followed(self._start(news))
        with self._changed:
            self._followed[collector] = followed
        followed.thread = threading.Thread(target=self._follow, args=(collector, followed, news), daemon=True)
        followed.thread.start()
        return cast("RolloutSink", followed.actor)

    @override
    def close_collector(self, collector: int) -> None:
        with self._changed:
            self._followed.pop(collector, None)

    @override
    def get(self, timeout_s: float) -> ReceivedRollout | None:
        began_s = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: any(one.waiting for one in self._followed.values()), timeout_s)
            self.waited_s += time.monotonic() - began_s
            for collector, followed in self._followed.items():
                if followed.waiting:
                    self._followed[collector] = self._followed.pop(collector)  # to the end of the row
                    return followed.waiting.popleft()
        return None

    @override
    def give_turn(self, collector: int, number: int) -> None:
        raise NotImplementedError

    @override
    def is_at_turn(self, collector: int) -> bool:
        return False

    @override
    def heartbeat(self, collector: int) -> Heartbeat:
        return self._followed[collector].heartbeat

    @override
    def close(self) -> None:
        with self._changed:
            threads = [followed.thread for followed in self._followed.values()]
            self._followed.clear()
        for thread in threads:
            if thread is not None:
                thread.join(2 * TAKE_WITHIN_S)  # a machine that is cut off does not answer

    def _follow(self, collector: int, followed: _Followed, sent: News) -> None:
        """Take races, heartbeats and log records of a collector until it is closed or its actor is lost."""
        while self._followed.get(collector) is followed:
            with self._changed:
                n_released, followed.n_released = followed.n_released, 0
            news = self._run_state.news
            try:
                taken: Taken = ray.get(
                    followed.actor.take.remote(None if news is sent else news, n_released, TAKE_WITHIN_S)
                )
            except RayError as error:
                log.debug("collector %d: %s", collector, error)
                return
            sent = news
            for record in taken.logs:
                logging.getLogger().handle(record)
            with self._changed:
                followed.heartbeat.at_s, followed.heartbeat.n_waiting = taken.heartbeat
                if taken.rollout is not None:
                    give_back = functools.partial(self._give_back, followed)
                    followed.waiting.append(replace(taken.rollout, collector=collector, give_back=give_back))
                    self._changed.notify_all()

    def _give_back(self, followed: _Followed) -> None:
        with self._changed:
            followed.n_released += 1
