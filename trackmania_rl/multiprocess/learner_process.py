"""Process of the learner, the main one: it starts the collectors, learns from their races and ends the run."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from trackmania_rl.agents.agent import CarryOut
from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.multiprocess.collectors import Collectors, Placement
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.trainer import RunTrainer

log = logging.getLogger(__name__)


class BeatForSupervisor(Hook):
    """Heartbeat that `train.py --supervised` reads, in place of the run's own.

    Args:
        heartbeat: in shared memory.
        because: end of the training before this one; empty for the first one.
    """

    def __init__(self, heartbeat: Heartbeat, because: str) -> None:
        self._heartbeat = heartbeat
        self._because = because

    def begin(self) -> None:
        """Replace the heartbeat."""
        self._heartbeat.progress(self.run.heartbeat.silence_s, self.run.heartbeat.stall_s)
        self.run.heartbeat = self._heartbeat
        if self._because:
            log.warning("started again by --supervised, since the training %s", self._because)


def learner_process_fn(
    trainer: RunTrainer,
    collectors: Collectors,
    placement: Placement,
    interruptibly: CarryOut = lambda work: work(),
) -> None:
    """Learn until the run ends; then end the collectors and write a last checkpoint.

    Work of seconds is done `interruptibly`, so that a stop interrupts it.

    Raises:
        KeepsFailingError: if no collector can be kept running; what was learned is saved first.
        UserError: if the weights are no longer finite numbers; earlier checkpoints stay as they are.
    """
    run = trainer.run
    with ExitStack() as at_end:  # entered last is done first, and everything is done whatever fails
        at_end.enter_context(placement)
        at_end.callback(run.channels.rollouts.close)
        at_end.callback(collectors.stop)
        for hook in trainer.hooks:
            at_end.callback(hook.end)
        at_end.callback(run.channels.run_state.publish, stop=True)  # collectors end meanwhile
        collectors.register(trainer, "WatchCollectors")  # as earlier versions named it
        collectors.start()
        if run.settings.run.use_torch_compile:
            log.info("compiling the update", extra={"phase": "compiling the update"})
            batch = run.memory.blank_batch()
            if batch is not None:
                run.agent.rehearse_update(batch, interruptibly)  # collectors start and compile meanwhile
        if run.settings.game.n_collectors > 0:
            log.info("waiting for the first race", extra={"phase": "waiting for the first race"})
        trainer.train()
