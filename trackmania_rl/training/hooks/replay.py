"""Filling the replay memory with races and data sets, and drawing batches from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from tensordict import TensorDictBase

from trackmania_rl.channels.rollouts import ReceivedRollout
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.experience_replay.episodes import Episode, EpisodeForm, recorded_reward, rollout_of_episode
from trackmania_rl.experience_replay.memory import RewardedRollout
from trackmania_rl.experience_replay.minari_files import DataSet, open_dataset
from trackmania_rl.race.progress import Fragment
from trackmania_rl.race.rewards import RewardedRace, as_stored, is_finite_as_stored, reward_as_stored
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.schedules import staircase
from trackmania_rl.settings import Settings
from trackmania_rl.telemetry.figures import quantile_figures
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.race_stream import POLL_S

log = logging.getLogger(__name__)


class StoreRaces(Hook):
    """Stores each race or fragment as the last hook at `batch_process` returned it."""

    takes_fragments = True

    def __init__(self) -> None:
        self.transitions_stored = 0  # in the whole run

    def batch_process(self, batch: TensorDictBase) -> TensorDictBase:
        """Store a race that fills the buffer, release its memory, and return copies of its columns without frames."""
        with self.run.race as race:
            if race.end_race_stats["fill_buffer"]:
                self.transitions_stored += self.store(*_as_returned(batch, race), race.fragment)
            return batch.exclude("frames", ("next", "frames")).clone()

    def store(
        self, rollout_results: Mapping[str, Any], rewarded: RewardedRace, fragment: Fragment | None = None
    ) -> int:
        """Store a race, or the new part of it, and return the number of its transitions."""
        frames_total = self.trainer.collected_frames
        return self.run.memory.extend(
            RewardedRollout(rollout_results, rewarded, self.run.settings, frames_total, fragment)
        )

    def interval_figures(self) -> dict[str, float]:
        return {"train/total/transitions_stored": float(self.transitions_stored)}

    def state_dict(self) -> dict[str, Any]:
        """Return the replay memory, its rows as the `RingBuffer`, unless checkpoints leave it out."""
        buffers = self.run.memory.state_dict() if self.run.settings.run.checkpoint_holds_replay else None
        return {"transitions_stored": self.transitions_stored, "buffers": buffers}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.transitions_stored = state_dict["transitions_stored"]
        if state_dict["buffers"] is not None:
            self.run.memory.load_state_dict(state_dict["buffers"])


class SampleAtReplayRatio(Hook):
    """Draws batches until the mean number of draws of each stored transition is the replay ratio.

    Transitions of the test side count as stored but are never drawn, so the others are drawn
    1 / (1 - `buffer_test_ratio`) times as often as configured. Linesight counts only the transitions that it trains on.
    """

    def __init__(self, store: StoreRaces, should_stop: Callable[[], bool]) -> None:
        self._store = store
        self._should_stop = should_stop
        self._stored_before = 0
        self.transitions_due = 0.0  # still to be trained on
        self.transitions_drawn = 0  # in the whole run

    def pre_optim_steps(self) -> None:
        newly_stored = self._store.transitions_stored - self._stored_before
        self._stored_before = self._store.transitions_stored
        replay_ratio = self.run.settings.replay.number_times_single_memory_is_used_before_discard
        self.transitions_due += newly_stored * replay_ratio

    def process_optim_batch(self, _: TensorDictBase) -> TensorDictBase:
        """Draw the next batch, the first one after the update is compiled.

        StopIteration ends the race's updates if nothing is due, too little is stored, or the run ends.
        """
        replay, memory = self.run.settings.replay, self.run.memory
        if len(memory) < self._least_stored() or self.transitions_due < replay.batch_size:
            raise StopIteration
        while self.trainer.compilation.is_alive() and not self._should_stop():
            self.trainer.compilation.join(POLL_S)
            self.trainer.tick()
        if self._should_stop():
            raise StopIteration
        self.transitions_due -= replay.batch_size
        self.transitions_drawn += replay.batch_size
        return memory.sample(replay.batch_size)

    def post_loss(self, batch: TensorDictBase) -> None:
        self.run.memory.update_priority(batch)

    def _least_stored(self) -> int:
        settings, capacity = self.run.settings, self.run.memory.capacity
        if not self.run.has_collectors:  # nothing more will come
            return 1
        start_learning_at = staircase(settings.replay.memory_size_start_learn_schedule, self.trainer.collected_frames)
        return max(1, start_learning_at if capacity is None else min(start_learning_at, capacity))

    def interval_figures(self) -> dict[str, float]:
        return {
            "train/total/transitions_trained_on": float(self.transitions_drawn),
            "train/replay/transitions_due": self.transitions_due,
        }

    def rare_figures(self) -> dict[str, float]:
        """Return quantiles of the priorities, if the memory draws by priority."""
        priorities = self.run.memory.priorities
        if priorities is None or len(priorities) == 0:
            return {}
        return quantile_figures("train/replay/priority", priorities) | {
            "train/replay/priority_mean": float(priorities.mean())
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "stored_before": self._stored_before,
            "transitions_due": self.transitions_due,
            "transitions_drawn": self.transitions_drawn,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._stored_before = state_dict["stored_before"]
        self.transitions_due = state_dict["transitions_due"]
        self.transitions_drawn = state_dict.get("transitions_drawn", 0)  # missing in earlier versions


def _as_returned(batch: TensorDictBase, race: ReceivedRollout) -> tuple[dict[str, Any], RewardedRace]:
    """Return columns, rewards and potentials of a race as the hooks at `batch_process` returned them."""
    n_actions = len(race.rollout_results["actions"])
    if len(batch) != n_actions:
        raise UserError(
            f"hooks: a hook at batch_process returned {len(batch)} actions of a race of {n_actions}, which is stored "
            "as a whole"
        )
    try:
        changed = {
            "frames": _of_states(batch, "frames"),
            "state_float": _of_states(batch, "state_float"),
            "actions": batch["actions"].numpy(),
            "action_was_greedy": batch["action_was_greedy"].numpy(),
            "terminated": bool(batch["next", "terminated"][-1:].any()),
        }
        rewarded = RewardedRace(as_stored(batch["next", "reward"].reshape(-1)), _of_states(batch, "potential"))
    except KeyError as error:
        raise UserError(
            f"hooks: a hook at batch_process returned a race without a column that is stored: {one_line(error)}"
        ) from error
    given = {name: column for name, column in race.rollout_results.items() if name != "race_time"}
    return given | changed, rewarded


def _of_states(batch: TensorDictBase, name: str) -> npt.NDArray[Any]:
    """Return a copy of a column (T + 1, ...) of a race's states."""
    of_states: npt.NDArray[Any] = torch.cat((batch[name], batch["next", name][-1:])).numpy()
    return of_states


