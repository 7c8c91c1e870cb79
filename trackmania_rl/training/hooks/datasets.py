"""Filling the replay memory with data sets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.episodes import DataSetForm, Episode, race_of_episode, recorded_reward
from trackmania_rl.experience_replay.minari_files import DataSet, open_dataset
from trackmania_rl.race.rewards import first_not_finite, reward_as_stored
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import Settings
from trackmania_rl.training.hooks.hook import Hook

log = logging.getLogger(__name__)


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
