"""Races outside a training, for a data set.

A driver's or inputs file's first race is driven as it is. Further ones begin with forced actions, as in
`evaluation`. Inputs then continue unchanged, and a driver reacts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from trackmania_rl.drivers.evaluation import TrainedDriver, forced_starts, greedy_after
from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.episodes import DataSetForm, Episode, episode_of_race, episodes_of_memory
from trackmania_rl.experience_replay.ring_buffer import rows_of_state
from trackmania_rl.games.protocol import Games, rollout
from trackmania_rl.race.actions import Policy
from trackmania_rl.race.rewards import Reward
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.snapshot import SETTINGS_FILE
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.training.demonstrations import actions_of_inputs, read_inputs, replayed


def policies_of_inputs(
    file: Path, map_entry: MapEntry, settings: Settings, spaces: Spaces, n_races: int, n_forced_actions: int
) -> Iterator[functools.partial[Policy]]:
    """Yield the policy for each race from an inputs file or a replay."""
    actions, _ = actions_of_inputs(read_inputs(file), settings.game)
    for forced in forced_starts(settings, spaces, map_entry, n_races, n_forced_actions):
        driven = np.concatenate((forced, actions[len(forced) :] if len(forced) < len(actions) else actions[-1:]))
        yield functools.partial(replayed, driven, spaces.n_values, len(forced))


def policies_of_driver(
    driver: TrainedDriver, map_entry: MapEntry, n_races: int, n_forced_actions: int
) -> Iterator[functools.partial[Policy]]:
    """Yield the policy for each race by a driver."""
    for forced in forced_starts(driver.settings, driver.spaces, map_entry, n_races, n_forced_actions):
        yield functools.partial(greedy_after, forced, driver.actor)


def record_races(
    policies: Iterator[functools.partial[Policy]],
    games: Games,
    map_entry: MapEntry,
    settings: Settings,
    form: DataSetForm,
    reward: Reward,
    source: str,
) -> Iterator[Episode]:
    """Drive a race with each policy in the first game, and yield the episode; `source` names the driver."""
    for make_policy in policies:
        race = rollout(games, map_entry, make_policy)
        about = {"source": source, "map": map_entry.map_name}
        about |= {name: getattr(race.facts, name) for name in ("meters", "race_time_ms", "race_finished")}
        race.rewards, _ = reward(race.rollout_results(), settings, 0)
        yield episode_of_race(race, form, settings.game.ms_per_action, about)


def episodes_of_run(run_folder: Path, form: DataSetForm) -> Iterator[Episode]:
    """Take the races out of the replay memory that a run's newest checkpoint holds.

    Raises:
        UserError: as `rows_of_run`.
    """
    columns = {name: column.numpy() for name, column in rows_of_run(run_folder).items()}
    yield from episodes_of_memory(columns, form, str(run_folder))


def rows_of_run(run_folder: Path) -> dict[str, torch.Tensor]:
    """Read the races' rows in the replay memory that a run's newest checkpoint holds, by column.

    Raises:
        UserError: if there is no checkpoint, it is damaged, or the memory holds no races.
    """
    loaded = load_checkpoint(run_folder)
    if loaded is None:
        raise UserError(f"{run_folder} holds no checkpoint yet")
    memory = loaded.state.get("replay", {}).get("memory")
    if memory is None:
        raise UserError(
            f"{run_folder}: its checkpoint holds no replay memory; set checkpoint_holds_replay = True in "
            f"{run_folder / SETTINGS_FILE} and let it train on"
        )
    if not isinstance(memory, Mapping) or "ring" not in memory:
        raise UserError(
            f"{run_folder}: its memory keeps no races, as those of on-policy agents and own ones: record races with "
            "scripts/tools/dataset.py record"
        )
    return rows_of_state(memory["ring"])
