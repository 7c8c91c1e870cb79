"""Games behind sockets: a thread for each game waits, retries and restarts.

`SocketGames.recv` waits briefly for games that are about to ask, because a forward pass costs nearly the same for one
state as for many. A game that is slow, restarts or hangs delays the others once, until it asks again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Motion, Received
from trackmania_rl.race.actions import BatchDecision, PolicyDecision
from trackmania_rl.race.race import Race
from trackmania_rl.race.races import Observation
from trackmania_rl.settings import GameSettings, MapEntry
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager, GameKeepsFailingError

log = logging.getLogger(__name__)

RECEIVE_WITHIN_S: Final = 0.1
FIRST_GAME_WITHIN_S: Final = 60.0
"""Timeout for the first game, which may compile code for all, before the others start."""
RETRY_FAILING_GAME_AFTER_S: Final = 30.0
GAMES_END_WITHIN_S: Final = 1.0
"""Timeout of `close` for the games' threads."""
PATIENCE_PASSES: Final = 2.0
"""Wait for games that were on time before, as a factor of the last decision's duration. With 8 games on a busy machine
0, 1 and 2 gave batches of 2.0, 4.6 and 6.7 states; 2 took a fifth less processor time than 0."""


class _Interrupted(Exception):  # noqa: N818  # not an error
    """Ends a race that another one replaces."""


@dataclass(frozen=True, slots=True)
class _Order:
    """Order to play a race; `number` counts its game's races."""

    number: int
    map_entry: MapEntry
    settings: GameSettings
    frames: FramesRoom | None


@dataclass(frozen=True, slots=True)
class _Message:
    """Message of a game's thread. Without `seen`, `ended` and `failed`, the game can try another race."""

    game: int
    race: int
    #: image, floats and state that wait for a decision
    seen: tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], Observation] | None = None
    ended: Race | None = None
    failed: GameKeepsFailingError | None = None  # the game pauses now


