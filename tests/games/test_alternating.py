"""Two halves of games that take turns: every game sees what it would see alone."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackmania_rl.games.alternating import AlternatingGames, games_for
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import GameIds, Games, Received
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.settings import MapEntry, Settings

N_GAMES = 5


def actions_of(game: int, n: int) -> int:
    """Mostly forward."""
    return int(np.random.default_rng((game, n)).choice([0, 0, 0, 0, 1, 2, 3, 4, 5]))


def play(games: Games, entry: MapEntry) -> tuple[dict[int, dict[str, Any]], list[list[int]]]:
    """Play a race in every game; returns what came out of each, and which games were received together."""
    n_decided, ended, together = [0] * N_GAMES, {}, []
    for game in range(N_GAMES):
        games.begin(game, entry)
    while len(ended) < N_GAMES:
        received = games.recv()
        ended |= {
            game: {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in race.rollout_results.items()}
            for game, race in received.ended.items()
        }
        ids = received.ids.tolist()
        if not ids:
            continue
        together.append(ids)
        assert received.is_first.tolist() == [n_decided[game] == 0 for game in ids]
        assert games.motion(received.ids).race_time_ms.tolist() == [50 * n_decided[game] for game in ids]
        actions = np.array([actions_of(game, n_decided[game]) for game in ids])
        for game in ids:
            n_decided[game] += 1
        is_odd = received.ids % 2 == 1  # as where one network explores and another evaluates
        for some in (is_odd, ~is_odd):
            q_values = received.floats[some, :12]
            games.send(received.ids[some], BatchDecision(actions[some], np.ones(some.sum(), dtype=bool), q_values))
    return ended, together


def test_every_game_drives_its_own_race(
    maps_folder: Path, make_settings: Callable[..., Settings], entry_of: Callable[[str], MapEntry]
) -> None:
    settings = make_settings(False)
    alternating = settings.sync.model_copy(update={"sampling": "alternating"})

    def make(numbers: Any) -> Games:
        return InProcessGames(len(numbers), settings.game, settings.observation, maps_folder)

    expected, all_together = play(games_for(settings.sync, range(N_GAMES), make), entry_of("straight"))
    games = games_for(alternating, range(N_GAMES), make)
    assert isinstance(games, AlternatingGames)
    assert games.n_games == N_GAMES
    for _ in range(2):
        ended, in_halves = play(games, entry_of("straight"))
        assert all_together[0] == [0, 1, 2, 3, 4]
        assert in_halves[0] in ([0, 1], [2, 3, 4])
        assert in_halves[0] == in_halves[2] != in_halves[1] == in_halves[3]
        for game, rollout in expected.items():
            for name, value in rollout.items():
                np.testing.assert_array_equal(ended[game][name], value, err_msg=name)
    games.game = settings.game.model_copy(update={"cutoff_race_longer_than_ms": 300})
    ended, _ = play(games, entry_of("straight"))
    assert {len(rollout["actions"]) for rollout in ended.values()} == {7}
    assert games.close()


class OneSlowGame:
    """A game whose actions wait for `may_drive`."""

    n_games = 1

    def __init__(self) -> None:
        self.may_drive, self.n_sent, self.thread = threading.Event(), 0, ""

    def send(self, ids: GameIds, decision: BatchDecision, policy_s: float = 0.0) -> None:
        assert self.may_drive.wait(60)
        self.n_sent, self.thread = self.n_sent + 1, threading.current_thread().name
        if decision.actions[0] == 7:
            raise FloatingPointError("the simulated car left the world of finite numbers")

    def recv(self) -> Any:
        empty = np.zeros((1, 0), dtype=np.float32)
        return Received(np.array([0]), empty, empty, np.array([False]), {})

    def close(self) -> bool:
        return True


def decision(action: int) -> BatchDecision:
    return BatchDecision(np.array([action]), np.array([True]), np.zeros((1, 12), dtype=np.float32))


def test_one_half_drives_while_the_other_is_decided_for() -> None:
    halves: Any = OneSlowGame(), OneSlowGame()
    games = AlternatingGames(*halves)
    games.send(np.array([1]), decision(0))
    assert games.recv().ids.tolist() == [0]
    assert halves[1].n_sent == 0, "the other half is still driving"
    for half in halves:
        half.may_drive.set()
    assert games.recv().ids.tolist() == [1]
    assert halves[1].n_sent == 1
    assert halves[1].thread.startswith("alternating games")
    games.send(np.array([0]), decision(7))
    with pytest.raises(FloatingPointError, match="finite numbers"):
        games.recv()
    assert games.close()
