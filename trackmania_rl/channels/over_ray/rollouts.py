"""`Rollouts` between machines: a race is put into its machine's object store, and fetched by the learner's.

Threads of the learner fetch offered races, so that `get` returns read-only views of the local store without waiting for
a network. A collector offers a race until the learner has released it. The learner recognizes repeated offers by their
sequence numbers.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import ray
from ray.exceptions import RayError
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.over_ray.relay import ASK_AGAIN_AFTER_S, UNREACHABLE, Answer, Arrived, Offer
from trackmania_rl.channels.protocols import ReceivedRollout, RolloutSource
from trackmania_rl.channels.sinks import BaseSink, Room

log = logging.getLogger(__name__)

BEAT_EVERY_S: Final = 0.5
"""Longest interval between a collector's calls."""
FETCH_WITHIN_S: Final = 30.0
"""A race that has not arrived by then is lost: its machine was cut off."""


@dataclass
class _Post:
    """State of one collector in the learner.

    Attributes:
        start: of the process that fills the post.
        had: last sequence number that was fetched or lost.
        newest: last sequence number that was offered.
        held: sequence numbers of races that are here and not released.
        offered: races to fetch, with the times of their offers; None ends the fetching thread.
        waiting: races for `get`.
        heartbeat: of the process.
    """

    start: int
    had: int = 0
    newest: int = 0
    held: set[int] = field(default_factory=set)
    offered: queue.SimpleQueue[tuple[Offer, float] | None] = field(default_factory=queue.SimpleQueue)
    waiting: deque[tuple[Offer, Any]] = field(default_factory=deque)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)


class RayRolloutSource(RolloutSource):
    """Learner's end; see `RolloutSource`.

    Args:
        relay: of the run.
        frames_shape: of the room for one race.
        slots_per_collector: races that a collector may have under way or put before it waits.
        games_per_collector: races that it drives at the same time; each beyond the first adds a room.
        on_news_number: called with the number of the newest news that the relay has.

    Attributes:
        left_out: races_lost, which were offered and could not be fetched; races_had_before, which came once more.
        relay: as given.
    """

    def __init__(
        self,
        relay: Any,
        frames_shape: tuple[int, int, int, int],
        slots_per_collector: int,
        games_per_collector: int,
        on_news_number: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.waited_s = 0.0
        self.left_out: dict[str, int] = {"races_lost": 0, "races_had_before": 0}
        self.relay = relay
        self._frames_shape = frames_shape
        self._n_rooms = slots_per_collector + games_per_collector - 1
        self._n_games = games_per_collector
        self._on_news_number = on_news_number
        self._posts: dict[int, _Post] = {}
        self._n_starts = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._setting_posts = threading.Lock()
        threading.Thread(target=self._listen, name="rollouts", daemon=True).start()

    @override
    def open_collector(self, collector: int) -> RaySink:
        self._drop_post(collector)
        self._n_starts += 1
        post = _Post(self._n_starts)
        with self._changed:
            self._posts[collector] = post
        self._set_posts()
        threading.Thread(target=self._fetch, args=(post,), name="rollouts", daemon=True).start()
        return RaySink(self.relay, collector, post.start, self._frames_shape, self._n_rooms, self._n_games)

    @override
    def close_collector(self, collector: int) -> None:
        if self._drop_post(collector):
            self._set_posts()

    @override
    def get(self, timeout_s: float) -> ReceivedRollout | None:
        began_s = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: any(post.waiting for post in self._posts.values()), timeout_s)
            self.waited_s += time.monotonic() - began_s
            for collector, post in self._posts.items():
                if post.waiting:
                    self._posts[collector] = self._posts.pop(collector)  # to the end of the row
                    offer, (results, stats) = post.waiting.popleft()
                    give_back = functools.partial(self._give_back, post, offer)
                    return ReceivedRollout(collector, results, stats, offer.waited_s, offer.elapsed_s, give_back)
        return None

    @override
    def heartbeat(self, collector: int) -> Heartbeat:
        return self._posts[collector].heartbeat

    @override
    def close(self) -> None:
        self._is_closed = True
        for collector in tuple(self._posts):
            self._drop_post(collector)
        ray.kill(self.relay)

    def _drop_post(self, collector: int) -> bool:
        with self._changed:
            post = self._posts.pop(collector, None)
            if post is not None:
                post.offered.put(None)
            return post is not None

    def _set_posts(self) -> None:
        """Send the relay the start of every post, and wait until it has them."""
        with self._setting_posts:  # so that the newest arrive last
            while not self._is_closed:
                try:
                    starts = {collector: post.start for collector, post in self._posts.items()}
                    ray.get(self.relay.set_posts.remote(starts))
                    return
                except UNREACHABLE:
                    time.sleep(ASK_AGAIN_AFTER_S)

    def _listen(self) -> None:
        """Take races and heartbeats from the relay, in a thread."""
        has_set_posts = False
        while ray.is_initialized() and not self._is_closed:
            try:
                arrived: Arrived = ray.get(self.relay.take.remote(BEAT_EVERY_S))
            except UNREACHABLE:
                time.sleep(ASK_AGAIN_AFTER_S)
                continue
            except RayError:
                if self._is_closed or not ray.is_initialized():
                    return
                raise
            if not arrived.is_ready:
                if has_set_posts:
                    log.warning("the relay of this run was started again: races that were on their way come again")
                self._set_posts()
            has_set_posts = True
            self._on_news_number(arrived.news_number)
            for record in arrived.logs:
                logging.getLogger().handle(record)
            with self._changed:
                for collector, (at_s, is_waiting) in arrived.heartbeats.items():
                    if collector in self._posts:
                        heartbeat = self._posts[collector].heartbeat
                        heartbeat.at_s, heartbeat.n_waiting = at_s, int(is_waiting)
                for offer in arrived.offers:
                    self._note(offer)

    def _note(self, offer: Offer) -> None:
        """Queue a race to be fetched. Of a race that was had before, only repeat a release."""
        post = self._posts.get(offer.collector)
        if post is None or post.start != offer.start:
            return
        if offer.sequence > post.newest:
            post.newest = offer.sequence
            ray.wait(offer.parcel, timeout=0)  # begins to fetch it
            post.offered.put((offer, time.monotonic()))
            return
        self.left_out["races_had_before"] += 1
        if offer.sequence <= post.had and offer.sequence not in post.held:
            self.relay.release.remote(offer.collector, offer.start, offer.sequence)

    def _fetch(self, post: _Post) -> None:
        """Fetch the races of a collector, in a thread of its own: no machine waits for another one."""
        while (offered := post.offered.get()) is not None:
            offer, came_s = offered
            race = None
            try:
                race = ray.get(offer.parcel[0], timeout=max(0.0, came_s + FETCH_WITHIN_S - time.monotonic()))
            except RayError as error:
                if self._is_closed or not ray.is_initialized():
                    return
                log.debug("%s", error)
                self.left_out["races_lost"] += 1
                log.warning("a race of collector %d is lost: its machine or its process is gone", offer.collector)
                self.relay.release.remote(offer.collector, offer.start, offer.sequence)
            with self._changed:
                post.had = offer.sequence
                if race is not None:
                    post.held.add(offer.sequence)
                    post.waiting.append((offer, race))
                self._changed.notify_all()

    def _give_back(self, post: _Post, offer: Offer) -> None:
        with self._changed:
            post.held.discard(offer.sequence)
        self.relay.release.remote(offer.collector, offer.start, offer.sequence)