def open_datasets(settings: Settings, spaces: Spaces, folder: Path) -> list[DataSet]:
    """Open the data sets of the setting `offline`, and read the first race of each; relative paths are in `folder`.

    Raises:
        UserError: if one is missing or damaged, or has another observation or other actions.
    """
    form = EpisodeForm.of_run(settings, spaces)
    datasets = []
    for name in settings.replay.offline:
        from trackmania_rl.experience_replay.dataset_environments import (
            check_dataset,
        )  # environments: few runs have any

        try:
            dataset = open_dataset(name, folder)
            check_dataset(dataset, settings, form)
        except UserError as error:
            raise UserError(f"offline: {error}") from error
        datasets.append(dataset)
    return datasets


class LearnFromDataSets(Hook):
    """Fills the memory with data sets, each once in a run.

    Without collectors a round's frames count as stored transitions, so that schedules, limits and updates proceed as in
    a run with races.
    """

    def __init__(self, datasets: Sequence[DataSet], store: StoreRaces) -> None:
        self._datasets = datasets
        self._store = store
        self._loaded: list[str] = []
        self._frames_before = 0

    def begin(self) -> None:
        """Fill the memory, unless the checkpoint held it."""
        has_memory = len(self.run.memory) > 0
        self._frames_before = self.trainer.collected_frames
        for dataset in self._datasets:
            is_new = dataset.name not in self._loaded
            if not is_new and has_memory:
                continue
            n_races, n_transitions = self._load(dataset)
            log.info("%s: %s transitions of %s races are in the memory", dataset.name, f"{n_transitions:,}", n_races)
            if is_new:
                self._loaded.append(dataset.name)
                if self.run.has_collectors:
                    self._store.transitions_stored += n_transitions
        if not self.run.has_collectors and len(self.run.memory) == 0:
            raise UserError(
                "n_collectors = 0 and the memory is empty: the data sets of the setting offline hold no transition to "
                "learn from"
            )

    def pre_optim_steps(self) -> None:
        if not self.run.has_collectors:
            self._store.transitions_stored += self.trainer.collected_frames - self._frames_before
            self._frames_before = self.trainer.collected_frames

    def post_steps(self) -> None:
        if not self.run.has_collectors:
            self.run.statistics.frames_total = self.trainer.collected_frames

    def state_dict(self) -> dict[str, Any]:
        return {"loaded": list(self._loaded)} if self._loaded else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = list(state_dict.get("loaded", ()))

    def _load(self, dataset: DataSet) -> tuple[int, int]:
        """Store a data set's races; return the numbers of races and of transitions."""
        capacity, form = self.run.memory.capacity, EpisodeForm.of_run(self.run.settings, self.run.spaces)
        n_races = n_rows = n_stored = 0
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

    def _store_race(self, episode: Episode, form: EpisodeForm) -> int:
        rollout_results = rollout_of_episode(episode, form)
        frames_total = self.trainer.collected_frames
        given = recorded_reward(episode) or self.run.reward(rollout_results, self.run.settings, frames_total)
        rewarded = reward_as_stored(given, len(episode.actions))
        for name, column in rewarded._asdict().items():
            if not is_finite_as_stored(column):
                raise UserError(f"its {name} hold numbers that are not finite")
        return self._store.store(rollout_results, rewarded)
