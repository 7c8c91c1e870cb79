"""What stands between a learner and collectors on other machines: it knows races and news by reference, and holds none.

`opening` makes one actor of it per run, on the learner's machine. Here is no word of Ray: what is called a
*parcel* is a reference to arrays that lie in some machine's object store, and is handed on as it is.

A collector's place is its *post*; each process that fills it has a *start*, a number that grows. Who calls with another
start than the post's current one was replaced, and is refused. Races have *sequence numbers* from 1 on in each start:
one that was had before is not taken again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

OPEN_QUESTION_S: Final = 5.0
"""How long a question is kept open until there is something to answer; then it is asked anew."""


@dataclass(frozen=True)
class Offer:
    """A race on its way.

    Attributes:
        collector: whose post.
        start: of the process that drove it.
        sequence: its number, from 1 in each start.
        parcel: where its arrays are, in a list, so that nobody looks inside on the way.
        waited_s: see `ReceivedRollout`.
        elapsed_s: likewise.
    """

    collector: int
    start: int
    sequence: int
    parcel: list[Any]
    waited_s: float
    elapsed_s: float


@dataclass(frozen=True)
class News:
    """What the learner publishes.

    Attributes:
        number: grows with each publication.
        settings: those in force, as bytes.
        frames_total: of the run.
        is_over: whether the run is to end.
        weights: version and parcel by kind.
    """

    number: int
    settings: bytes
    frames_total: int
    is_over: bool
    weights: dict[str, tuple[int, list[Any]]]


@dataclass(frozen=True)
class Arrived:
    """An answer to the learner.

    Attributes:
        epoch: which life of the relay answers; one that came back after it was killed knows nothing of before.
        offers: races, in the order in which they came.
        signs: (beats, whether it waits) by collector.
        logs: log records of collectors.
        n_older_news: news that came after newer ones since the last answer, and were ignored.
    """

    epoch: str
    offers: list[Offer]
    signs: dict[int, tuple[int, bool]]
    logs: list[Any]
    n_older_news: int = 0


@dataclass(frozen=True)
class Answer:
    """An answer to a collector.

    Attributes:
        epoch: which life of the relay answers.
        is_current: whether the collector still fills its post; if not, it is to end.
        is_ready: whether the relay knows its posts; one that came back waits for the learner to tell it.
        is_over: whether the run is to end.
        released: sequence numbers of races that the learner has done with, since the last answer.
        turn: of the turn to play, if it is given one.
    """

    epoch: str
    is_current: bool
    is_ready: bool = True
    is_over: bool = False
    released: list[int] = field(default_factory=list)
    turn: int | None = None


@dataclass
class _Post:
    start: int
    last_sequence: int = 0
    released: list[int] = field(default_factory=list)
    n_beats: int = 0
    is_waiting: bool = False
    turn: int | None = None
    is_at_turn: bool = False

    @property
    def has_news(self) -> bool:
        return bool(self.released) or self.turn is not None


class Relay:
    """One run's, as an asynchronous object: whatever waits lets the others in.

    Attributes:
        epoch: of this life.
    """

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(8)
        self._posts: dict[int, _Post] = {}
        self._is_ready = False
        self._offers: list[Offer] = []
        self._news: News | None = None
        self._logs: list[Any] = []
        self._n_older_news = 0
        self._changed = asyncio.Condition()

    # The learner's calls.

    async def set_posts(self, starts: dict[int, int]) -> None:
        """Say who fills which post. What a former process of a post offered and nobody took is dropped.

        Args:
            starts: of every post that is open.
        """
        async with self._changed:
            kept = {collector: post for collector, post in self._posts.items() if starts.get(collector) == post.start}
            self._posts = {collector: kept.get(collector, _Post(start)) for collector, start in starts.items()}
            self._offers = [offer for offer in self._offers if starts.get(offer.collector) == offer.start]
            self._is_ready = True
            self._changed.notify_all()

    async def take(self, within_s: float) -> Arrived:
        """Wait for races or log records; signs of life come with every answer."""
        await self._wait_for(lambda: self._logs or self._offers, within_s)
        offers, self._offers = self._offers, []
        logs, self._logs = self._logs, []
        n_older_news, self._n_older_news = self._n_older_news, 0
        signs = {collector: (post.n_beats, post.is_waiting) for collector, post in self._posts.items()}
        return Arrived(self.epoch, offers, signs, logs, n_older_news)

    async def release(self, collector: int, start: int, sequence: int) -> None:
        """Tell a collector that there is room again for a race."""
        async with self._changed:
            if (post := self._current(collector, start)) is not None:
                post.released.append(sequence)
                self._changed.notify_all()

    async def give_turn(self, collector: int, number: int) -> None:
        """Let a collector play."""
        async with self._changed:
            if (post := self._posts.get(collector)) is not None:
                post.turn, post.is_at_turn = number, True
                self._changed.notify_all()

    async def at_turn(self, collector: int) -> tuple[bool, int]:
        """Say whether a collector plays a turn, and how many races its process has offered."""
        post = self._posts.get(collector)
        return (False, 0) if post is None else (post.is_at_turn, post.last_sequence)

    async def publish(self, news: News) -> str:
        """Put up the newest news; return the epoch."""
        async with self._changed:
            if self._news is None or news.number > self._news.number:
                self._news = news
                self._changed.notify_all()
            elif news.number < self._news.number:  # the same again is what a relay that came back is told
                self._n_older_news += 1
        return self.epoch

    # The collectors' calls.

    async def offer(self, offer: Offer, epoch: str) -> Answer:
        """Offer a race; one that was offered before is not taken twice.

        Args:
            offer: the race.
            epoch: of the life of the relay that has taken the races before it. Another one does not take this race, and
                answers with its own epoch: what was offered before comes first, or it would seem to be had already.
        """
        if not self._is_ready:
            return Answer(self.epoch, is_current=True, is_ready=False)
        if epoch != self.epoch:
            return Answer(self.epoch, is_current=self._current(offer.collector, offer.start) is not None)
        async with self._changed:
            post = self._current(offer.collector, offer.start)
            if post is not None and offer.sequence > post.last_sequence:
                post.last_sequence = offer.sequence
                self._offers.append(offer)
                self._changed.notify_all()
        return Answer(self.epoch, is_current=post is not None)

    async def look_in(self, collector: int, start: int, n_beats: int, is_waiting: bool, within_s: float) -> Answer:
        """Note a sign of life, and wait for room that was released or a turn, which are handed out with the answer."""
        if not self._is_ready:
            await self._wait_for(lambda: self._is_ready, within_s)
        if not self._is_ready:
            return Answer(self.epoch, is_current=True, is_ready=False)
        if (post := self._current(collector, start)) is None:
            return Answer(self.epoch, is_current=False)
        post.n_beats, post.is_waiting = n_beats, is_waiting
        await self._wait_for(
            lambda: post.has_news or self._is_over or self._current(collector, start) is not post, within_s
        )
        released, post.released = post.released, []
        turn, post.turn = post.turn, None
        is_current = self._current(collector, start) is post
        return Answer(self.epoch, is_current, is_over=self._is_over, released=released, turn=turn)

    async def end_turn(self, collector: int, start: int) -> None:
        """Note the end of a turn."""
        async with self._changed:
            if (post := self._current(collector, start)) is not None:
                post.is_at_turn = False
                self._changed.notify_all()

    async def await_news(self, known: int, within_s: float) -> News | None:
        """Wait for news beyond a number; None if there are none within the time."""
        await self._wait_for(lambda: self._news is not None and self._news.number > known, within_s)
        return self._news if self._news is not None and self._news.number > known else None

    async def log(self, record: Any) -> None:
        """Hand on a log record."""
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
        """Return when something is so, or after a time."""
        if within_s <= 0:
            return
        try:
            async with asyncio.timeout(min(within_s, OPEN_QUESTION_S)), self._changed:
                await self._changed.wait_for(lambda: bool(is_so()))
        except TimeoutError:
            return
