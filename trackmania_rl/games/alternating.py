"""Two halves of a collector's games, which take turns: one half is played while the other half's actions are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Motion, Received
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.settings import GameSettings, MapEntry, SyncSettings

Member = TypeVar("Member")


def games_for(sync: SyncSettings, members: Sequence[Member], make: Callable[[Sequence[Member]], Games]) -> Games:
    """Make a collector's games as the setting `sampling` says: all together, or in halves that take turns.

    Args:
        sync: has the setting.
        members: one for each game, such as ports; at least two for halves.
        make: makes games for some of them.
    """
    if sync.sampling != "alternating":
        return make(members)
    half = len(members) // 2
    return AlternatingGames(make(members[:half]), make(members[half:]))


class AlternatingGames(Games):
    """Two halves as one. `recv` returns the states of one half, then those of the other, and so on.

    A thread carries out what is sent to a half, until that half is received again.

    Args:
        first: the games from number 0 on.
        second: the others.
    """

    def __init__(self, first: Games, second: Games) -> None:
        self.n_games = first.n_games + second.n_games
        self._halves = (first, second)
        self._begins_at = (0, first.n_games)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="alternating games")
        self._sent: list[Future[None] | None] = [None, None]
        self._next = 0

    @property
    def game(self) -> GameSettings:
        """Settings of the races begun from now on."""
        return self._halves[0].game

    @game.setter
    def game(self, settings: GameSettings) -> None:
        for number, half in enumerate(self._halves):
            self._await(number)
            half.game = settings

    @override
    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        half, own = self._at(game)
        half.begin(own, map_entry, frames)

    @override
    def recv(self) -> Received:
        number = self._next
        self._next = 1 - number
        self._await(number)
        received, begins_at = self._halves[number].recv(), self._begins_at[number]
        return Received(
            received.ids + begins_at,
            received.images,
            received.floats,
            received.is_first,
            {begins_at + game: race for game, race in received.ended.items()},
            tuple(begins_at + game for game in received.lost),
        )

    @override
    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        for number, half in enumerate(self._halves):
            begins_at = self._begins_at[number]
            of_half = (ids >= begins_at) & (ids < begins_at + half.n_games)
            if of_half.any():
                own = BatchDecision(decision.actions[of_half], decision.is_greedy[of_half], decision.q_values[of_half])
                self._await(number)
                self._sent[number] = self._executor.submit(half.send, ids[of_half] - begins_at, own, policy_s)

    @override
    def under_way(self, game: int, states: range) -> dict[str, Any]:
        half, own = self._at(game)
        return half.under_way(own, states)

    @override
    def motion(self, ids: GameIds) -> Motion:
        places = [self._at(game) for game in ids.tolist()]
        motions = [half.motion(np.array([own])) for half, own in places]
        return Motion._make(np.concatenate(column) for column in zip(*motions, strict=True))

    @override
    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8] | None:
        half, own = self._at(game)
        return half.picture(own, width_px, height_px)

    @override
    def close(self) -> bool:
        self._executor.shutdown()
        have_ended = [half.close() for half in self._halves]
        return all(have_ended)

    def _at(self, game: int) -> tuple[Games, int]:
        """Return the half that a game is in, once that half is idle, and the game's number there."""
        number = int(game >= self._begins_at[1])
        self._await(number)
        return self._halves[number], game - self._begins_at[number]

    def _await(self, number: int) -> None:
        """Wait until a half is idle; raise the error of what was sent last."""
        sent, self._sent[number] = self._sent[number], None
        if sent is not None:
            sent.result()
