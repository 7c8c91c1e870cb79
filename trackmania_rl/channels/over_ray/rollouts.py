"""`Rollouts` from machine to machine: a race is put into the store of its own, and fetched by the learner's.

A thread of the learner fetches what was offered, so that `get` hands out read-only views of the local store and waits
for no network. A race is offered until the learner has released it: if the relay is killed, Ray starts it again, empty;
the learner tells it the posts, and the collectors offer again what was not released. What the learner had before it
knows by its sequence number.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import ray
from ray.exceptions import RayError

from trackmania_rl.channels.over_ray.reaching import ASK_AGAIN_AFTER_S, UNREACHABLE
from trackmania_rl.channels.over_ray.relay import Answer, Arrived, Offer
from trackmania_rl.channels.protocols import WAIT_FOREVER_S, ReceivedRollout, SignsOfLife

log = logging.getLogger(__name__)

BEAT_EVERY_S: Final = 0.5
"""How often a collector tells of itself at least."""
FETCHED_AHEAD: Final = 2
LOOK_AGAIN_AFTER_S: Final = 0.5
FETCH_WITHIN_S: Final = 30.0
"""A race that has not come from its machine within this time is lost; nobody waits for a machine that was cut off."""


class RayRolloutSource:
    """The learner's end; see `RolloutSource`.

    Args:
        relay: the run's.
        frames_shape: of the room for one race.
        slots_per_collector: races that a collector may have under way and put before it waits.
        games_per_collector: races that it drives at the same time; those beyond the first have rooms in addition.
        on_new_relay: called when the relay has been started again, and knows nothing.

    Attributes:
        waited_s: see `RolloutSource`.
        left_out: races_lost, which were offered and could not be fetched; races_had_before, which came once more; and
            older_news, which reached the relay after newer ones.
        relay: as given.
    """

    def __init__(
        self,
        relay: Any,
        frames_shape: tuple[int, int, int, int],
        slots_per_collector: int,
        games_per_collector: int,
        on_new_relay: Callable[[], None] = lambda: None,
    ) -> None:
        self.waited_s = 0.0
        self.left_out = {"races_lost": 0, "races_had_before": 0, "older_news": 0}
        self.relay = relay
        self._frames_shape = frames_shape
        self._n_rooms = slots_per_collector + games_per_collector - 1
        self._n_games = games_per_collector
        self._on_new_relay = on_new_relay
        self._starts: dict[int, int] = {}
        self._n_starts = 0
        self._had: dict[int, int] = {}  # by start: the last sequence number
        self._held: set[tuple[int, int]] = set()  # start and sequence number of what is not released yet
        self._offered: dict[int, deque[tuple[Offer, float]]] = {}  # with the time at which it came
        self._waiting: dict[int, deque[tuple[Offer, Any]]] = {}
        self._signs: dict[int, SignsOfLife] = {}
        self._epoch = ""
        self._is_closed = False
        self._changed = threading.Condition()
        self._setting_posts = threading.Lock()
        for work in (self._listen, self._fetch):
            threading.Thread(target=work, name="rollouts", daemon=True).start()

    def open_collector(self, collector: int) -> RaySink:
        """Make a new sink; see `RolloutSource`."""
        with self._changed:
            self._n_starts += 1
            start = self._n_starts
            self._starts[collector] = start
            self._had[start] = 0
            self._signs[collector] = SignsOfLife(0, is_waiting=False)
            self._waiting[collector] = deque()  # what a former process put and nobody received is dropped
            self._offered[collector] = deque()
        self._set_posts()
        return RaySink(self.relay, collector, start, self._frames_shape, self._n_rooms, self._n_games)

    def close_collector(self, collector: int) -> None:
        """Close its post; see `RolloutSource`."""
        with self._changed:
            if self._starts.pop(collector, None) is None:
                return
            self._waiting.pop(collector)
            self._offered.pop(collector)
        self._set_posts()

    def get(self, timeout_s: float) -> ReceivedRollout | None:
        """Take the next rollout; see `RolloutSource`."""
        began_s = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: any(self._waiting.values()), timeout_s)
            self.waited_s += time.monotonic() - began_s
            for collector, races in self._waiting.items():
                if races:
                    self._waiting[collector] = self._waiting.pop(collector)  # to the end of the row
                    offer, (results, stats) = races.popleft()
                    give_back = functools.partial(self._give_back, offer)
                    return ReceivedRollout(collector, results, stats, offer.waited_s, offer.elapsed_s, give_back)
        return None

    def give_turn(self, collector: int, number: int) -> None:
        """Let a collector play; see `RolloutSource`."""
        ray.get(self.relay.give_turn.remote(collector, number))

    def is_at_turn(self, collector: int) -> bool:
        """Say whether it plays; see `RolloutSource`."""
        is_at_turn, n_offered = ray.get(self.relay.at_turn.remote(collector))
        if is_at_turn or collector not in self._starts:
            return bool(is_at_turn)
        with self._changed:  # what it put is under way to this process
            self._changed.wait_for(lambda: self._had[self._starts[collector]] >= n_offered, FETCH_WITHIN_S)
        return False

    def signs_of_life(self, collector: int) -> SignsOfLife:
        """Look how a collector is, as of the relay's last answer; see `RolloutSource`."""
        return self._signs[collector]

    def close(self) -> None:
        """End the relay; see `RolloutSource`."""
        self._is_closed = True
        ray.kill(self.relay)

    def _set_posts(self) -> None:
        """Tell the relay who fills which post, before anybody asks it."""
        with self._setting_posts:  # the newest are the last to arrive
            while not self._is_closed:
                try:
                    ray.get(self.relay.set_posts.remote(dict(self._starts)))
                    return
                except UNREACHABLE:
                    time.sleep(ASK_AGAIN_AFTER_S)

    def _listen(self) -> None:
        """Hear of races and signs of life, in a thread."""
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
            if arrived.epoch != self._epoch:
                if self._epoch:
                    log.warning("the relay of this run was started again: races that were on their way come again")
                self._set_posts()  # also to the first that answers: there may have been one before it
                self._on_new_relay()
                self._epoch = arrived.epoch
            for collector, (n_beats, is_waiting) in arrived.signs.items():
                self._signs[collector] = SignsOfLife(n_beats, is_waiting)
            for record in arrived.logs:
                logging.getLogger().handle(record)
            self.left_out["older_news"] += arrived.n_older_news
            with self._changed:
                for offer in arrived.offers:
                    self._note(offer)
                self._changed.notify_all()

    def _note(self, offer: Offer) -> None:
        """Take up a race to be fetched; one that was had before only has its release said again."""
        if self._starts.get(offer.collector) != offer.start:
            return
        key, offered = (offer.start, offer.sequence), self._offered[offer.collector]
        newest = offered[-1][0].sequence if offered else self._had[offer.start]
        if offer.sequence > newest:
            offered.append((offer, time.monotonic()))
            return
        self.left_out["races_had_before"] += 1
        if offer.sequence <= self._had[offer.start] and key not in self._held:
            self.relay.release.remote(offer.collector, offer.start, offer.sequence)

    def _fetch(self) -> None:
        """Bring races here, two of each collector at the same time, in a thread: no machine waits for another one."""
        while not self._is_closed:
            with self._changed:
                self._changed.wait_for(lambda: any(self._offered.values()), BEAT_EVERY_S)
                next_ones = [list(offered)[:FETCHED_AHEAD] for offered in self._offered.values() if offered]
            parcels = [offer.parcel[0] for ahead in next_ones for offer, _ in ahead]
            if not parcels:
                continue
            try:
                ray.wait(parcels, timeout=LOOK_AGAIN_AFTER_S)  # for any of them, and all come at the same time
                here = {*ray.wait(parcels, num_returns=len(parcels), timeout=0)[0]}
            except RayError:
                if self._is_closed or not ray.is_initialized():
                    return
                raise
            for ahead in next_ones:
                offer, came_s = ahead[0]
                if offer.parcel[0] in here:
                    self._receive(offer)
                elif time.monotonic() - came_s > FETCH_WITHIN_S:
                    self._receive(offer, is_late=True)

    def _receive(self, offer: Offer, is_late: bool = False) -> None:
        """Make a race that is here the learner's; one that does not come is lost."""
        race = None
        try:
            race = None if is_late else ray.get(offer.parcel[0], timeout=LOOK_AGAIN_AFTER_S)
        except RayError as error:
            log.debug("%s", error)
        if race is None:
            self.left_out["races_lost"] += 1
            log.warning("a race of collector %d is lost: its machine or its process is gone", offer.collector)
        with self._changed:
            if self._starts.get(offer.collector) == offer.start:
                self._offered[offer.collector].popleft()
                self._had[offer.start] = offer.sequence
                if race is not None:
                    self._held.add((offer.start, offer.sequence))
                    self._waiting[offer.collector].append((offer, race))
            self._changed.notify_all()

    def _give_back(self, offer: Offer) -> None:
        with self._changed:
            self._held.discard((offer.start, offer.sequence))
        self.relay.release.remote(offer.collector, offer.start, offer.sequence)


