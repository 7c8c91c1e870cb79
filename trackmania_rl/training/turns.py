"""Synchronous sampling: collectors and learner take turns, so that the same seed gives the same run.

In a turn every collector plays all of its games, by the weights, frame count and settings at the turn's beginning: each
game a race, or where races are handed on in fragments, the actions of one. What a collector draws in a turn depends on
the seed and on the turn's number alone, and its place in the map cycle on the races that it has handed on. Races that
are under way between two turns, in fragments, can be driven again by the decisions that were handed on. So a run that
is interrupted and goes on is the same run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trackmania_rl.games.protocol import Games, Received
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.race.progress import RacePosition
from trackmania_rl.settings.game import RACES
from trackmania_rl.training.collector import Collector, CollectorParts, Race, race_at

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
        game = parts.run_state.settings.game
        can_drive_again = game.game == "simulated" and game.games == RACES and self._fragment_length_actions is not None
        self._to_drive_again = tuple(parts.progress.under_way.values()) if can_drive_again else ()

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
        if self._to_drive_again and not self._drive_again():
            return False
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
            received = self._receive()
            if not self._hand_on_ended(received):
                break
            if len(received.ids) == len(self._races):
                return received
        return None

    def _drive_again(self) -> bool:
        """Bring the races that an earlier session had under way to where they were; False if the run ends meanwhile.

        The simulated game knows no chance: the same decisions lead to the same states. Nothing of it is handed on.
        """
        to_drive, self._to_drive_again = self._to_drive_again, ()
        self._parts.run_state.pull()
        cycle = self._parts.run_state.settings.game.map_cycle
        decided: dict[int, BatchDecision] = {}
        for under_way in to_drive:
            race_of_cycle = race_at(cycle, under_way.position, self._parts.generated_maps)
            game = under_way.position.game
            if race_of_cycle is None or game >= self._games.n_games:  # the configuration was edited
                continue
            decided[game] = under_way.decisions
            self._begin(race_of_cycle)
        while left := [game for game in sorted(decided) if self._n_decided(game) < len(decided[game].actions)]:
            received = self._receive_all()
            if received is None:
                return False
            games = [game for game in received.ids.tolist() if game in left]
            rows = [self._n_decided(game) for game in games]
            decision = BatchDecision(
                *(
                    np.stack([getattr(decided[game], name)[row] for game, row in zip(games, rows, strict=True)])
                    for name in ("actions", "is_greedy", "q_values")
                )
            )
            for row, game in enumerate(games):
                self._note(game, decision, row)
            self._send(np.array(games, dtype=np.int64), decision)
        for under_way in to_drive:
            race = self._races.get(under_way.position.game)
            if race is not None and race.in_fragments is not None:
                race.in_fragments.n_actions, race.in_fragments.n_transitions = (
                    under_way.n_actions,
                    under_way.n_transitions,
                )
        return True

    def _n_decided(self, game: int) -> int:
        """How many decisions were made in a game's race; of one that has ended, all there ever will be."""
        race = self._races.get(game)
        return sys.maxsize if race is None or race.in_fragments is None else race.in_fragments.n_decided

    def _note(self, game: int, decision: BatchDecision, row: int) -> None:
        in_fragments = self._races[game].in_fragments
        assert in_fragments is not None
        in_fragments.decided(decision, row)

    def _position_now(self, race: Race) -> RacePosition:
        """Tell what was decided last as well, from which the race can be driven again."""
        position = super()._position_now(race)
        return (
            position if race.in_fragments is None else replace(position, last_decision=race.in_fragments.last_decision)
        )
