"""A collector without processes that steps many games in its own process together, with one pass through the network.

Each game is in a race of its own; a race that ends is sent off, and the next one of the map cycle begins in its place.
While the learner is behind, all games stand still: races begun later would only be driven by older weights.
"""

from __future__ import annotations

import time

import numpy as np

from trackmania_rl.games.decision_desk import StopCollecting
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.training.collector import CollectorParts, Race, Races, WeightPuller


class BatchCollector:
    """Plays the map cycle in all games: exploration races with noise, evaluation races greedily.

    Args:
        parts: what surrounds the collector.
        games: what is played.

    Raises:
        UserError: if a map of the cycle can't be used.
    """

    def __init__(self, parts: CollectorParts, games: InProcessGames) -> None:
        self._parts = parts
        self._games = games
        self._cycle = Races(parts)
        self._races = [self._begin_race(game) for game in range(games.n_games)]

    def run(self) -> None:
        """Play until the run ends."""
        try:
            while not self._parts.run_state.stop_requested:
                self.play_one_action()
        except StopCollecting:
            return

    def play_one_action(self) -> None:
        """Make one action in every game.

        Raises:
            StopCollecting: if the run ends while the learner is waited for.
        """
        for puller in (self._parts.explorer, self._parts.evaluator):
            games = [game for game, race in enumerate(self._races) if race.puller is puller]
            if games:
                self._play_one_action_in(games, puller)

    def _play_one_action_in(self, numbers: list[int], puller: WeightPuller) -> None:
        puller.pull_if_due(self._parts.run_state.settings.sync.update_inference_network_every_n_actions)
        games = np.array(numbers)
        began_s = time.perf_counter()
        explorations = [self._races[game].exploration for game in numbers]
        decision = puller.inferer.act_batch(*self._games.observations(games), explorations)
        ends = self._games.step(games, decision, policy_s=time.perf_counter() - began_s)
        for game, end in ends.items():
            # Waits for a free slot; the frames are copied into it when the race is sent.
            if self._parts.rollouts.acquire_frames(game) is None:
                raise StopCollecting
            rollout_results, end_race_stats = self._games.results(game, end)
            self._parts.rollouts.put(game, rollout_results, self._races[game].stats(end_race_stats))
            self._races[game] = self._begin_race(game)

    def _begin_race(self, game: int) -> Race:
        """Begin the map cycle's next race in a game."""
        race, self._games.game = self._cycle.next()
        self._games.begin(game, race.entry)
        return race
