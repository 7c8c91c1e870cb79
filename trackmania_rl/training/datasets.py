"""Data sets: races recorded outside a training, and the hook that fills the replay memory with data sets.

A driver's or inputs file's first recorded race is driven as it is. Further ones begin with forced actions, as in
`evaluation`. Inputs then continue unchanged, and a driver reacts.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from typing_extensions import override

from trackmania_rl.drivers.evaluation import TrainedDriver, forced_starts, greedy_after
from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.episodes import (
    DataSetForm,
    Episode,
    episode_of_race,
    episodes_of_memory,
    race_of_episode,
    recorded_reward,
)
from trackmania_rl.experience_replay.minari_files import DataSet, open_dataset
from trackmania_rl.experience_replay.ring_buffer import rows_of_state
from trackmania_rl.games.protocol import Games, rollout
from trackmania_rl.race.actions import Policy
from trackmania_rl.race.rewards import Reward, first_not_finite, reward_as_stored
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs.reading import load_checkpoint
from trackmania_rl.runs.snapshot import SETTINGS_FILE
from trackmania_rl.settings import MapEntry, Settings
from trackmania_rl.training.demonstrations import actions_of_inputs, read_inputs, replayed
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


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


def open_datasets(settings: Settings, spaces: Spaces, folder: Path) -> list[DataSet]:
    """Open the data sets in the setting `offline`, and read each first race; relative paths are in `folder`.

    Raises:
        UserError: if one is missing or damaged, or has another observation or other actions.
    """
    form = DataSetForm.of_run(settings, spaces)
    datasets = []
    for name in settings.replay.offline:
        from trackmania_rl.experience_replay.dataset_environments import check_dataset  # few runs have any

        try:
            dataset = open_dataset(name, folder)
            check_dataset(dataset, settings, form)
        except UserError as error:
            raise UserError(f"offline: {error}") from error
        datasets.append(dataset)
    return datasets


class LearnFromDataSets(Hook):
    """Fills the memory with data sets, each once in a run.

    Without collectors a round's frames count as stored transitions, so schedules, limits and updates proceed as in
    a run with races.
    """

    section: ClassVar[str] = "datasets"

    def __init__(self, datasets: Sequence[DataSet]) -> None:
        self._datasets = datasets
        self._loaded: list[str] = []

    @override
    def begin(self) -> None:
        """Fill the memory, unless the checkpoint held it."""
        has_memory = len(self.run.memory) > 0
        for dataset in self._datasets:
            is_new = dataset.name not in self._loaded
            if not is_new and has_memory:
                continue
            n_races, n_transitions = self._load(dataset)
            log.info("%s: %s transitions of %s races are in the memory", dataset.name, f"{n_transitions:,}", n_races)
            if is_new:
                self._loaded.append(dataset.name)
                if self.run.has_collectors:
                    self.run.replay.add_stored(n_transitions)
        if not self.run.has_collectors and len(self.run.memory) == 0:
            raise UserError(
                "n_collectors = 0 and the memory is empty: the data sets of the setting offline hold no transition to "
                "learn from"
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"loaded": list(self._loaded)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = list(state_dict["loaded"])

    def _load(self, dataset: DataSet) -> tuple[int, int]:
        capacity = self.run.memory.capacity
        form = DataSetForm.of_run(self.run.settings, self.run.spaces)
        n_races = 0
        n_rows = 0
        n_stored = 0
        for n_races, episode in enumerate(dataset.episodes(), start=1):
            try:
                n_stored += self._store_race(episode, form)
            except KeyError as error:
                raise UserError(
                    f"offline: the reward asks for the column {error} of a race, which {dataset.name} does not hold"
                ) from error
            except (UserError, ValueError) as error:
                raise UserError(f"offline: race {n_races - 1} of {dataset.name}: {error}") from error
            n_rows += len(episode.actions) + 1
        if capacity is not None and n_rows > capacity:
            log.warning(
                "%s has %s states, but the memory has room for %s: its oldest races are dropped; raise "
                "memory_size_schedule to keep all",
                dataset.name,
                f"{n_rows:,}",
                f"{capacity:,}",
            )
        return n_races, n_stored

    def _store_race(self, episode: Episode, form: DataSetForm) -> int:
        run = self.run
        race = race_of_episode(episode, form)
        frames_total = run.statistics.frames_total
        given = recorded_reward(episode) or run.reward(race.rollout_results(), run.settings, frames_total)
        rewarded = reward_as_stored(given, len(episode.actions))
        if (name := first_not_finite(rewarded._asdict())) is not None:
            raise UserError(f"its {name} hold numbers that are not finite")
        race.rewards, race.potentials = rewarded
        return run.memory.extend(race, run.settings, frames_total)
