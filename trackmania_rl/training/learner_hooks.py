"""What the learner does at each point of torchrl's training loop, one hook for each thing.

`torchrl.trainers.Trainer` owns the loop; `learner.py` registers these hooks in it. In the loop's own words:

========================  ================================================================
point of the loop         hook
========================  ================================================================
`batch_process`           `StoreRaces`: a race becomes transitions in the replay buffers
`pre_optim_steps`         `FollowSchedules`, `ResetPeriodically`
`process_optim_batch`     `SampleAtReplayRatio`: the next batch, or the end of this round
(optimization stepper)    `StepIQN`: loss, gradient, optimizer
`post_optim`              `UpdateTargetNetwork`, `PublishWeights`, `MeasureTestLoss`, housekeeping
`post_steps`              housekeeping: the shell's telemetry, checkpoints, collectors
========================  ================================================================

Each hook has `state_dict` / `load_state_dict`; together they are all that a run needs to go on where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.trainers import Trainer
from torchrl.trainers.trainers import OptimizationStepper, TrainerHookBase

from trackmania_rl.agents.learner import IQNLearner
from trackmania_rl.buffer_management import fill_buffer_from_rollout_with_n_steps_rule
from trackmania_rl.buffer_utilities import (
    MiniRaceReplayBuffer,
    apply_replay_settings,
    load_replay_state_dict,
    replay_state_dict,
    resize_buffers,
)
from trackmania_rl.channels.protocols import ReceivedRollout, RunStatePublisher
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.race.rewards import EngineeredRewards
from trackmania_rl.schedules import exponential, linear, staircase
from trackmania_rl.settings.live import LiveSettings

log = logging.getLogger(__name__)


class RaceStream:
    """The Trainer's `collector`: an iterator over finished races, whoever drove them.

    Args:
        receive: the next race, or None after waiting a moment.
        should_stop: whether the run ends; looked at before each race.
        on_idle: called whenever no race was there.
    """

    init_random_frames = 0

    def __init__(
        self,
        receive: Callable[[], ReceivedRollout | None],
        should_stop: Callable[[], bool],
        on_idle: Callable[[], None],
    ) -> None:
        self._receive = receive
        self._should_stop = should_stop
        self._on_idle = on_idle

    def __iter__(self) -> Iterator[ReceivedRollout]:
        """Yield races until the run ends."""
        while not self._should_stop():
            race = self._receive()
            if race is None:
                self._on_idle()
            else:
                yield race

    def state_dict(self) -> dict[str, Any]:
        """Nothing: collectors begin new races when a run is resumed."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Nothing to take over."""

    def shutdown(self) -> None:
        """Nothing to end: the processes belong to the supervisor."""


