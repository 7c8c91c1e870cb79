"""Collectors on many machines, one learner and what lies between them, race by race.

A race is driven, takes its machine's link and then the learner's, is offered and released at the relay, and is trained
on; each of these serves one after the other. Weights go the other way: each machine fetches the newest, and asks again
when it has them. As in the real channel, a collector whose rooms are all taken waits, and nothing else does.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.cluster_scaling.workloads import Machines, Workload

RELAY_CALLS_PER_RACE = 3
"""It is offered, taken and released."""
BEATS_PER_S = 2.0
"""Calls by which a collector tells that it lives."""
SPREAD = 0.3
"""Races take as long as the mean one, give or take this share."""
FULL = 0.97
"""A part that is busy for this share of the time is full."""


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave, over the time after its warm-up.

    Attributes:
        learned_per_s: actions that the learner trained on.
        busy: share of the time by part: "learner", "link in", "link out", "machine's link", "relay", "collectors".
        race_age_s: mean time from a race's end until the learner has trained on it, by Little's law: races between both
            over those that come through each second.
        weights_age_s: mean age of weights when a machine has them, since they were published.
    """

    learned_per_s: float
    busy: dict[str, float]
    race_age_s: float
    weights_age_s: float

    @property
    def full(self) -> tuple[str, ...]:
        """The parts that limit the training; the collectors, if nothing between them and the learner is full."""
        full = tuple(part for part, share in self.busy.items() if part != "collectors" and share >= FULL)
        return full or ("collectors",)


class Server:
    """Serves one after the other."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._free_at_s = 0.0

    def serve(self, now_s: float, needs_s: float) -> float:
        """Return when something that comes now is served."""
        self._free_at_s = max(now_s, self._free_at_s) + needs_s
        self.busy_s += needs_s
        return self._free_at_s


class Simulation:
    """One cluster, from its start.

    Args:
        workload: what is driven and learned.
        machines: where.
        seed: of the races' lengths.
    """

    def __init__(self, workload: Workload, machines: Machines, seed: int = 0) -> None:
        self._workload = workload
        self._machines = machines
        self._rng = np.random.default_rng(seed)
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._learner, self._link_in, self._link_out, self._relay = Server(), Server(), Server(), Server()
        self._machine_links = [Server() for _ in range(machines.n)]
        self._rooms_taken = [0] * machines.n_collectors
        self._waiting_since_s: dict[int, float] = {}
        self._waited_s = 0.0
        self._n_learned = 0
        self._n_on_the_way = 0
        self._on_the_way_race_s = 0.0
        self._weights_ages_s: deque[float] = deque(maxlen=10_000)

    def run(self, seconds: float, warm_up_s: float) -> Outcome:
        """Simulate so long, and as long before as it takes to settle."""
        for collector in range(self._machines.n_collectors):
            self._at(self._rng.uniform(0.0, self._race_s()), lambda c=collector: self._begin_race(c))  # type: ignore[misc]
        for machine in range(self._machines.n):
            self._at(0.0, lambda m=machine: self._fetch_weights(m, -1))  # type: ignore[misc]
        self._advance(warm_up_s)
        before, learned, waited_s = self._busy_s(), self._n_learned, self._waited_so_far_s()
        self._on_the_way_race_s = 0.0
        self._weights_ages_s.clear()
        self._advance(warm_up_s + seconds)
        busy = {part: min(1.0, (after - before[part]) / seconds) for part, after in self._busy_s().items()}
        waited = (self._waited_so_far_s() - waited_s) / seconds / self._machines.n_collectors
        busy["collectors"] = 1.0 - waited
        races = self._n_learned - learned
        weights_age_s = float(np.mean(self._weights_ages_s)) if self._weights_ages_s else 0.0
        race_age_s = self._on_the_way_race_s / max(1, races)
        return Outcome(races * self._workload.rows_per_race / seconds, busy, race_age_s, weights_age_s)

    def _at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), what))

    def _advance(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            when_s, _, what = heapq.heappop(self._events)
            self._pass_until(when_s)
            what()
        self._pass_until(until_s)

    def _pass_until(self, when_s: float) -> None:
        self._on_the_way_race_s += self._n_on_the_way * (when_s - self._now_s)
        self._now_s = when_s

    def _race_s(self) -> float:
        mean_s = self._workload.rows_per_race / self._workload.collector_actions_per_s
        return mean_s * float(self._rng.uniform(1 - SPREAD, 1 + SPREAD))

    def _begin_race(self, collector: int) -> None:
        if self._rooms_taken[collector] == self._workload.rooms:
            self._waiting_since_s[collector] = self._now_s
            return
        self._rooms_taken[collector] += 1
        self._at(self._now_s + self._race_s(), lambda: self._end_race(collector))

    def _end_race(self, collector: int) -> None:
        self._n_on_the_way += 1
        link = self._machine_links[collector // self._machines.collectors_each]
        sent_s = link.serve(self._now_s, self._workload.bytes_per_race / self._machines.link_bytes_per_s)
        self._at(sent_s, lambda: self._arrive(collector))
        self._begin_race(collector)

    def _arrive(self, collector: int) -> None:
        here_s = self._link_in.serve(self._now_s, self._workload.bytes_per_race / self._machines.link_bytes_per_s)
        told_s = self._relay.serve(self._now_s, RELAY_CALLS_PER_RACE / self._machines.relay_calls_per_s)
        self._at(max(here_s, told_s), lambda: self._learn(collector))

    def _learn(self, collector: int) -> None:
        needs_s = self._workload.rows_per_race / self._workload.learner_actions_per_s
        self._at(self._learner.serve(self._now_s, needs_s), lambda: self._release(collector))

    def _release(self, collector: int) -> None:
        self._n_learned += 1
        self._n_on_the_way -= 1
        self._rooms_taken[collector] -= 1
        if collector in self._waiting_since_s:
            self._waited_s += self._now_s - self._waiting_since_s.pop(collector)
            self._begin_race(collector)

    def _fetch_weights(self, machine: int, known: int) -> None:
        """Fetch the newest weights, or wait for newer ones; beats are reckoned here as well, as they never end."""
        every_s = self._workload.publish_every_s
        newest = int(self._now_s / every_s + 1e-9)
        if newest <= known:
            self._at((known + 1) * every_s, lambda: self._fetch_weights(machine, known))
            return
        calls = self._machines.collectors_each * (
            1 + BEATS_PER_S * (every_s if known < 0 else (newest - known) * every_s)
        )
        self._relay.serve(self._now_s, calls / self._machines.relay_calls_per_s)
        here_s = self._link_out.serve(self._now_s, self._workload.weights_bytes / self._machines.link_bytes_per_s)

        def have() -> None:
            self._weights_ages_s.append(self._now_s - newest * every_s)
            self._fetch_weights(machine, newest)

        self._at(here_s, have)

    def _busy_s(self) -> dict[str, float]:
        parts = {
            "learner": self._learner,
            "link in": self._link_in,
            "link out": self._link_out,
            "machine's link": max(self._machine_links, key=lambda link: link.busy_s),
            "relay": self._relay,
        }
        return {name: server.busy_s for name, server in parts.items()}

    def _waited_so_far_s(self) -> float:
        return self._waited_s + sum(self._now_s - since_s for since_s in self._waiting_since_s.values())
