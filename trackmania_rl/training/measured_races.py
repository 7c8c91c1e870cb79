"""Races whose states are measured: at random, or by somebody's inputs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.games.protocol import GameIds, Games, rollout
from trackmania_rl.race.policy import BatchDecision, Policy, PolicyDecision
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import MapEntry
from trackmania_rl.training.demonstrations import Demonstration

CHANGE_PROBABILITY: Final = 0.1
"""Of another action at each decision: an action is held for half a second on average, so that the car gets away."""
THROTTLE_PROBABILITY: Final = 0.9
"""That it accelerates and does not brake, where there are such actions."""

OnFloats = Callable[[npt.NDArray[np.float32]], object]
"""Takes the states of a race, (T + 1, F) float32, which are valid until it returns."""


class RandomDriver:
    """Decides at random in many games, and holds on to each decision for a while.

    Args:
        spaces: of the games.
        n_games: how many there are.
        rng: draws everything.
    """

    def __init__(self, spaces: Spaces, n_games: int, rng: np.random.Generator) -> None:
        self._spaces = spaces
        self._rng = rng
        self._action_space = spaces.action
        self._action_space.seed(int(rng.integers(2**31)))
        self._actions = np.array([self._draw() for _ in range(n_games)], dtype=spaces.action_dtype)

    def decide(self, ids: GameIds) -> BatchDecision:
        """Decide in some games (n,)."""
        for game in ids[self._rng.random(len(ids)) < CHANGE_PROBABILITY].tolist():
            self._actions[game] = self._draw()
        n = len(ids)
        values = np.zeros((n, self._spaces.n_values), dtype=np.float32)
        return BatchDecision(self._actions[ids], np.zeros(n, dtype=np.bool_), values)

    def _draw(self) -> Any:
        """Draw one action."""
        throttle = self._spaces.throttle_actions
        if throttle and self._rng.random() < THROTTLE_PROBABILITY:
            return self._rng.choice(throttle)
        return self._action_space.sample()


def drive_at_random(
    games: Games, spaces: Spaces, entries: Sequence[MapEntry], n_races: int, rng: np.random.Generator, on_race: OnFloats
) -> None:
    """Drive races at random, on the maps in turn, in all games at once.

    Args:
        games: no race is under way in any.
        spaces: theirs.
        entries: the maps.
        n_races: how many.
        rng: draws the actions.
        on_race: sees each race.

    Raises:
        UserError: if a map can't be used.
        GameError: if no game plays any more.
    """
    waiting = itertools.islice(itertools.cycle(entries), n_races)
    driver = RandomDriver(spaces, games.n_games, rng)
    driven: dict[int, MapEntry] = {}
    for game, entry in zip(range(games.n_games), waiting, strict=False):
        driven[game] = entry
        games.begin(game, entry)
    while driven:
        received = games.recv()
        ids = received.ids[np.isin(received.ids, list(driven))]
        games.send(ids, driver.decide(ids))
        for game, race in received.ended.items():
            on_race(race.rollout_results["state_float"])
            following = next(waiting, None)
            if following is None:
                del driven[game]
            else:
                driven[game] = following
                games.begin(game, following)
        for game in received.lost:
            games.begin(game, driven[game])


def drive_given(games: Games, spaces: Spaces, given: Sequence[Demonstration], on_race: OnFloats) -> None:
    """Drive somebody's inputs, in the first game.

    Args:
        games: no race is under way in any.
        spaces: theirs.
        given: what to drive.
        on_race: sees each race.

    Raises:
        UserError: if a map can't be used.
        GameError: if the game keeps failing.
    """
    for demonstration in given:
        make_policy = functools.partial(_policy_of, demonstration, spaces)
        on_race(rollout(games, demonstration.entry, make_policy).rollout_results["state_float"])


def _policy_of(demonstration: Demonstration, spaces: Spaces) -> Policy:
    """Make the policy of a demonstration: its actions, then the last one on and on."""
    waiting = itertools.chain(demonstration.actions, itertools.repeat(demonstration.actions[-1]))
    values = np.zeros(spaces.n_values, dtype=np.float32)

    def policy(_: npt.NDArray[np.uint8], __: npt.NDArray[np.float32]) -> PolicyDecision:
        return PolicyDecision(next(waiting), False, values)

    return policy
