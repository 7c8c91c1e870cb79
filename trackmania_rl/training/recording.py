"""Races driven outside of a training: for a data set, and to measure the states of an observation.

The first race of a driver or of somebody's inputs is driven as it is. Further ones begin with a few forced actions, as
in `evaluation`: inputs continue as they would have otherwise, so the race may depart from its model; a driver corrects
its way from there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.episodes import Episode, EpisodeForm, episode_of_race, episodes_of_memory
from trackmania_rl.games.protocol import GameIds, Games, rollout
from trackmania_rl.race.policy import BatchDecision, Policy
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs import load_checkpoint
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.training.demonstrations import Demonstration, actions_of_inputs, read_inputs, replayed
from trackmania_rl.training.evaluation import TrainedDriver, forced_actions, greedy_after

CHANGE_PROBABILITY: Final = 0.1
"""Of another action at each decision: an action is held for half a second on average, so that the car gets away."""
THROTTLE_PROBABILITY: Final = 0.9
"""That it accelerates and does not brake, where there are such actions."""

OnFloats = Callable[[npt.NDArray[np.float32]], object]
"""Takes the states of a race, (T + 1, F) float32, which are valid until it returns."""


def policies_of_inputs(
    file: Path, map_entry: MapEntry, settings: Settings, spaces: Spaces, n_races: int, n_forced_actions: int
) -> Iterator[functools.partial[Policy]]:
    """Make the policy of each race that an inputs file or a replay is driven in; see the head of this module.

    Raises:
        UserError: if the file is missing or damaged, or holds no inputs.
    """
    actions, _ = actions_of_inputs(read_inputs(file), settings.game)
    for number in range(1, n_races + 1):
        n_forced = n_forced_actions if number > 1 else 0
        forced = forced_actions(settings, spaces, map_entry, number, n_forced)
        driven = np.concatenate((forced, actions[len(forced) :] if len(forced) < len(actions) else actions[-1:]))
        yield functools.partial(replayed, driven, spaces.n_values, len(forced))


def policies_of_driver(
    driver: TrainedDriver, map_entry: MapEntry, n_races: int, n_forced_actions: int
) -> Iterator[functools.partial[Policy]]:
    """Make the policy of each race that a driver drives."""
    for number in range(1, n_races + 1):
        n_forced = n_forced_actions if number > 1 else 0
        forced = forced_actions(driver.settings, driver.spaces, map_entry, number, n_forced)
        yield functools.partial(greedy_after, forced, driver.actor)


def record_races(
    policies: Iterator[functools.partial[Policy]],
    games: Games,
    map_entry: MapEntry,
    settings: Settings,
    form: EpisodeForm,
    reward: Reward,
    source: str,
) -> Iterator[Episode]:
    """Drive a race with each policy.

    Args:
        policies: make the policy of a race, again if it is lost with its game.
        games: the first of them is driven; no race is under way in any.
        map_entry: the map.
        settings: of the games.
        form: of the episodes.
        reward: what actions are worth.
        source: who drives.

    Raises:
        UserError: if the map can't be used.
    """
    for make_policy in policies:
        race = rollout(games, map_entry, make_policy)
        stats = race.end_race_stats
        yield episode_of_race(
            race.rollout_results,
            reward(race.rollout_results, settings, 0).rewards,
            stats["race_time_ms"],
            form,
            settings.game.ms_per_action,
            {
                "source": source,
                "map": map_entry.map_name,
                "race_time_ms": stats["race_time_ms"],
                "race_finished": stats["race_finished"],
                "meters": float(stats["meters"]),
            },
        )


def episodes_of_run(run_folder: Path, form: EpisodeForm) -> Iterator[Episode]:
    """Take the races out of the replay memory that a run's newest checkpoint holds.

    Raises:
        UserError: if there is no checkpoint, it is damaged, or it holds no memory.
    """
    state = load_checkpoint(run_folder)
    if state is None:
        raise UserError(f"{run_folder} holds no checkpoint yet")
    memory = state["hooks"].get("StoreRaces", {}).get("buffers")
    if memory is None:
        raise UserError(
            f"{run_folder}: its checkpoint holds no replay memory; set checkpoint_holds_replay = True in "
            f"{run_folder / 'config'} and let it train on"
        )
    columns = {name: column.numpy() for name, column in memory["ring"]["columns"].items()}
    yield from episodes_of_memory(columns, form, str(run_folder))


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
        make_policy = functools.partial(replayed, demonstration.actions, spaces.n_values)
        on_race(rollout(games, demonstration.entry, make_policy).rollout_results["state_float"])
