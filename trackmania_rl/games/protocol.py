"""One interface to games, wherever they run: begin races, receive what waits for a decision, send decisions.

Whoever drives goes round one loop, whether the games are stepped together in this process (`in_process`) or each
answers when it can, from behind its socket (`socket_games`)::

    for game in range(games.n_games):
        games.begin(game, map_entry)
    while driving:
        received = games.recv()
        games.send(received.ids, decide(received.images, received.floats))
        for game, race in received.ended.items():
            keep(race.rollout_results, race.end_race_stats)
            games.begin(game, map_entry)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.policy import BatchDecision, Policy
from trackmania_rl.race.results import EndedRace
from trackmania_rl.settings import GameSettings, MapEntry

GameIds = npt.NDArray[np.int64]
"""(n,) numbers of games, each once."""
FramesRoom = Callable[[], npt.NDArray[np.uint8] | None]
"""Room for the frames of a race, (longest race's states, 1, H, W); waits for it. None if no race is wanted any more."""


@dataclass(frozen=True, slots=True)
class Received:
    """What has come from games; all of it may be empty.

    Attributes:
        ids: (n,) the games that wait for a decision.
        images: (n, S, H, W) uint8, the last S frames of each race, in its first states the first one over and over.
        floats: (n, F) float32, see `ObservationLayout`.
        is_first: (n,) bool, whether it is the race's first state: also where a race that was lost with its game has
            begun again.
        ended: races that have ended, by game; arrays may be views that the game's next race overwrites.
        lost: games that could not play their race; another one may go better.
    """

    ids: GameIds
    images: npt.NDArray[np.uint8]
    floats: npt.NDArray[np.float32]
    is_first: npt.NDArray[np.bool_]
    ended: Mapping[int, EndedRace]
    lost: tuple[int, ...] = field(default=())


class Motion(NamedTuple):
    """What else there is to know of n states, as in `Observation`.

    Attributes:
        meters: (n,) float64, metres along the line.
        race_time_ms: (n,) int64.
        position_m: (n, 3) float32, in world axes.
        speed_m_s: (n,) float64.
        zone_idx: (n,) int64, the current zone.
        car: (n, 22) float32, see `CAR_COLUMNS`.
    """

    meters: npt.NDArray[np.float64]
    race_time_ms: npt.NDArray[np.int64]
    position_m: npt.NDArray[np.float32]
    speed_m_s: npt.NDArray[np.float64]
    zone_idx: npt.NDArray[np.int64]
    car: npt.NDArray[np.float32]


class Games(Protocol):
    """K games, each in a race of its own. One thread uses them.

    Attributes:
        n_games: K; their numbers are 0 to K - 1.
        game: settings of the races begun from now on; actions, image and longest race must stay the same.
    """

    n_games: int
    game: GameSettings

    def begin(self, game: int, map_entry: MapEntry, frames: FramesRoom | None = None) -> None:
        """Begin a race at the start line; one that is under way in this game is given up.

        Args:
            game: which game.
            map_entry: the map.
            frames: where the game may write the race's frames in the first place; called when it does, from any
                thread. If it gives None, the game stands still.

        Raises:
            UserError: if map or line can't be used; where this shows later only, `recv` raises it.
        """
        ...

    def recv(self) -> Received:
        """Wait for news: a tenth of a second at most, so that nothing may have come.

        With `sampling = "synchronous"` it returns all games that are in a race at once, in their order, and again those
        that were not answered.

        Raises:
            UserError: if a map, line or port can't be used.
            GameError: if no game that was given a race can play any more.
        """
        ...

    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        """Answer games that wait; row i is the decision of game `ids[i]`.

        Args:
            ids: (n,) which games, all of those received or some.
            decision: theirs.
            policy_s: wall-clock time that it took, for the races' figures.
        """
        ...

    def under_way(self, game: int, states: range) -> dict[str, Any]:
        """Return a part of the race of a game that waits for a decision.

        Args:
            game: which game.
            states: numbers of states of its race, from 0; in each of them a decision was made.

        Returns:
            These states, and the actions from one to the next, as a race's `rollout_results`; the arrays may be views
            of what the game goes on to write.
        """
        ...

    def motion(self, ids: GameIds) -> Motion:
        """Return what else there is to know of the states in which some games (n,) wait."""
        ...

    def picture(self, game: int, width_px: int, height_px: int) -> npt.NDArray[np.uint8] | None:
        """Draw the view from behind a game's car now, (height_px, width_px, 3) uint8 RGB; None where it shows none."""
        ...

    def close(self) -> bool:
        """End the games; return whether they have ended: one that hangs may not."""
        ...


class Listener(Protocol):
    """Reads what a collector's games show and what is decided, such as for the live page."""

    def begins(self, game: int, map_entry: MapEntry) -> None:
        """Called before `Games.begin`."""
        ...

    def received(self, received: Received) -> None:
        """Called after `Games.recv`; may add columns to the `rollout_results` of ended races."""
        ...

    def decided(self, ids: GameIds, decision: BatchDecision) -> None:
        """Called before `Games.send`."""
        ...


def rollout(
    games: Games,
    map_entry: MapEntry,
    make_policy: Callable[[], Policy],
    frames: FramesRoom | None = None,
    listeners: Sequence[Listener] = (),
) -> EndedRace:
    """Play one race in the first game alone.

    Args:
        games: of which no other is in a race.
        map_entry: the map.
        make_policy: makes the race's policy; called again if the race is lost with its game and begins again.
        frames: see `Games.begin`.
        listeners: called on the way.

    Raises:
        UserError: if map, line or port can't be used.
        GameError: if the game keeps failing.
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
            for listener in listeners:
                listener.decided(received.ids, decision)
            games.send(received.ids, decision)