class RaySink:
    """A collector's end; see `RolloutSink`. `RayRolloutSource.open_collector` makes it.

    Attributes:
        waited_s: see `RolloutSink`.
        is_refused: whether another process fills the post, so that this one is to end.
        answered_s: when the relay answered last, by `time.monotonic`.
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
        self.waited_s = 0.0
        self.is_refused = False
        self.answered_s = time.monotonic()
        self._made_of = relay, collector, start, frames_shape, n_rooms, n_games
        self._relay, self._collector, self._start = relay, collector, start
        self._frames_shape, self._n_rooms, self._n_games = frames_shape, n_rooms, n_games
        self._rooms: list[npt.NDArray[np.uint8]] = []
        self._held: dict[int, npt.NDArray[np.uint8]] = {}
        self._unreleased: dict[int, Offer] = {}
        self._sequence = 0
        self._n_beats = self._n_waiting = 0
        self._turn: int | None = None
        self._is_closed = self._is_over = False
        self._waited_until_last_put_s = 0.0
        self._last_put_s: float | None = None
        self._epoch = ""
        self._taken_up_to = 0
        self._follower: threading.Thread | None = None
        self._changed = threading.Condition()
        self._offering = threading.Lock()

    def __reduce__(self) -> tuple[type[RaySink], tuple[Any, ...]]:
        return RaySink, self._made_of  # on its way to the collector's process, it holds nothing yet

    def acquire_frames(self, game: int, timeout_s: float = WAIT_FOREVER_S) -> npt.NDArray[np.uint8] | None:
        """Wait for room for a race's frames; see `RolloutSink`."""
        began_s = time.monotonic()
        self._follow()
        with self._changed:
            self._last_put_s = self._last_put_s or began_s
            if game not in self._held:
                self._wait(lambda: self._n_free > 0, timeout_s)
                self.waited_s += (time.monotonic() - began_s) / self._n_games
                if self._n_free <= 0 or self._ends:
                    return None
                self._held[game] = self._rooms.pop() if self._rooms else np.empty(self._frames_shape, dtype=np.uint8)
            return self._held[game]

    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        """Put a race into this machine's store and offer it; see `RolloutSink`."""
        if game not in self._held:
            raise ValueError(f"game {game} holds no room: acquire_frames comes before each put")
        parcel = [ray.put((dict(rollout_results), dict(end_race_stats)))]
        with self._changed:
            now_s = time.monotonic()
            self._sequence += 1
            self._unreleased[self._sequence] = Offer(
                self._collector,
                self._start,
                self._sequence,
                parcel,
                waited_s=self.waited_s - self._waited_until_last_put_s,
                elapsed_s=now_s - (self._last_put_s or now_s),
            )
            self._rooms.append(self._held.pop(game))
            self._last_put_s, self._waited_until_last_put_s = now_s, self.waited_s
        self._offer()

    def beat(self) -> None:
        """Say that the collector goes on; see `RolloutSink`."""
        self._n_beats += 1
        if self._follower is None:
            self._follow()

    def await_turn(self) -> int | None:
        """Wait for a turn; see `RolloutSink`."""
        self._follow()
        with self._changed:
            self._wait(lambda: self._turn is not None, WAIT_FOREVER_S)
            turn, self._turn = self._turn, None
            return None if self._ends else turn

    def end_turn(self) -> None:
        """End it; see `RolloutSink`."""
        ray.get(self._relay.end_turn.remote(self._collector, self._start))

    def close(self) -> None:
        """Let go of the rooms; see `RolloutSink`."""
        self._is_closed = True
        self._held.clear()
        self._rooms.clear()

    @property
    def _n_free(self) -> int:
        return self._n_rooms - len(self._held) - len(self._unreleased)

    @property
    def _ends(self) -> bool:
        return self.is_refused or self._is_closed or self._is_over

    def _wait(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Wait for something of this sink, beating meanwhile; the run's end ends it."""
        ends_s = time.monotonic() + timeout_s
        self._n_waiting += 1
        try:
            while not is_so() and not self._ends and (left_s := ends_s - time.monotonic()) > 0:
                self._n_beats += 1
                self._changed.wait(min(left_s, BEAT_EVERY_S))
        finally:
            self._n_waiting -= 1

    def _follow(self) -> None:
        """Keep a question at the relay from now on."""
        with self._changed:
            if self._follower is None:
                self._follower = threading.Thread(target=self._ask_on_and_on, name="relay", daemon=True)
                self._follower.start()

    def _ask_on_and_on(self) -> None:
        while ray.is_initialized() and not self._is_closed and not self.is_refused:
            try:
                self._hear(self._ask(self._relay.look_in, self._n_beats, self._n_waiting > 0, BEAT_EVERY_S))
            except UNREACHABLE:
                time.sleep(ASK_AGAIN_AFTER_S)
            except RayError:  # this process ends
                return

    def _ask(self, method: Any, *arguments: Any) -> Answer:
        answer: Answer = ray.get(method.remote(self._collector, self._start, *arguments))
        self.answered_s = time.monotonic()
        return answer

    def _hear(self, answer: Answer) -> None:
        """Act on an answer of the relay."""
        with self._changed:
            self.is_refused = not answer.is_current
            self._is_over |= answer.is_over
            for sequence in answer.released:
                self._unreleased.pop(sequence, None)
            self._turn = self._turn if answer.turn is None else answer.turn
            self._changed.notify_all()
        if answer.is_ready and answer.epoch != self._epoch:
            self._offer()
        if answer.is_over or not answer.is_ready:
            time.sleep(ASK_AGAIN_AFTER_S)  # it answers at once

    def _offer(self) -> None:
        """Offer, in the order of their numbers, the races that this life of the relay has not taken yet."""
        with self._offering:
            while not self._ends:
                with self._changed:
                    missing = [race for race in self._unreleased.values() if race.sequence > self._taken_up_to]
                if not missing:
                    return
                try:
                    answer: Answer = ray.get(self._relay.offer.remote(missing[0], self._epoch))
                except UNREACHABLE:
                    time.sleep(ASK_AGAIN_AFTER_S)
                    continue
                self.is_refused |= not answer.is_current
                if not answer.is_ready:
                    time.sleep(ASK_AGAIN_AFTER_S)
                elif answer.epoch == self._epoch:
                    self._taken_up_to = missing[0].sequence
                else:  # it knows nothing of what was offered to another life
                    self._epoch, self._taken_up_to = answer.epoch, 0
