"""The replay memory of a run with the counters of the replay ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase

from trackmania_rl.race.race import Race
from trackmania_rl.schedules import staircase
from trackmania_rl.telemetry.figures import quantile_figures

if TYPE_CHECKING:
    from trackmania_rl.training.hooks.hook import RunContext


class Replay:
    """Stores races, and draws batches until each stored transition was drawn as often as the replay ratio says.

    Transitions of the test side count as stored but are never drawn, so the others are drawn
    1 / (1 - `buffer_test_ratio`) times as often as configured. Linesight counts only the transitions that it trains on.

    Attributes:
        transitions_stored: in the whole run.
        transitions_drawn: in the whole run.
        transitions_due: still to be trained on.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self.transitions_stored = 0
        self.transitions_drawn = 0
        self.transitions_due = 0.0

    def store(self, race: Race) -> int:
        """Store a rewarded race, or the new part of it, and return the number of its transitions."""
        n_stored = self._run.memory.extend(race, self._run.settings, self._run.statistics.frames_total)
        self.add_stored(n_stored)
        return n_stored

    def add_stored(self, n_transitions: int) -> None:
        """Count transitions as stored, which makes updates due."""
        replay_ratio = self._run.settings.replay.number_times_single_memory_is_used_before_discard
        self.transitions_stored += n_transitions
        self.transitions_due += n_transitions * replay_ratio

    @property
    def is_batch_due(self) -> bool:
        """True if the memory holds enough and the replay ratio asks for an update."""
        batch_size = self._run.settings.replay.batch_size
        return self.transitions_due >= batch_size and len(self._run.memory) >= self._least_stored()

    def draw(self) -> TensorDictBase:
        """Draw the next batch."""
        batch_size = self._run.settings.replay.batch_size
        self.transitions_due -= batch_size
        self.transitions_drawn += batch_size
        return self._run.memory.sample(batch_size)

    def figures(self) -> dict[str, float]:
        """Return the counters."""
        return {
            "train/total/transitions_stored": float(self.transitions_stored),
            "train/total/transitions_trained_on": float(self.transitions_drawn),
            "train/replay/transitions_due": self.transitions_due,
        }

    def priority_figures(self) -> dict[str, float]:
        """Return quantiles of the priorities, if the memory draws by priority."""
        priorities = self._run.memory.priorities
        if priorities is None or len(priorities) == 0:
            return {}
        mean = float(priorities.mean())
        return quantile_figures("train/replay/priority", priorities) | {"train/replay/priority_mean": mean}

    def state_dict(self) -> dict[str, Any]:
        """Return counters and replay memory, its rows as the `RingBuffer`, unless checkpoints leave it out."""
        holds_memory = self._run.settings.run.checkpoint_holds_replay
        return {
            "transitions_stored": self.transitions_stored,
            "transitions_drawn": self.transitions_drawn,
            "transitions_due": self.transitions_due,
            "memory": self._run.memory.state_dict() if holds_memory else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state."""
        self.transitions_stored = state_dict["transitions_stored"]
        self.transitions_drawn = state_dict["transitions_drawn"]
        self.transitions_due = state_dict["transitions_due"]
        if state_dict["memory"] is not None:
            self._run.memory.load_state_dict(state_dict["memory"])

    def _least_stored(self) -> int:
        settings = self._run.settings
        if not self._run.has_collectors:  # nothing more will come
            return 1
        frames = self._run.statistics.frames_total
        start_learning_at = staircase(settings.replay.memory_size_start_learn_schedule, frames)
        capacity = self._run.memory.capacity
        return max(1, start_learning_at if capacity is None else min(start_learning_at, capacity))
