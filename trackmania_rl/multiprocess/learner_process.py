"""The learner's process, which is the main one: it starts the collectors, learns from their races and ends the run."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from tensordict import TensorDictBase

from trackmania_rl.agents.agent import CarryOut
from trackmania_rl.multiprocess.collector_logs import CollectorLogs
from trackmania_rl.multiprocess.supervisor import CollectorSupervisor
from trackmania_rl.multiprocess.watched import WatchedTraining
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.hooks.status import LEARNER_STALL_S
from trackmania_rl.training.trainer import RunTrainer

log = logging.getLogger(__name__)


class WatchCollectors(Hook):
    """Keeps the collectors alive.

    Args:
        supervisor: of the collectors.
    """

    takes_fragments = True

    def __init__(self, supervisor: CollectorSupervisor) -> None:
        self._supervisor = supervisor

    def batch_process(self, _: TensorDictBase) -> None:
        """Tell the supervisor who has delivered."""
        assert self.run.race is not None
        self._supervisor.delivered(self.run.race.collector)

    def tick(self) -> None:
        """Start again the collectors that died.

        Raises:
            CollectorsKeepDyingError: if no collector can be kept alive.
        """
        self._supervisor.check()
        self.run.statistics.collector_restarts = self._supervisor.restarts
        self.run.statistics.collectors_alive = self._supervisor.n_alive


class TellWatcher(Hook):
    """Tells the process that watches this one (`train.py --supervised`) that the training loop goes on.

    Args:
        watched: the training, as that process sees it.
    """

    def __init__(self, watched: WatchedTraining) -> None:
        self._watched = watched

    def begin(self) -> None:
        """Say how the training before this one ended, if there was one."""
        self._watched.begin(self.run.statistics)
        if self._watched.orders.because:
            log.warning("started again by --supervised, since the training %s", self._watched.orders.because)

    def tick(self) -> None:
        """Go on."""
        self._watched.pulse.ask_for_bounds(self.run.settings.run.learner_silence_s, LEARNER_STALL_S)
        self._watched.pulse.tick()


def learner_process_fn(
    trainer: RunTrainer,
    supervisor: CollectorSupervisor,
    logs: CollectorLogs,
    interruptibly: CarryOut = lambda work: work(),
) -> None:
    """Learn until the run ends; then end the collectors and write a last checkpoint.

    Args:
        trainer: with all its hooks, see `make_trainer`.
        supervisor: of the collectors, not started yet.
        logs: the collectors' log records.
        interruptibly: compiles the update, which would let a stop wait.

    Raises:
        CollectorsKeepDyingError: if no collector can be kept alive; what was learned is saved first.
        UserError: if the weights are no longer finite numbers; the checkpoints written before stay as they are.
    """
    run = trainer.run
    with ExitStack() as at_end:  # what is entered last is done first, and everything is done whatever fails
        at_end.enter_context(logs)
        at_end.callback(run.channels.rollouts.close)
        at_end.callback(supervisor.stop)
        for hook in trainer.hooks:
            at_end.callback(hook.end)
        at_end.callback(run.channels.run_state.publish, stop=True)  # so that collectors end meanwhile
        WatchCollectors(supervisor).register(trainer)
        supervisor.start()
        if run.settings.run.use_torch_compile:
            log.info("compiling the update", extra={"phase": "compiling the update"})
            batch = run.memory.blank_batch()
            if batch is not None:
                run.agent.rehearse_update(batch, interruptibly)  # the collectors start and compile meanwhile
        if run.settings.game.n_collectors > 0:
            log.info("waiting for the first race", extra={"phase": "waiting for the first race"})
        trainer.train()
