"""Floats of a user's own: seen while driving, in the race's columns and by networks, always the same bytes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackmania_rl.games.own_floats import Floats, RaceGamesWithFloats
from trackmania_rl.games.race_games import RaceGames
from trackmania_rl.race.policy import BatchDecision
from trackmania_rl.settings import MapEntry, Settings, SettingsError

N_ACTIONS = 12


class TwoFloats(RaceGamesWithFloats):
    own_mean = (3.0, 0.0)
    own_std = (2.0, 1.0)
    calls = 0

    def own_floats(self, floats: Floats) -> Any:
        self.calls += 1
        speed_m_s = np.linalg.norm(floats[:, self.layout["velocity_m_s"]], axis=1)
        return np.stack((speed_m_s, np.full(len(floats), self.calls)), axis=1)  # tells when it was asked


class OneMeanTooFew(TwoFloats):
    own_mean = (3.0,)


class OneStdTooMany(TwoFloats):
    own_std = (2.0, 1.0, 1.0)


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(False, "games_per_collector=2")


def drive(games: Any, entry: MapEntry, actions: np.ndarray) -> tuple[dict[int, list[np.ndarray]], dict[int, Any]]:
    """Drive a race in each game, a step later in each; return the floats shown, by game, and the races."""
    shown: dict[int, list[np.ndarray]] = {game: [] for game in range(games.n_games)}
    ended: dict[int, Any] = {}
    games.begin(0, entry)
    while len(ended) < games.n_games:
        received = games.recv()
        for game, race in received.ended.items():
            copies = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in race.rollout_results.items()}
            ended[game] = race, copies
        for game, floats in zip(received.ids.tolist(), received.floats, strict=True):
            shown[game].append(floats)
        chosen = np.array([actions[len(shown[game]) % len(actions)] for game in received.ids.tolist()], dtype=np.int64)
        n = len(received.ids)
        games.send(received.ids, BatchDecision(chosen, np.ones(n, bool), np.zeros((n, N_ACTIONS), np.float32)))
        if not shown[1] and not ended:
            games.begin(1, entry)
    return shown, ended


@pytest.fixture
def drawn() -> np.ndarray:
    return np.random.default_rng(6).choice([0, 0, 0, 0, 1, 2, 3, 4, 5], 200)


def test_what_was_shown_is_what_is_kept(
    settings: Settings, entry_of: Callable[[str], MapEntry], maps_folder: Path, drawn: np.ndarray
) -> None:
    builder, plain = TwoFloats(settings), RaceGames(settings)
    assert builder.spaces.n_floats == plain.spaces.n_floats + 2
    assert builder.spaces.float_mean[-2:] == (3.0, 0.0)
    assert builder.spaces.float_std[-2:] == (2.0, 1.0)
    rng = np.random.default_rng(0)
    games = builder.make_games(0, maps_folder, rng)
    shown, ended = drive(games, entry_of("straight"), drawn)
    theirs_shown, theirs = drive(plain.make_games(0, maps_folder, rng), entry_of("straight"), drawn)
    for game, (race, columns) in ended.items():
        floats, n_actions = columns["state_float"], len(columns["actions"])
        assert floats.dtype == np.float32
        assert floats.shape == (n_actions + 1, builder.spaces.n_floats)
        np.testing.assert_array_equal(floats[:-1], np.array(shown[game])[:n_actions])
        np.testing.assert_array_equal(floats[:, :-2], theirs[game][1]["state_float"])
        np.testing.assert_array_equal(np.array(shown[game])[:, :-2], theirs_shown[game])
        np.testing.assert_array_equal(floats[-1], race.end.last.floats)
        speed_m_s = np.linalg.norm(floats[:, builder.layout["velocity_m_s"]], axis=1)
        np.testing.assert_array_equal(floats[:, -2], speed_m_s)
        assert race.end.is_finished


@pytest.mark.parametrize("part", [OneMeanTooFew, OneStdTooMany])
def test_sizes_that_do_not_fit_are_told(settings: Settings, part: type[RaceGamesWithFloats]) -> None:
    with pytest.raises(
        SettingsError, match=rf"{part.__name__} has \d numbers in own_mean and \d in own_std, .*\(2, 2\)"
    ):
        part(settings)