class RaySink(BaseSink[Room]):
    """Collector's end; `RayRolloutSource.open_collector` makes it.

    Attributes:
        is_refused: True if another process fills the post, so that this one is to end.
        answered_s: time of the relay's last answer, by `time.monotonic`.
    """

    def __init__(
        self,
        relay: Any,
        collector: int,
        start: int,
        frames_shape: tuple[int, int, int, int],
        n_rooms: int,
        n_games: int,
    ) -> None:
        super().__init__(n_games, Heartbeat())
        self.is_refused = False
        self.answered_s = time.monotonic()
        self._made_of = relay, collector, start, frames_shape, n_rooms, n_games
        self._relay, self._collector, self._start = relay, collector, start
        self._frames_shape, self._n_rooms = frames_shape, n_rooms
        self._rooms: list[Room] = []
        self._n_taken = self._sequence = 0
        self._unreleased: dict[int, Offer] = {}
        self._is_closed = self._is_over = False
        self._follower: threading.Thread | None = None
        self._changed = threading.Condition(self._lock)

    def __reduce__(self) -> tuple[type[RaySink], tuple[Any, ...]]:
        return RaySink, self._made_of  # it holds nothing before it reaches the collector's process

    @override
    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        super().put(game, rollout_results, end_race_stats)
        try:
            self._look_in(0.0)
        except UNREACHABLE:
            log.debug("the relay is out of reach: the race is offered again")

    @override
    def beat(self) -> None:
        super().beat()
        if self._follower is None:
            with self._lock:
                if self._follower is None:
                    self._follower = threading.Thread(target=self._look_in_again_and_again, name="relay", daemon=True)
                    self._follower.start()

    @override
    def close(self) -> None:
        super().close()
        self._is_closed = True
        self._rooms.clear()

    @property
    def _run_ends(self) -> bool:
        return self.is_refused or self._is_closed or self._is_over

    def _take_room(self, timeout_s: float) -> Room | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._run_ends or self._n_free > 0, timeout_s) or self._run_ends:
                return None
            self._n_taken += 1
            return self._rooms.pop() if self._rooms else Room(np.empty(self._frames_shape, dtype=np.uint8))

    @property
    def _n_free(self) -> int:
        return self._n_rooms - self._n_taken - len(self._unreleased)

    def _pack(self, room: Room, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> Any:
        return [ray.put((dict(rollout_results), dict(end_race_stats)))]

    def _send(self, room: Room, packed: Any, waited_s: float, elapsed_s: float) -> None:
        self._sequence += 1
        offer = Offer(self._collector, self._start, self._sequence, packed, waited_s, elapsed_s)
        self._unreleased[self._sequence] = offer
        self._n_taken -= 1
        self._rooms.append(room)

    def _look_in_again_and_again(self) -> None:
        while ray.is_initialized() and not self._is_closed and not self.is_refused:
            try:
                answer = self._look_in(BEAT_EVERY_S)
                if answer.is_over or not answer.is_ready:
                    time.sleep(ASK_AGAIN_AFTER_S)  # the relay answers at once
            except UNREACHABLE:
                time.sleep(ASK_AGAIN_AFTER_S)
            except RayError:  # this process ends
                return

    def _look_in(self, within_s: float) -> Answer:
        """Call the relay with all unreleased races, and free the room of those that the learner has released."""
        with self._changed:
            offers = list(self._unreleased.values())
            heartbeat = self._heartbeat.at_s, self._heartbeat.n_waiting > 0
        answer: Answer = ray.get(self._relay.look_in.remote(self._collector, self._start, offers, heartbeat, within_s))
        self.answered_s = time.monotonic()
        with self._changed:
            self.is_refused |= not answer.is_current
            self._is_over |= answer.is_over
            for sequence in answer.released:
                self._unreleased.pop(sequence, None)
            self._changed.notify_all()
        return answer
