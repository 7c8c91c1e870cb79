"""Games around other games: what a wrapper leaves as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Motion, Received
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.settings import GameSettings, MapEntry


class WrappedGames:
    """Hands everything on to other games; a subclass overrides what it changes. See `Games`.

    Args:
        games: which are played.

    Attributes:
        n_games: theirs.
    """

    def __init__(self, games: Games) -> None:
        self.n_games = games.n_games
        self._games = games

    @property
    def game(self) -> GameSettings:
        """See `Games`."""
        return self._games.game

    @game.setter
    def game(self, settings: GameSettings) -> None:
        self._games.game = settings

    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        """See `Games.begin`."""
        self._games.begin(game, map_entry, frames)

    def recv(self) -> Received:
        """See `Games.recv`."""
        return self._games.recv()

    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        """See `Games.send`."""
        self._games.send(ids, decision, policy_s)

    def under_way(self, game: int, states: range) -> dict[str, Any]:
        """See `Games.under_way`."""
        return self._games.under_way(game, states)

    def motion(self, ids: GameIds) -> Motion:
        """See `Games.motion`."""
        return self._games.motion(ids)

    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8] | None:
        """See `Games.picture`."""
        return self._games.picture(game, width_px, height_px)

    def close(self) -> bool:
        """See `Games.close`."""
        return self._games.close()
