"""Interface of games, in this process (`in_process`) and behind sockets (`socket_games`).

One loop plays both::

    for game in range(games.n_games):
        games.begin(game, map_entry)
    while True:
        received = games.recv()
        games.send(received.ids, decide(received.images, received.floats))
        for game, race in received.ended.items():
            keep(race)
            games.begin(game, map_entry)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.actions import BatchDecision, Policy
from trackmania_rl.race.race import Race
from trackmania_rl.settings import GameSettings, MapEntry

GameIds = npt.NDArray[np.int64]
"""(n,) numbers of games, each once."""
FramesRoom = Callable[[], npt.NDArray[np.uint8] | None]
"""Waits for storage for a race's frames, (states of the longest race, 1, H, W); returns None if the run ends."""


@dataclass(frozen=True, slots=True)
class Received:
    """News from games; all of it may be empty."""

    ids: GameIds  #: (n,) games that wait for a decision
    images: npt.NDArray[np.uint8]  #: (n, S, H, W), the last S frames; a race's first frame is repeated before it
    floats: npt.NDArray[np.float32]  #: (n, F), see `ObservationLayout`
    is_first: npt.NDArray[np.bool_]  #: (n,) whether it is a race's first state, also after a restart
    ended: Mapping[int, Race]  #: by game; the game's next race may overwrite the arrays
    lost: tuple[int, ...] = ()  #: games that could not play their race


class Motion(NamedTuple):
    """Place and motion of the cars in n states, as in `Observation`."""

    meters: npt.NDArray[np.float64]  #: (n,)
    race_time_ms: npt.NDArray[np.int64]  #: (n,)
    position_m: npt.NDArray[np.float32]  #: (n, 3)
    speed_m_s: npt.NDArray[np.float64]  #: (n,)
    zone_idx: npt.NDArray[np.int64]  #: (n,)
    car: npt.NDArray[np.float32]  #: (n, 22)


class Games(Protocol):
    """K games, each in its own race. For use by one thread."""

    n_games: int  #: K
    game: GameSettings  #: from the next race on; actions, image and longest race must stay the same

    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        """Begin a race at the start line, dropping one in progress in this game.

        `frames` is called from any thread. If it returns None, the game does nothing.

        Raises:
            UserError: if map or line can't be used; `recv` may raise it instead.
        """
        ...

    def recv(self) -> Received:
        """Wait for news, at most 0.1 s.

        With `sampling = "synchronous"`, return all games in a race at once, in order, even unanswered ones.

        Raises:
            UserError: if a map, line or port can't be used.
            GameError: if no game in a race can continue.
        """
        ...

    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        """Answer some waiting games (n,) with n decisions; `policy_s` is the wall-clock time of deciding."""
        ...

    def under_way(self, game: int, states: range) -> Race:
        """Return some decided states of a waiting game's race; arrays may be views."""
        ...

    def motion(self, ids: GameIds) -> Motion:
        """Return place and motion of the cars in some waiting games (n,).

        Raises:
            TypeError: if the games have no cars.
        """
        ...

    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8] | None:
        """Draw the view from behind a game's car, (height_px, width_px, 3) uint8 RGB; None if unsupported."""
        ...

    def close(self) -> bool:
        """End the games; return False if one hangs and still runs."""
        ...


class Listener(Protocol):
    """Reader of a collector's states, e.g. for the live page."""

    def begins(self, game: int, map_entry: MapEntry) -> None:
        """Called before `Games.begin`."""
        ...

    def received(self, received: Received) -> None:
        """Called after `Games.recv`; may add columns to ended races."""
        ...


def rollout(
    games: Games,
    map_entry: MapEntry,
    make_policy: Callable[[], Policy],
    frames: FramesRoom | None = None,
    listeners: Sequence[Listener] = (),
) -> Race:
    """Play one race in the first game, with no other race in progress. Errors are as of `Games`.

    Args:
        games: play it.
        map_entry: the map.
        make_policy: makes the race's policy; called again if the race restarts in another game.
        frames: as of `Games.begin`.
        listeners: read the race.
    """
    for listener in listeners:
        listener.begins(0, map_entry)
    games.begin(0, map_entry, frames)
    while True:
        received = games.recv()
        for listener in listeners:
            listener.received(received)
        if 0 in received.ended:
            return received.ended[0]
        if len(received.ids) > 0:
            if received.is_first[0]:
                policy = make_policy()
            decision = BatchDecision.of_one(policy(received.images[0], received.floats[0]))
            games.send(received.ids, decision)
