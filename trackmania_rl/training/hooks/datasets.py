"""Data sets in the replay memory: before the first race, or in place of any."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trackmania_rl.errors import UserError
from trackmania_rl.experience_replay.dataset_environments import check_fits
from trackmania_rl.experience_replay.episodes import EpisodeForm, recorded_reward, rollout_of_episode
from trackmania_rl.experience_replay.minari_files import DataSet, open_dataset
from trackmania_rl.race.rewards import is_finite_as_stored, reward_as_stored
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import Settings
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.replay import StoreRaces

log = logging.getLogger(__name__)


def open_datasets(settings: Settings, spaces: Spaces, folder: Path) -> list[DataSet]:
    """Open the data sets of a configuration; what their races hold is read later.

    Args:
        settings: names them.
        spaces: of the run's games.
        folder: where relative paths begin.

    Raises:
        UserError: if one is not there, damaged, or of another observation or other actions.
    """
    form = EpisodeForm.of_run(settings, spaces)
    datasets = []
    for name in settings.replay.offline:
        try:
            dataset = open_dataset(name, folder)
            check_fits(name, dataset.observation_space, dataset.action_space, dataset.env_spec, settings, form)
        except UserError as error:
            raise UserError(f"offline: {error}") from error
        datasets.append(dataset)
    return datasets


class LearnFromDataSets(Hook):
    """Fills the memory with data sets, each once in a run; without collectors it keeps the learner at work.

    Without collectors, a frame is counted for as many trained transitions as a stored one is owed (the replay ratio),
    so that schedules, limits and updates keep pace as in a run with races.

    Args:
        datasets: what the setting `offline` names, see `open_datasets`.
        store: stores their races.
    """

    def __init__(self, datasets: Sequence[DataSet], store: StoreRaces) -> None:
        self._datasets = datasets
        self._store = store
        self._loaded: list[str] = []
        self._frames_owed = 0

    def begin(self) -> None:
        """Fill the memory. A run resumed with its memory has the data sets already.

        Raises:
            UserError: if a data set is damaged, or what its races hold does not fit.
        """
        has_memory = len(self.run.memory) > 0
        self._frames_owed = self.trainer.collected_frames
        for dataset in self._datasets:
            is_new = dataset.name not in self._loaded
            if not is_new and has_memory:
                continue
            n_races, n_transitions = self._load(dataset)
            log.info("%s: %s transitions of %s races are in the memory", dataset.name, f"{n_transitions:,}", n_races)
            if is_new:
                self._loaded.append(dataset.name)
                if self._has_collectors:  # else rounds count what is owed
                    self._store.transitions_stored += n_transitions
        if not self._has_collectors and len(self.run.memory) == 0:
            raise UserError(
                "n_collectors = 0 and the memory is empty: the data sets of the setting offline hold no transition to "
                "learn from"
            )

    def pre_optim_steps(self) -> None:
        """Without collectors: owe what a round's frames are owed."""
        if not self._has_collectors:
            self._store.transitions_stored += self.trainer.collected_frames - self._frames_owed
            self._frames_owed = self.trainer.collected_frames

    def post_steps(self) -> None:
        """Without collectors: count a round's frames when its updates are done."""
        if not self._has_collectors:
            self.run.statistics.frames_total = self.trainer.collected_frames

    def state_dict(self) -> dict[str, Any]:
        """Return the names of the loaded data sets."""
        return {"loaded": list(self._loaded)} if self._loaded else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load these names."""
        self._loaded = list(state_dict.get("loaded", ()))

    @property
    def _has_collectors(self) -> bool:
        return self.run.settings.game.n_collectors > 0

    def _load(self, dataset: DataSet) -> tuple[int, int]:
        """Store a data set's races; returns how many there are, and how many transitions are in the memory."""
        run, capacity, frames_total = self.run, self.run.memory.capacity, self.trainer.collected_frames
        form = EpisodeForm.of_run(run.settings, run.spaces)
        n_races = n_rows = n_stored = 0
        for n_races, episode in enumerate(dataset.episodes(), start=1):
            try:
                rollout_results = rollout_of_episode(episode, form)
                given = recorded_reward(episode) or run.reward(rollout_results, run.settings, frames_total)
                rewarded = reward_as_stored(given, len(episode.actions))
                for name, column in rewarded._asdict().items():
                    if not is_finite_as_stored(column):
                        raise UserError(f"its {name} hold numbers that are not finite")
            except KeyError as error:
                raise UserError(
                    f"offline: the reward asks for the column {error} of a race, which {dataset.name} does not hold"
                ) from error
            except (UserError, ValueError) as error:
                raise UserError(f"offline: race {n_races - 1} of {dataset.name}: {error}") from error
            n_stored += self._store.store(rollout_results, rewarded)
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