class _Hook(TrainerHookBase):
    """A hook without state; those that have some override both methods."""

    _trainer: Trainer | None = None

    @property
    def _frames(self) -> int:
        """Actions collected in the whole run."""
        assert self._trainer is not None, "register comes first"
        return self._trainer.collected_frames  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to take over."""


class StoreRaces(_Hook):
    """Turns each race into transitions in the replay buffers.

    Attributes:
        transitions_stored: how many in all.
    """

    def __init__(
        self,
        buffer: MiniRaceReplayBuffer,
        buffer_test: MiniRaceReplayBuffer,
        layout: ObservationLayout,
        live: LiveSettings,
        on_race: Callable[[ReceivedRollout], None],
    ) -> None:
        """`on_race` sees each race before its memory goes back to the collector."""
        self._buffer = buffer
        self._buffer_test = buffer_test
        self._layout = layout
        self._live = live
        self._on_race = on_race
        self.transitions_stored = 0

    def __call__(self, race: ReceivedRollout) -> TensorDict:
        """Store one race; returns a batch as long as the race, from which the Trainer counts frames."""
        settings = self._live.current
        with race:
            n_frames = len(race.rollout_results["actions"])
            if race.end_race_stats["fill_buffer"]:
                self.transitions_stored += fill_buffer_from_rollout_with_n_steps_rule(
                    self._buffer,
                    self._buffer_test,
                    race.rollout_results,
                    places=self._layout,
                    reward_settings=settings.reward,
                    replay_settings=settings.replay,
                    ms_per_action=settings.game.ms_per_action,
                    engineered=EngineeredRewards.at_frame(settings.reward, self._frames),
                )
            self._on_race(race)
        return TensorDict({}, batch_size=[n_frames])

    def register(self, trainer: Trainer, name: str = "replay") -> None:
        """Register where races come in."""
        self._trainer = trainer
        trainer.register_op("batch_process", self)
        trainer.register_module(name, self)

    def state_dict(self) -> dict[str, Any]:
        """The replay buffers, unless the configuration leaves them out of checkpoints."""
        holds_replay = self._live.current.run.checkpoint_holds_replay
        return {
            "transitions_stored": self.transitions_stored,
            "buffers": replay_state_dict(self._buffer, self._buffer_test) if holds_replay else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the buffers, if the checkpoint holds them."""
        self.transitions_stored = state_dict["transitions_stored"]
        if state_dict["buffers"] is not None:
            load_replay_state_dict(self._buffer, self._buffer_test, state_dict["buffers"])


class FollowSchedules(_Hook):
    """Brings everything that changes with the frame count, or by an edit of the configuration, up to date.

    Attributes:
        learning_rate: of this round's updates.
        priority_horizon_actions: only transitions with fewer actions elapsed get a new priority; None for all.
    """

    def __init__(
        self, learner: IQNLearner, buffer: MiniRaceReplayBuffer, buffer_test: MiniRaceReplayBuffer, live: LiveSettings
    ) -> None:
        self._learner = learner
        self._buffer = buffer
        self._buffer_test = buffer_test
        self._live = live
        self._refused_memory_size: int | None = None
        self.learning_rate = 0.0
        self.priority_horizon_actions: int | None = None

    def __call__(self) -> None:
        """Apply the schedules at the Trainer's frame count."""
        settings, frames = self._live.current, self._frames
        self.learning_rate = exponential(settings.agent.lr_schedule, frames)
        self._learner.settings = settings.agent
        apply_replay_settings(self._buffer, self._buffer_test, settings.replay)
        self.priority_horizon_actions = settings.replay.min_horizon_to_update_priority_actions
        self._buffer.rules.gamma = linear(settings.agent.gamma_schedule, frames)
        self._resize_memory(staircase(settings.replay.memory_size_schedule, frames))

    def _resize_memory(self, memory_size: int) -> None:
        """Let the memory hold `memory_size` rows; without room for them it stays as it is, which is said once."""
        if memory_size == self._refused_memory_size:
            return
        try:
            resize_buffers(self._buffer, memory_size)
        except RuntimeError:  # how torch says on any device that there is no memory
            self._refused_memory_size = memory_size
            log.error(
                "there is no room for a replay memory of %s transitions, so it keeps its %s: lower "
                "memory_size_schedule, or end other programs and start again",
                f"{memory_size:,}",
                f"{self._buffer.ring.capacity:,}",
            )

    def register(self, trainer: Trainer, name: str = "schedules") -> None:
        """Register before each round of updates."""
        self._trainer = trainer
        trainer.register_op("pre_optim_steps", self)


