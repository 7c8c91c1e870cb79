"""Around the updates: the replay ratio, schedules, checks for non-finite numbers, and publishing."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final

import torch
from tensordict import TensorDictBase

from trackmania_rl.agents.weights import in_few_words, not_finite_tensors, weights_of
from trackmania_rl.errors import PassingError, is_logged
from trackmania_rl.race.race import Race
from trackmania_rl.schedules import exponential, linear, staircase
from trackmania_rl.telemetry.figures import quantile_figures

if TYPE_CHECKING:
    from trackmania_rl.training.hooks.hook import RunContext

log = logging.getLogger(__name__)

MOST_IN_A_ROW: Final = 100
"""Consecutive updates with infinite or NaN numbers that end the training."""
READ_EVERY_ON_GPU: Final = 32
"""Updates between two waits for a GPU to read their losses. A CPU's losses are read at once."""
CHECK_WEIGHTS_EVERY: Final = 1000
"""Updates between two checks on all that the next update depends on."""


class Replay:
    """Stores races, and draws batches until each stored transition was drawn as often as the replay ratio says.

    Transitions on the test side count as stored but are never drawn, so the others are drawn
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
        """Store a rewarded race or its new part, and return the transition count."""
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
        """Return priority quantiles, if the memory draws by priority."""
        priorities = self._run.memory.priorities
        if priorities is None or len(priorities) == 0:
            return {}
        mean = float(priorities.mean())
        return quantile_figures("train/replay/priority", priorities) | {"train/replay/priority_mean": mean}

    def state_dict(self) -> dict[str, Any]:
        """Return counters and replay memory (the rows as the `RingBuffer`), unless checkpoints leave it out."""
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


def apply_schedules(run: RunContext) -> None:
    """Apply settings and schedules to agent and memory."""
    settings = run.settings
    frames = run.statistics.frames_total
    learning_rate = exponential(settings.agent.lr_schedule, frames)
    run.agent.apply_settings(settings.agent, learning_rate)
    run.memory.apply_settings(settings, frames)
    values = {"learning_rate": learning_rate, "gamma": linear(settings.agent.gamma_schedule, frames)}
    if run.agent.explores_by_epsilon:
        exploration = settings.exploration
        values["epsilon"] = exponential(exploration.epsilon_schedule, frames)
        values["epsilon_boltzmann"] = exponential(exploration.epsilon_boltzmann_schedule, frames)
    run.statistics.current_values = values


class PartialResets:
    """Mixes the network with a fresh one every `reset_every_n_frames_generated` frames, and at another reset flag.

    Then trains on `additional_transitions_after_reset` more transitions than the replay ratio requires. Frames are
    counted from the last reset, or from when resets were switched on.
    """

    def __init__(self, run: RunContext) -> None:
        self.run = run
        self._counted_from_frames = 0
        self._flag = run.settings.agent.single_reset_flag

    def reset_if_due(self) -> None:
        """Reset after enough frames, or if the flag has changed."""
        settings = self.run.settings.agent
        every_frames = settings.reset_every_n_frames_generated
        frames = self.run.statistics.frames_total
        is_asked_for = settings.single_reset_flag != self._flag
        self._flag = settings.single_reset_flag
        if every_frames == 0:
            self._counted_from_frames = frames
        if is_asked_for or 0 < every_frames <= frames - self._counted_from_frames:
            self._counted_from_frames = frames
            self.run.agent.reset_partially()
            self.run.replay.transitions_due += settings.additional_transitions_after_reset

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"counted_from_frames": self._counted_from_frames, "single_reset_flag": self._flag}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._counted_from_frames = state_dict["counted_from_frames"]
        self._flag = state_dict["single_reset_flag"]


class NumbersNotFiniteError(PassingError):
    """Training diverged. The same command resumes from the last sound checkpoint."""


class NumbersWatch:
    """Checks each update's loss and gradient, and weights before they are saved or published.

    Agents skip the step if a gradient is not finite, so such an update is only counted. `MOST_IN_A_ROW` in a row
    end the run, as do networks or an optimizer state with NaN or infinity.
    """

    def __init__(self, run: RunContext) -> None:
        self.run = run
        self._unread: list[torch.Tensor] = []

    def check(self, losses: TensorDictBase) -> None:
        """Sum an update's losses and gradient norm, which keeps NaN and infinity; sometimes check the weights, too."""
        figures = [value for name, value in losses.items() if name.startswith("loss") or name == "grad_norm"]
        self._unread.append(sum(figures[1:], figures[0]).detach())
        if figures[0].device.type == "cpu" or len(self._unread) >= READ_EVERY_ON_GPU:
            self._read()
        if self.run.agent.updates % CHECK_WEIGHTS_EVERY == 0:
            self.require_sound()

    def require_sound(self) -> None:
        """Check networks, target, averages and optimizer, or raise a `NumbersNotFiniteError`."""
        self._read()
        self._require_few_in_a_row()
        if names := not_finite_tensors(self.run.agent.state_dict()):
            raise self._error(
                "the network's weights are no longer finite numbers, so the training ends without another checkpoint "
                f"({in_few_words(names)})"
            )

    @torch.no_grad()
    def require_sound_networks(self) -> None:
        """Check the networks that drive, which takes a tenth of an update."""
        networks = {self.run.agent.exploration_network, self.run.agent.evaluation_network}
        sums = [tensor.sum() for network in networks for tensor in weights_of(network)]  # keep NaN and infinity
        if not torch.isfinite(torch.stack(sums)).all():
            self.require_sound()

    def _read(self) -> None:
        """Count the non-finite updates since the last call."""
        unread = self._unread
        self._unread = []
        statistics = self.run.statistics
        for value in torch.stack(unread).tolist() if unread else ():
            if math.isfinite(value):
                statistics.updates_not_finite_in_a_row = 0
                continue
            statistics.updates_not_finite += 1
            statistics.updates_not_finite_in_a_row += 1
            n_updates = statistics.updates_not_finite
            if n_updates > 1 and is_logged(n_updates):
                log.warning(
                    "%s updates had a loss or a gradient that is not finite, %s of them in a row; nothing was learned "
                    "from these",
                    f"{n_updates:,}",
                    f"{statistics.updates_not_finite_in_a_row:,}",
                )
            self._require_few_in_a_row()

    def _require_few_in_a_row(self) -> None:
        in_a_row = self.run.statistics.updates_not_finite_in_a_row
        if in_a_row >= MOST_IN_A_ROW:
            raise self._error(
                f"{in_a_row:,} updates in a row had a loss or a gradient that is not finite, so the training ends "
                "without another checkpoint"
            )

    def _error(self, text: str) -> NumbersNotFiniteError:
        return NumbersNotFiniteError(
            f"{text}. The last one is sound, and the same command goes on from there (or begins anew if there is "
            "none). To prevent a repetition, lower lr_schedule, or set autocast_dtype = "
            f'"float32", in {self.run.folder.settings}'
        )


def publish_weights(run: RunContext) -> None:
    """Publish the weights that drive, and the frame count, after a check that the weights are finite."""
    run.numbers.require_sound_networks()
    run.channels.run_state.publish(
        weights={"exploration": run.agent.exploration_network, "evaluation": run.agent.evaluation_network},
        frames_total=run.statistics.frames_total,
    )


def publish_settings(run: RunContext) -> None:
    """Publish edits to the run's settings."""
    run.live.refresh()
    run.channels.run_state.publish(settings=run.settings)
