"""A collector without processes that plays many games in its own process at once, with one pass through the network.

Each game is in a race of its own; a race that ends is sent off, and the next one of the map cycle begins in its place.
While the learner is behind, all games stand still: races begun later would only be driven by older weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trackmania_rl.agents.exploration import Exploration
from trackmania_rl.in_process.games import InProcessGames
from trackmania_rl.multiprocess.collector import (
    RaceOutbox,
    StopCollecting,
    WeightsFollower,
    map_cycle,
    stats_of_entry,
)
from trackmania_rl.multiprocess.live_settings import LiveSettings
from trackmania_rl.settings import MapEntry


@dataclass(frozen=True, slots=True)
class _Race:
    """What is being driven in one game, and by whom."""

    entry: MapEntry
    follower: WeightsFollower
    exploration: Exploration


class BatchCollector:
    """Plays the map cycle in all games: exploration races with noise, evaluation races greedily.

    Args:
        live: the settings in force; a race is played by those at its beginning.
        games: what is played.
        explorer: network and shared weights of exploration races.
        evaluator: the same for evaluation races (averaged weights).
        frames_total: how many frames the whole run has collected, for the exploration schedules.
        stop_requested: whether the run is to end.
        outbox: where finished races go.

    Raises:
        UserError: if a map of the cycle can't be used.
    """

    def __init__(
        self,
        live: LiveSettings,
        games: InProcessGames,
        explorer: WeightsFollower,
        evaluator: WeightsFollower,
        frames_total: Callable[[], int],
        stop_requested: Callable[[], bool],
        outbox: RaceOutbox,
    ) -> None:
        self._live = live
        self._games = games
        self._explorer = explorer
        self._evaluator = evaluator
        self._frames_total = frames_total
        self._stop_requested = stop_requested
        self._outbox = outbox
        self._entries = map_cycle(live)
        self._actions_until_pull = 0
        self._races = [self._begin_race(game) for game in range(games.n_games)]

    def run(self) -> None:
        """Play until the run ends."""
        try:
            while not self._stop_requested():
                self.play_one_action()
        except StopCollecting:
            return

    def play_one_action(self) -> None:
        """Make one action in every game.

        Raises:
            StopCollecting: if the run ends while the learner is waited for.
        """
        self._pull_weights_now_and_then()
        for follower in (self._explorer, self._evaluator):
            games = [game for game, race in enumerate(self._races) if race.follower is follower]
            if games:
                self._play_one_action_in(games, follower)

    def _play_one_action_in(self, numbers: list[int], follower: WeightsFollower) -> None:
        games = np.array(numbers)
        began_s = time.perf_counter()
        explorations = [self._races[game].exploration for game in numbers]
        decision = follower.inferer.act_batch(*self._games.observations(games), explorations)
        ends = self._games.step(games, decision, policy_s=time.perf_counter() - began_s)
        for game, end in ends.items():
            if self._outbox.frames() is None:
                raise StopCollecting
            rollout_results, end_race_stats = self._games.results(game, end)
            self._outbox.send(rollout_results, {**end_race_stats, **stats_of_entry(self._races[game].entry)})
            self._races[game] = self._begin_race(game)

    def _begin_race(self, game: int) -> _Race:
        """Begin the map cycle's next race in a game."""
        self._live.refresh()
        self._games.game = self._live.current.game
        entry = next(self._entries)
        follower = self._explorer if entry.is_explo else self._evaluator
        follower.inferer.exploration_settings = self._live.current.exploration
        self._games.begin(game, entry)
        exploration = follower.inferer.exploration_of_race(is_explo=entry.is_explo, frame_count=self._frames_total())
        return _Race(entry, follower, exploration)

    def _pull_weights_now_and_then(self) -> None:
        if self._actions_until_pull == 0:
            self._actions_until_pull = self._live.current.sync.update_inference_network_every_n_actions
            self._explorer.pull()
            self._evaluator.pull()
        self._actions_until_pull -= 1