class SampleAtReplayRatio(_Hook):
    """Draws batches until each stored transition has, on average, been drawn as often as the configuration says.

    What is due counts every transition stored, those kept apart for the test loss as well, but batches are drawn from
    the others only: each of these is drawn 1 / (1 - `buffer_test_ratio`) times as often as configured. Linesight counts
    only what it trains on.

    Attributes:
        transitions_due: transitions still to be trained on.
    """

    def __init__(
        self,
        store: StoreRaces,
        buffer: MiniRaceReplayBuffer,
        live: LiveSettings,
        should_stop: Callable[[], bool],
    ) -> None:
        self._store = store
        self._buffer = buffer
        self._live = live
        self._should_stop = should_stop
        self._stored_before = 0
        self.transitions_due = 0.0

    def begin_round(self) -> None:
        """Add what the transitions stored since the last round are owed."""
        newly_stored = self._store.transitions_stored - self._stored_before
        self._stored_before = self._store.transitions_stored
        self.transitions_due += (
            newly_stored * self._live.current.replay.number_times_single_memory_is_used_before_discard
        )

    def __call__(self, _: TensorDictBase) -> TensorDict:
        """The next batch.

        Raises:
            StopIteration: which ends the round: nothing is due, too little is stored yet, or the run ends.
        """
        replay = self._live.current.replay
        start_learning_at = staircase(replay.memory_size_start_learn_schedule, self._frames)
        ring = self._buffer.ring
        has_enough = len(ring) >= min(start_learning_at, ring.capacity) and len(self._buffer) > 0
        if not has_enough or self.transitions_due < replay.batch_size or self._should_stop():
            raise StopIteration
        self.transitions_due -= replay.batch_size
        batch: TensorDict = self._buffer.sample()
        return batch

    def register(self, trainer: Trainer, name: str = "replay_ratio") -> None:
        """Register where the Trainer asks for batches."""
        self._trainer = trainer
        trainer.register_op("pre_optim_steps", self.begin_round)
        trainer.register_op("process_optim_batch", self)
        trainer.register_module(name, self)

    def state_dict(self) -> dict[str, Any]:
        """What is due."""
        return {"stored_before": self._stored_before, "transitions_due": self.transitions_due}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what is due."""
        self._stored_before = state_dict["stored_before"]
        self.transitions_due = state_dict["transitions_due"]


class StepIQN(OptimizationStepper):
    """One update of the IQN learner; its figures are summed on the device and read only when somebody asks."""

    def __init__(self, learner: IQNLearner, buffer: MiniRaceReplayBuffer, schedules: FollowSchedules) -> None:
        self._learner = learner
        self._buffer = buffer
        self._schedules = schedules
        self._sums = torch.zeros(3)
        self._n_updates = 0
        self._nothing_to_log = TensorDict({})

    def step(self, trainer: Trainer, sub_batch: TensorDictBase) -> TensorDict:
        """Train on one batch."""
        metrics = self._learner.update(sub_batch, self._schedules.learning_rate)
        if self._buffer.sampler.alpha > 0:
            self._update_priorities(sub_batch, metrics.td_error)
        self._sums = self._sums.to(metrics.loss.device)
        self._sums += torch.stack((metrics.loss / len(sub_batch), metrics.grad_norm, metrics.mean_q))
        self._n_updates += 1
        return self._nothing_to_log

    def _update_priorities(self, batch: TensorDictBase, td_error: torch.Tensor) -> None:
        """Note the errors (B,), except near the end of a mini-race, where every network's are small."""
        horizon, index = self._schedules.priority_horizon_actions, batch["index"]
        if horizon is not None:
            is_early = batch["state_float"][:, ELAPSED_ACTIONS_FLOAT] < horizon
            index, td_error = index[is_early], td_error[is_early.to(td_error.device)]
        if len(index) > 0:
            self._buffer.update_priority(index, td_error)

    def take_means(self) -> dict[str, float]:
        """Mean loss per transition, gradient norm and Q since the last call; empty if there was no update."""
        if self._n_updates == 0:
            return {}
        loss, grad_norm, mean_q = (self._sums / self._n_updates).tolist()
        self._sums.zero_()
        self._n_updates = 0
        return {"loss": loss, "grad_norm": grad_norm, "mean_q": mean_q}


