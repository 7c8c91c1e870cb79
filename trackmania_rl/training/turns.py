"""Synchronous sampling: collectors and learner take turns, so that the same seed gives the same run.

In a turn every collector plays all of its games, by the weights, frame count and settings at the turn's beginning: each
game a race, or where races are handed on in fragments, the actions of one. What a collector draws in a turn depends on
the seed and on the turn's number alone, and its place in the map cycle on how many turns were before. Between two turns
there is then nothing to remember where races are whole: a run that is interrupted and goes on is the same run.
"""

from __future__ import annotations

from collections.abc import Callable

from trackmania_rl.games.protocol import Games, Received
from trackmania_rl.training.collector import Collector, CollectorParts

BeginTurn = Callable[[int], object]
"""Called with a turn's number before it is played; has all chance begin anew."""


class TurnTakingCollector(Collector):
    """A collector that plays when it is its turn.

    Args:
        parts: see `Collector`; actors are replaced at each turn.
        games: see `Collector`; they answer all together, see `Games.recv`.
        begin_turn: gives the actors of `parts` the random numbers of a turn.
        in_first_turn: what else this collector does before its first races.
    """

    def __init__(
        self,
        parts: CollectorParts,
        games: Games,
        begin_turn: BeginTurn,
        in_first_turn: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(parts, games)
        self._begin_turn = begin_turn
        self._in_first_turn: Callable[[], object] | None = in_first_turn

    def run(self) -> None:
        """Play turns until the run ends; see `Collector.run`."""
        while (number := self._parts.rollouts.await_turn()) is not None and self._play_turn(number):
            self._parts.rollouts.end_turn()

    def _play_turn(self, number: int) -> bool:
        """Play a turn; False if the run ends meanwhile."""
        if self._in_first_turn is not None:
            self._in_first_turn()
            self._in_first_turn = None
        self._begin_turn(number)
        for puller in (self._parts.explorer, self._parts.evaluator):
            puller.pull_at_next_pass()
        self.begin_races()
        n_passes = 0
        while self._races and n_passes != self._fragment_length_actions:
            received = self._receive_all()
            if received is None:
                return False
            self._answer(received)
            n_passes += 1
        if self._races and self._receive_all() is None:  # some may have ended by the last action
            return False
        return all(self._hand_on_fragment(game, at_least_actions=1) for game in sorted(self._races))

    def _receive_all(self) -> Received | None:
        """Receive all games, and hand on the races that have ended; None if the run ends meanwhile."""
        while not self._parts.run_state.stop_requested:
            self._parts.beat()
            received = self._games.recv()
            self._note_what_begins(received)
            if not self._hand_on_ended(received):
                break
            if len(received.ids) == len(self._races):
                return received
        return None
