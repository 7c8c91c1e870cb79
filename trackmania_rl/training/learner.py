"""The learner without processes: a torchrl Trainer whose batches are races, assembled from the hooks of one run.

`Learning` is the builder's product: the Trainer and the parts that a process shell, a test or a notebook wants to look
at. It knows no queue: races come out of a callable, finished work goes into callables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torchrl.trainers import Trainer

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.learner import CarryOut, IQNLearner
from trackmania_rl.agents.run_network import pick_device
from trackmania_rl.buffer_utilities import MiniRaceReplayBuffer, make_buffers
from trackmania_rl.channels.protocols import ReceivedRollout, RunStatePublisher
from trackmania_rl.experience_replay.placement import pick_replay_device
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.training.learner_hooks import (
    FollowSchedules,
    MeasureTestLoss,
    PublishWeights,
    RaceStream,
    ResetPeriodically,
    SampleAtReplayRatio,
    StepIQN,
    StoreRaces,
    UpdateTargetNetwork,
)


@dataclass(frozen=True)
class Learning:
    """A Trainer and its parts.

    Attributes:
        trainer: owns the loop: `trainer.train()` learns until the race stream ends; `trainer.register_op` takes more
            hooks; `trainer.state_dict()` is everything resumable.
        learner: networks and optimizer.
        buffer: transitions to learn from.
        buffer_test: transitions only to measure the loss on.
        schedules: learning rate and everything else that follows the frame count.
        stepper: the mean figures of recent updates.
        test_loss: the loss on `buffer_test`.
        publish: hands weights to the collectors.
    """

    trainer: Trainer
    learner: IQNLearner
    buffer: MiniRaceReplayBuffer
    buffer_test: MiniRaceReplayBuffer
    schedules: FollowSchedules
    stepper: StepIQN
    test_loss: MeasureTestLoss
    publish: PublishWeights

    def rehearse(self, carry_out: CarryOut = lambda work: work()) -> None:
        """Compile what the first update needs; nothing else changes. It takes a while, and needs no race.

        Args:
            carry_out: is given the compiling as a function to call, and may interrupt it.
        """
        self.learner.rehearse_update(self.buffer.blank_batch(), carry_out)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `trainer.state_dict()` was taken.

        Raises:
            KeyError, RuntimeError or ValueError: if the state does not fit this run's networks or replay memory.
        """
        self.trainer.load_state_dict(state)
        self.schedules()
        self.publish.publish()


def build_learning(
    live: LiveSettings,
    network: IQN_Network,
    layout: ObservationLayout,
    seeds: SeedTree,
    *,
    run_state: RunStatePublisher,
    receive: Callable[[], ReceivedRollout | None],
    should_stop: Callable[[], bool],
    on_race: Callable[[ReceivedRollout], None],
    housekeeping: Callable[[], None],
) -> Learning:
    """Assemble the learner of a run.

    Args:
        live: the settings in force.
        network: becomes the online network; moved to the configured device.
        layout: names of the observation's floats.
        seeds: the run's seed tree.
        run_state: where weights are published.
        receive: the next race, or None after waiting a moment.
        should_stop: whether the run ends.
        on_race: sees each race while its arrays are valid.
        housekeeping: called after each update and each race, and while there is no race; keeps itself cheap.
    """
    settings = live.current
    device = pick_device(settings.run.torch_device)
    learner = IQNLearner(
        network,
        settings.agent,
        device=device,
        seed=seeds.integer("learner"),
        use_torch_compile=settings.run.use_torch_compile,
    )
    image_size_px = (settings.game.image_height_px, settings.game.image_width_px)
    replay_device = pick_replay_device(
        device, settings.replay.memory_size_schedule, layout.float_input_dim, image_size_px
    )
    buffer, buffer_test = make_buffers(
        settings.replay,
        n_floats=layout.float_input_dim,
        image_size_px=image_size_px,
        device=replay_device,
        generator=torch.Generator(replay_device).manual_seed(seeds.integer("replay")),
        frames_per_state=settings.game.frames_per_state,
    )
    schedules = FollowSchedules(learner, buffer, buffer_test, live)
    stepper = StepIQN(learner, buffer, schedules)
    trainer = Trainer(
        collector=RaceStream(receive, should_stop, housekeeping),
        total_frames=sys.maxsize,
        frame_skip=1,
        optim_steps_per_batch=None,  # SampleAtReplayRatio ends each round
        loss_module=learner,
        optimization_stepper=stepper,
        progress_bar=False,
        auto_log_optim_steps=False,
    )
    store = StoreRaces(buffer, buffer_test, layout, live, on_race)
    sampling = SampleAtReplayRatio(store, buffer, live, should_stop)
    publish = PublishWeights(learner, run_state, live)
    test_loss = MeasureTestLoss(learner, buffer_test, live)
    # The order within one point of the loop: schedules before sampling, target and weights after the update.
    hooks = (store, schedules, sampling, ResetPeriodically(learner, sampling, live))
    for hook in (*hooks, UpdateTargetNetwork(learner, live), publish, test_loss):
        hook.register(trainer)
    trainer.register_op("post_optim", housekeeping)
    trainer.register_op("post_steps", housekeeping)
    return Learning(trainer, learner, buffer, buffer_test, schedules, stepper, test_loss, publish)
