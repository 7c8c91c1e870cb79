"""Check sums of what games show and are told, for the pipeline check (`crc_debug`)."""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.games.protocol import FramesRoom, GameIds, Games, Received
from trackmania_rl.games.wrapped import WrappedGames
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT, BatchDecision
from trackmania_rl.settings import MapEntry

CHECK_SUMS: Final = "crc_debug"
"""The column of `rollout_results`: (T, 2) int64, check sums of the states in which it was decided, and of actions;
(T + 1, 2) where the last action was decided, but the finish came first."""


def sums_of_states(images: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> list[int]:
    """Compute a check sum of each state: newest frame and floats, but for the time elapsed in the mini-race.

    Args:
        images: (n, S, H, W).
        floats: (n, F).
    """
    seen = floats.astype(np.float32)
    seen[:, ELAPSED_ACTIONS_FLOAT] = 0
    newest = images[:, -1:]
    return [zlib.crc32(of.tobytes(), zlib.crc32(frame.tobytes())) for frame, of in zip(newest, seen, strict=True)]


def sums_of_actions(actions: npt.NDArray[Any]) -> list[int]:
    """Compute a check sum of each action, (n,) whole numbers or (n, D) floats."""
    dtype = np.int64 if actions.ndim == 1 else np.float32
    return [zlib.crc32(action.tobytes()) for action in actions.astype(dtype)]


class CheckedGames(WrappedGames):
    """Games whose races come with check sums of what was seen and decided, at that moment; see `Games`.

    Fragments of races under way come without.

    Args:
        games: which are played.
    """

    def __init__(self, games: Games) -> None:
        super().__init__(games)
        self._states: dict[int, int] = {}  # of the games that wait
        self._races: dict[int, list[tuple[int, int]]] = {}

    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        """See `Games.begin`."""
        self._races[game] = []
        super().begin(game, map_entry, frames)

    def recv(self) -> Received:
        """See `Games.recv`."""
        received = super().recv()
        if len(received.ids) > 0:
            sums = sums_of_states(received.images, received.floats)
            self._states.update(zip(received.ids.tolist(), sums, strict=True))
        for game in received.ids[received.is_first].tolist():
            self._races[game] = []
        for game, race in received.ended.items():
            race.rollout_results[CHECK_SUMS] = np.array(self._races[game], dtype=np.int64).reshape(-1, 2)
        return received

    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        """See `Games.send`."""
        for game, check_sum in zip(ids.tolist(), sums_of_actions(decision.actions), strict=True):
            self._races[game].append((self._states[game], check_sum))
        super().send(ids, decision, policy_s)
