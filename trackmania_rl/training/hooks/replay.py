"""Filling the replay memory with races, and drawing batches from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from tensordict import TensorDictBase

from trackmania_rl.channels.protocols import ReceivedRollout
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.experience_replay.memory import RewardedRollout
from trackmania_rl.race.progress import Fragment
from trackmania_rl.race.rewards import RewardedRace, as_stored, is_finite_as_stored
from trackmania_rl.schedules import staircase
from trackmania_rl.telemetry.figures import quantile_figures
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.race_stream import refuse


class StoreRaces(Hook):
    """Stores each race, or each fragment of one, as the hooks before it return it. It is the last at `batch_process`.

    Attributes:
        transitions_stored: transitions of the whole run.
    """

    takes_fragments = True

    def __init__(self) -> None:
        self.transitions_stored = 0

    def batch_process(self, batch: TensorDictBase) -> TensorDictBase:
        """Store a race if it is one to learn from, and release its memory.

        A race with numbers that are not finite is refused.

        Returns:
            Copies of the columns, without frames.

        Raises:
            UserError: if a hook took away a column or actions.
        """
        race, statistics = self.run.race, self.run.statistics
        assert race is not None
        with race:
            if race.end_race_stats["fill_buffer"]:
                results, rewarded = _as_returned(batch, race)
                learned_from = {name: results[name] for name in ("state_float", "actions")} | rewarded._asdict()
                what = next((name for name, column in learned_from.items() if not is_finite_as_stored(column)), None)
                if what is not None:
                    refuse(what, race.collector, race.end_race_stats["map_name"], statistics)
                else:
                    self.transitions_stored += self.store(results, rewarded, race.fragment)
                    statistics.races_refused_in_a_row = 0
            return batch.exclude("frames", ("next", "frames")).clone()

    def store(
        self, rollout_results: Mapping[str, Any], rewarded: RewardedRace, fragment: Fragment | None = None
    ) -> int:
        """Store a race, or the new part of it. Return the number of its transitions, without counting them."""
        frames_total = self.trainer.collected_frames
        return self.run.memory.extend(
            RewardedRollout(rollout_results, rewarded, self.run.settings, frames_total, fragment)
        )

    def interval_figures(self) -> dict[str, float]:
        """Return the number of transitions stored in the whole run."""
        return {"train/total/transitions_stored": float(self.transitions_stored)}

    def state_dict(self) -> dict[str, Any]:
        """Return the replay memory, unless the configuration leaves it out of checkpoints."""
        return self._state(self.run.memory.state_dict)

    def state_to_write(self) -> dict[str, Any]:
        """Return the same, with rows that are read only as far as they are new."""
        return self._state(self.run.memory.state_to_write)

    def _state(self, state_of_memory: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        holds_replay = self.run.settings.run.checkpoint_holds_replay
        return {
            "transitions_stored": self.transitions_stored,
            "buffers": state_of_memory() if holds_replay else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the memory, if the checkpoint holds it."""
        self.transitions_stored = state_dict["transitions_stored"]
        if state_dict["buffers"] is not None:
            self.run.memory.load_state_dict(state_dict["buffers"])


class SampleAtReplayRatio(Hook):
    """Draws batches until each stored transition has, on average, been drawn as often as the configuration says.

    What is due counts every transition stored, those kept apart for the test loss as well, but batches are drawn from
    the others only: each of these is drawn 1 / (1 - `buffer_test_ratio`) times as often as configured. Linesight counts
    only what it trains on.

    Args:
        store: counts what is stored.
        should_stop: whether the run ends.

    Attributes:
        transitions_due: transitions still to be trained on.
        transitions_drawn: how many were drawn in all.
    """

    def __init__(self, store: StoreRaces, should_stop: Callable[[], bool]) -> None:
        self._store = store
        self._should_stop = should_stop
        self._stored_before = 0
        self.transitions_due = 0.0
        self.transitions_drawn = 0

    def pre_optim_steps(self) -> None:
        """Add the transitions due for those stored since the last round."""
        newly_stored = self._store.transitions_stored - self._stored_before
        self._stored_before = self._store.transitions_stored
        replay_ratio = self.run.settings.replay.number_times_single_memory_is_used_before_discard
        self.transitions_due += newly_stored * replay_ratio

    def process_optim_batch(self, _: TensorDictBase) -> TensorDictBase:
        """Draw the next batch.

        Raises:
            StopIteration: which ends the round: nothing is due, too little is stored yet, or the run ends.
        """
        replay, memory = self.run.settings.replay, self.run.memory
        is_due = self.transitions_due >= replay.batch_size
        if len(memory) < self._least_stored() or not is_due or self._should_stop():
            raise StopIteration
        self.transitions_due -= replay.batch_size
        self.transitions_drawn += replay.batch_size
        return memory.sample(replay.batch_size)

    def post_loss(self, batch: TensorDictBase) -> None:
        """Hand the errors of the batch to the memory."""
        self.run.memory.update_priority(batch)

    def _least_stored(self) -> int:
        """Return how much the memory must hold before the run learns."""
        settings, capacity = self.run.settings, self.run.memory.capacity
        if settings.game.n_collectors == 0:  # nothing more will come
            return 1
        start_learning_at = staircase(settings.replay.memory_size_start_learn_schedule, self.trainer.collected_frames)
        return max(1, start_learning_at if capacity is None else min(start_learning_at, capacity))

    def interval_figures(self) -> dict[str, float]:
        """Return the transitions drawn in the whole run, and those due."""
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
        """Return the counts."""
        return {
            "stored_before": self._stored_before,
            "transitions_due": self.transitions_due,
            "transitions_drawn": self.transitions_drawn,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the counts. Earlier versions have no `transitions_drawn`."""
        self._stored_before = state_dict["stored_before"]
        self.transitions_due = state_dict["transitions_due"]
        self.transitions_drawn = state_dict.get("transitions_drawn", 0)


def _as_returned(batch: TensorDictBase, race: ReceivedRollout) -> tuple[dict[str, Any], RewardedRace]:
    """Return columns, rewards and potentials of a race as the hooks at `batch_process` returned them.

    Raises:
        UserError: if a column is missing, or an action.
    """
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
    """Return a column of all T + 1 states of a race; without a copy if no hook replaced it."""
    states, following = batch[name], batch["next", name]
    is_one_column = (
        states.untyped_storage().data_ptr() == following.untyped_storage().data_ptr()
        and following.storage_offset() == states.storage_offset() + states.stride(0)
        and following.stride() == states.stride()
    )
    if is_one_column and len(states) > 0:
        column = states.as_strided((len(states) + 1, *states.shape[1:]), states.stride())
    else:
        column = torch.cat((states, following[-1:]))
    of_states: npt.NDArray[Any] = column.numpy()
    return of_states
