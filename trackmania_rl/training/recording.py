"""Races driven for a data set: by somebody's inputs, or greedily by a trained driver, in the simulated game.

The first race of each is driven as it is. Further ones begin with a few forced actions, as in `evaluation`: inputs go
on as they would have otherwise, and the race may depart from its model; a driver finds its way from there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.episodes import Episode, EpisodeForm, episode_of_race, episodes_of_memory
from trackmania_rl.games.protocol import Games, rollout
from trackmania_rl.race.policy import Policy, PolicyDecision
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs import load_checkpoint
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.training.demonstrations import actions_of_inputs, read_inputs
from trackmania_rl.training.evaluation import TrainedDriver, forced_actions, greedy_after


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
        yield functools.partial(_inputs_after, forced, actions, spaces.n_values)


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


def _inputs_after(forced: npt.NDArray[Any], actions: npt.NDArray[Any], n_values: int) -> Policy:
    """The policy of one race: forced actions, then those of a file at their times, the last one on and on."""
    q_values = np.zeros(n_values, dtype=np.float32)
    n_forced = len(forced)
    driven = np.concatenate((forced, actions[n_forced:] if n_forced < len(actions) else actions[-1:]))
    chosen = driven if driven.ndim > 1 else driven.tolist()
    index = -1

    def act(_: npt.NDArray[np.uint8], __: npt.NDArray[np.float32]) -> PolicyDecision:
        nonlocal index
        index += 1
        return PolicyDecision(chosen[min(index, len(chosen) - 1)], index >= n_forced, q_values)

    return act
