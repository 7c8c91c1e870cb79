"""Relay between the learner and collectors on other machines: an actor on the learner's machine.

Races and weights stay in the object stores of their machines; the relay passes references to them, called *parcels*.

A collector's place is its *post*. Each process that fills it has a *start*, a growing number: calls with an older start
are refused. Races have *sequence numbers* from 1 on in each start. A collector reports all its unreleased races in each
call, and the relay reports the newest number of the learner's news. So a relay that was killed and restarted empty is
told again what it forgot: posts and news by the learner, races by the collectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

UNREACHABLE: Final = (RayActorError, ConnectionError)
"""Errors of a call while the relay is being restarted."""
ASK_AGAIN_AFTER_S: Final = 0.2
OPEN_QUESTION_S: Final = 5.0
"""Longest wait of a call for an answer."""


def start_relay() -> Any:
    """Start the relay on this machine. Ray restarts it, empty, however often it is killed."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Relay).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()


@dataclass(frozen=True)
class Offer:
    """Race on its way to the learner."""

    collector: int  # number of the post
    start: int  # of the process that drove it
    sequence: int  # its number, from 1 in each start
    parcel: list[Any]  # reference to its arrays, in a list, so that Ray does not resolve it on the way
    waited_s: float  # see `ReceivedRollout`
    elapsed_s: float  # likewise


@dataclass(frozen=True)
class News:
    """Published state of the run."""

    number: int  # grows with each publication
    settings: bytes  # in force, as JSON
    frames_total: int  # of the run
    is_over: bool  # whether the run is to end
    weights: dict[str, tuple[int, list[Any]]]  # version and parcel by kind


@dataclass(frozen=True)
class Arrived:
    """Answer to the learner."""

    is_ready: bool  # whether the relay knows its posts; False after a restart
    news_number: int  # of the newest news that it has; 0 for none
    offers: list[Offer]  # races, in the order of their arrival
    heartbeats: dict[int, tuple[float, bool]]  # time of the last heartbeat and whether it waits, by collector
    logs: list[Any]  # log records of collectors


@dataclass(frozen=True)
class Answer:
    """Answer to a collector.

    Attributes:
        is_current: False if another process fills the post: the collector is to end.
        is_ready: False after a restart, until the learner has set the posts.
        is_over: whether the run is to end.
        released: sequence numbers of reported races that the learner has released.
    """

    is_current: bool
    is_ready: bool = True
    is_over: bool = False
    released: list[int] = field(default_factory=list)


@dataclass
class _Post:
    start: int
    last_sequence: int = 0
    released: set[int] = field(default_factory=set)
    heartbeat: tuple[float, bool] = (0.0, False)


class Relay:
    """Relay of one run, as an asynchronous actor: calls that wait do not block the others."""

    def __init__(self) -> None:
        self._posts: dict[int, _Post] = {}
        self._is_ready = False
        self._offers: list[Offer] = []
        self._news: News | None = None
        self._logs: list[Any] = []
        self._changed = asyncio.Condition()

    # The learner's calls.

    async def set_posts(self, starts: dict[int, int]) -> None:
        """Set the start of every open post. Unreceived offers of other starts are dropped."""
        async with self._changed:
            kept = {collector: post for collector, post in self._posts.items() if starts.get(collector) == post.start}
            self._posts = {collector: kept.get(collector, _Post(start)) for collector, start in starts.items()}
            self._offers = [offer for offer in self._offers if starts.get(offer.collector) == offer.start]
            self._is_ready = True
            self._changed.notify_all()

    async def take(self, within_s: float) -> Arrived:
        """Wait for races or log records; return them with the heartbeats."""
        await self._wait_for(lambda: self._logs or self._offers or not self._is_ready, within_s)
        offers, self._offers = self._offers, []
        logs, self._logs = self._logs, []
        heartbeats = {collector: post.heartbeat for collector, post in self._posts.items()}
        news_number = 0 if self._news is None else self._news.number
        return Arrived(self._is_ready, news_number, offers, heartbeats, logs)

    async def release(self, collector: int, start: int, sequence: int) -> None:
        """Free a collector's room for a race."""
        async with self._changed:
            if (post := self._current(collector, start)) is not None:
                post.released.add(sequence)
                self._changed.notify_all()

    async def publish(self, news: News) -> None:
        """Store news, unless newer news came before."""
        async with self._changed:
            if self._news is None or news.number > self._news.number:
                self._news = news
                self._changed.notify_all()

    # The collectors' calls.

    async def look_in(
        self, collector: int, start: int, offers: Sequence[Offer], heartbeat: tuple[float, bool], within_s: float
    ) -> Answer:
        """Take offers and a heartbeat of a collector; wait for released room or the end of the run.

        Args:
            collector: number of the post.
            start: of the process.
            offers: all its unreleased races in order; those that were taken before are not taken again.
            heartbeat: time of its last heartbeat, and whether it waits.
            within_s: longest wait.
        """
        await self._wait_for(lambda: self._is_ready, within_s)
        if not self._is_ready:
            return Answer(is_current=True, is_ready=False)
        if (post := self._current(collector, start)) is None:
            return Answer(is_current=False)
        post.heartbeat = heartbeat
        new = [offer for offer in offers if offer.sequence > post.last_sequence]
        if new:
            post.last_sequence = new[-1].sequence
            async with self._changed:
                self._offers += new
                self._changed.notify_all()
        post.released &= {offer.sequence for offer in offers}  # the collector has heard of the others
        await self._wait_for(
            lambda: post.released or self._is_over or self._current(collector, start) is not post, within_s
        )
        is_current = self._current(collector, start) is post
        return Answer(is_current, is_over=self._is_over, released=sorted(post.released))

    async def await_news(self, known: int, within_s: float) -> News | None:
        """Wait for news beyond a number; None after the time-out."""
        await self._wait_for(lambda: self._news is not None and self._news.number > known, within_s)
        return self._news if self._news is not None and self._news.number > known else None

    async def log(self, record: Any) -> None:
        """Pass on a log record."""
        async with self._changed:
            self._logs.append(record)
            self._changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._news is not None and self._news.is_over

    def _current(self, collector: int, start: int) -> _Post | None:
        post = self._posts.get(collector)
        return post if post is not None and post.start == start else None

    async def _wait_for(self, is_so: Callable[[], object], within_s: float) -> None:
        """Return once a condition holds, or after a time."""
        if within_s <= 0 or is_so():
            return
        try:
            async with asyncio.timeout(min(within_s, OPEN_QUESTION_S)), self._changed:
                await self._changed.wait_for(lambda: bool(is_so()))
        except TimeoutError:
            return