class UpdateTargetNetwork(_Hook):
    """Moves the target network, `number_memories_trained_on_between_target_network_updates` transitions apart."""

    def __init__(self, learner: IQNLearner, live: LiveSettings) -> None:
        self._learner = learner
        self._live = live
        self._transitions_since_update = 0

    def __call__(self) -> None:
        """Count one batch."""
        settings = self._live.current
        interval = settings.agent.number_memories_trained_on_between_target_network_updates
        n_updates, self._transitions_since_update = divmod(
            self._transitions_since_update + settings.replay.batch_size, interval
        )
        if n_updates > 0:
            self._learner.soft_update_target(n_updates)

    def register(self, trainer: Trainer, name: str = "target_network") -> None:
        """Register after each update."""
        trainer.register_op("post_optim", self)
        trainer.register_module(name, self)

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {"transitions_since_update": self._transitions_since_update}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the count."""
        self._transitions_since_update = state_dict["transitions_since_update"]


class PublishWeights(_Hook):
    """Hands the collectors new weights every `send_shared_network_every_n_batches` updates.

    They explore with the online ones, and evaluate with averaged ones.
    """

    def __init__(self, learner: IQNLearner, run_state: RunStatePublisher, live: LiveSettings) -> None:
        self._learner = learner
        self._run_state = run_state
        self._live = live

    def __call__(self) -> None:
        """Publish, if this update is one of those."""
        if self._learner.updates % self._live.current.sync.send_shared_network_every_n_batches == 0:
            self._learner.update_evaluation_weights()
            self.publish()

    def publish(self) -> None:
        """Publish now."""
        online, averaged = self._learner.online, self._learner.evaluation_network
        self._run_state.publish(weights={"exploration": online, "evaluation": averaged})

    def register(self, trainer: Trainer, name: str = "publish_weights") -> None:
        """Register after each update."""
        trainer.register_op("post_optim", self)


class MeasureTestLoss(_Hook):
    """Measures the loss on transitions that are never trained on.

    Attributes:
        test_loss: the last one, per transition; None before the first.
    """

    def __init__(self, learner: IQNLearner, buffer_test: MiniRaceReplayBuffer, live: LiveSettings) -> None:
        self._learner = learner
        self._buffer_test = buffer_test
        self._live = live
        self.test_loss: float | None = None

    def __call__(self) -> None:
        """Measure, if this update is one of those."""
        is_due = self._learner.updates % self._live.current.telemetry.test_loss_every_n_batches == 0
        if is_due and len(self._buffer_test) > 0:
            batch = self._buffer_test.sample()
            self.test_loss = self._learner.evaluate(batch).item() / len(batch)

    def register(self, trainer: Trainer, name: str = "test_loss") -> None:
        """Register after each update."""
        trainer.register_op("post_optim", self)


class ResetPeriodically(_Hook):
    """Mixes the network with a fresh one every `reset_every_n_frames_generated` frames.

    After that it trains more than the replay ratio asks, by `additional_transitions_after_reset`.

    The frames are counted from the last reset, or from when resets were switched on.
    """

    def __init__(self, learner: IQNLearner, sampling: SampleAtReplayRatio, live: LiveSettings) -> None:
        self._learner = learner
        self._sampling = sampling
        self._live = live
        self._counted_from_frames = 0

    def __call__(self) -> None:
        """Reset, if it is time."""
        agent = self._live.current.agent
        if agent.reset_every_n_frames_generated == 0:
            self._counted_from_frames = self._frames
        elif self._frames - self._counted_from_frames >= agent.reset_every_n_frames_generated:
            self._counted_from_frames = self._frames
            self._learner.reset_partially()
            self._sampling.transitions_due += agent.additional_transitions_after_reset

    def register(self, trainer: Trainer, name: str = "periodic_reset") -> None:
        """Register before each round of updates."""
        self._trainer = trainer
        trainer.register_op("pre_optim_steps", self)
        trainer.register_module(name, self)

    def state_dict(self) -> dict[str, Any]:
        """Where counting began."""
        return {"last_reset_frames": self._counted_from_frames}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over where counting began."""
        self._counted_from_frames = state_dict["last_reset_frames"]