class SocketGames(Games):
    """K games behind sockets.

    A restarting game does not delay the others. A game that keeps failing pauses for half a minute and is then
    `Received.lost`. When all games fail, the error is raised.

    Args:
        drivers: one per game; closed by the game's thread.
        all_together: whether `recv` waits for all games in a race, so that batches do not depend on timing.
    """

    def __init__(self, drivers: Sequence[GameInstanceManager], *, all_together: bool = False) -> None:
        self.n_games = len(drivers)
        self._gather = self._gather_all if all_together else self._gather_promptly
        self._driving: set[int] = set()  # games with a message due
        self._said: dict[int, _Message] = {}  # of games that wait for an answer, with `all_together`
        self.game = drivers[0].game
        self._drivers = drivers
        self._inbox: queue.SimpleQueue[_Message | Exception] = queue.SimpleQueue()
        self._orders: list[queue.SimpleQueue[_Order | PolicyDecision | None]] = [queue.SimpleQueue() for _ in drivers]
        self._threads = [
            threading.Thread(target=self._play_races, args=(game,), name=f"game {game}", daemon=True)
            for game in range(len(drivers))
        ]
        self._unstarted = list(self._threads)
        self._began_s = 0.0
        self._race_numbers = [0] * len(drivers)
        self._playing: set[int] = set()
        self._failing: set[int] = set()
        self._on_time: set[int] = set()  # games that answered within the patience
        self._patience_s = 0.0
        self._seen: list[Observation | None] = [None] * len(drivers)
        self._is_closed = threading.Event()

    @override
    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        self._race_numbers[game] += 1
        self._playing.add(game)
        self._on_time.discard(game)
        self._driving.add(game)
        self._said.pop(game, None)
        self._orders[game].put(_Order(self._race_numbers[game], map_entry, self.game, frames))
        if len(self._unstarted) == self.n_games:
            self._began_s = time.monotonic()
            self._start(self._threads[game])

    @override
    def recv(self) -> Received:
        messages = self._gather()
        if self._unstarted and (messages or self._said or time.monotonic() - self._began_s > FIRST_GAME_WITHIN_S):
            for thread in tuple(self._unstarted):
                self._start(thread)
        waiting = [(message.game, *message.seen) for message in messages if message.seen is not None]
        over = [message for message in messages if message.seen is None]
        for game, _, _, seen in waiting:
            self._seen[game] = seen
        self._failing -= {message.game for message in over if message.ended is not None}
        image_shape = self.game.image_shape
        return Received(
            ids=np.array([game for game, *_ in waiting], dtype=np.int64),
            images=np.array([image for _, image, _, _ in waiting], dtype=np.uint8).reshape(len(waiting), *image_shape),
            floats=np.array([floats for _, _, floats, _ in waiting], dtype=np.float32),
            is_first=np.array([seen.race_time_ms == 0 for *_, seen in waiting], dtype=np.bool_),
            ended={message.game: message.ended for message in over if message.ended is not None},
            lost=tuple(message.game for message in over if message.ended is None),
        )

    @override
    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        self._patience_s = PATIENCE_PASSES * policy_s
        for row, game in enumerate(ids.tolist()):
            self._driving.add(game)
            self._said.pop(game, None)
            self._orders[game].put(decision.one(row))

    @override
    def under_way(self, game: int, states: range) -> Race:
        return self._drivers[game].under_way(states)

    @override
    def motion(self, ids: GameIds) -> Motion:
        states = [seen for game in ids.tolist() if (seen := self._seen[game]) is not None]
        return Motion._make(np.array([getattr(seen, name) for seen in states]) for name in Motion._fields)

    @override
    def picture(self, game: int, width_px: int, height_px: int) -> None:
        """Return None: the game draws only the observation's image."""

    @override
    def close(self) -> bool:
        self._is_closed.set()
        for orders in self._orders:
            orders.put(None)
        deadline_s = time.monotonic() + GAMES_END_WITHIN_S
        for thread, driver in zip(self._threads, self._drivers, strict=True):
            if thread in self._unstarted:
                driver.close()
            else:
                thread.join(max(deadline_s - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self, thread: threading.Thread) -> None:
        self._unstarted.remove(thread)
        thread.start()

    def _gather_all(self) -> list[_Message]:
        """Return the message of each game in a race, in order; nothing if one is missing after the timeout.

        A game that waits for an answer repeats its message.
        """
        deadline_s = time.monotonic() + RECEIVE_WITHIN_S
        while self._driving:
            message = self._take(max(deadline_s - time.monotonic(), 0.0))
            if message is None:
                return []
            self._driving.discard(message.game)
            self._said[message.game] = message
        messages = [self._said[game] for game in sorted(self._said)]
        self._said = {message.game: message for message in messages if message.seen is not None}
        return messages

    def _gather_promptly(self) -> list[_Message]:
        """Return the messages in the inbox, at most one per game.

        Wait `RECEIVE_WITHIN_S` for the first, then `_patience_s` for games that were on time before.
        """
        first = self._take(RECEIVE_WITHIN_S)
        if first is None:
            return []
        gathered = [first]
        deadline_s = time.perf_counter() + self._patience_s
        missing = self._on_time - {first.game}
        while missing:
            message = self._take(max(deadline_s - time.perf_counter(), 0.0))
            if message is None:
                break
            gathered.append(message)
            missing.discard(message.game)
        while (message := self._take(0.0)) is not None:
            gathered.append(message)
        self._on_time = (self._on_time - missing) | {message.game for message in gathered}
        return gathered

    def _take(self, timeout_s: float) -> _Message | None:
        """Return the next message of a current race; raise a race's error from its thread."""
        while True:
            try:
                item = self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
            except queue.Empty:
                return None
            if isinstance(item, Exception):
                raise item
            if item.race != self._race_numbers[item.game]:
                continue
            if item.failed is None:
                return item
            self._failing.add(item.game)
            if self._failing >= self._playing:
                raise item.failed
            log.warning("game %d is tried again in %g s: %s", item.game, RETRY_FAILING_GAME_AFTER_S, item.failed)

    def _play_races(self, game: int) -> None:
        # The kernel ends a game with the thread that started it, so this thread must outlive the game.
        try:
            while not self._is_closed.is_set():
                order = self._orders[game].get()
                while isinstance(order, _Order):
                    order = self._play_race(game, order)
        finally:
            self._drivers[game].close()

    def _play_race(self, game: int, race: _Order) -> _Order | None:
        driver = self._drivers[game]
        next_race: _Order | None = None

        def ask(image: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> PolicyDecision:
            nonlocal next_race
            self._inbox.put(_Message(game, race.number, seen=(image, floats, driver.newest)))
            order = self._orders[game].get()
            if isinstance(order, PolicyDecision):
                return order
            next_race = order
            raise _Interrupted

        frames = None if race.frames is None else race.frames()
        if race.frames is not None and frames is None:
            return None
        driver.game = race.settings
        try:
            rollout_results, end_race_stats = driver.rollout(race.map_entry, ask, frames)
        except _Interrupted:
            return next_race
        except GameKeepsFailingError as error:
            self._inbox.put(_Message(game, race.number, failed=error))
            try:
                order = self._orders[game].get(timeout=RETRY_FAILING_GAME_AFTER_S)
            except queue.Empty:
                self._inbox.put(_Message(game, race.number))
            else:
                return order if isinstance(order, _Order) else None
        except Exception as error:  # raised again by `recv`
            self._inbox.put(error)
        else:
            ended = Race.of_rollout(rollout_results, end_race_stats)
            self._inbox.put(_Message(game, race.number, ended=ended))
        return None
