"""Process of the learner, the main one: it starts the collectors, learns from their races and ends the run."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import Any

from tensordict import TensorDictBase
from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.multiprocess.collectors import CollectorJob, CollectorSupervisor
from trackmania_rl.multiprocess.signals import end_thread
from trackmania_rl.multiprocess.supervisor import AJob, Supervisor
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
        self._because = ""  # a next stage is no restart


class CollectorsHook(Supervisor[AJob], Hook):
    """Supervisor of a run's collectors; a hook of the training loop. A subclass counts their races."""

    takes_fragments = True

    @property
    def n_alive(self) -> int:
        """Number of running collectors besides connected workers."""
        return 0

    def stop(self) -> None:
        """Ask every collector to end, and kill those that are busy."""
        raise NotImplementedError

    @override
    def tick(self) -> None:
        """Restart failed collectors.

        Raises:
            KeepsFailingError: if no collector can be kept running.
        """
        self.check()
        self.run.statistics.collector_restarts = self.restarts
        self.run.statistics.collectors_alive = self.n_alive + (self.run.n_workers or 0)


class Collectors(CollectorSupervisor, CollectorsHook[CollectorJob]):
    """The collectors of this machine."""

    @override
    def batch_process(self, _: TensorDictBase) -> None:
        if (collector := self.run.race.collector) < len(self.jobs):  # and no worker's
            self.jobs[collector].n_delivered += 1


def learner_process_fn(trainer: RunTrainer, collectors: CollectorsHook[Any]) -> None:
    """Learn until the run ends; then end the collectors and write a last checkpoint.

    Raises:
        KeepsFailingError: if no collector can be kept running; what was learned is saved first.
        UserError: if the weights are no longer finite numbers; earlier checkpoints stay as they are.
    """
    run = trainer.run
    with ExitStack() as at_end:  # entered last is done first, and everything is done whatever fails
        at_end.callback(lambda: end_thread(trainer.compilation))
        at_end.callback(run.channels.rollouts.close)
        at_end.callback(collectors.stop)
        for hook in trainer.hooks:
            at_end.callback(hook.end)
        at_end.callback(run.channels.run_state.publish, stop=True)  # collectors end meanwhile
        collectors.register(trainer, "WatchCollectors")  # as earlier versions named it
        collectors.start()
        if run.settings.run.use_torch_compile and (batch := run.memory.blank_batch()) is not None:
            log.info("compiling the update")
            trainer.compilation = threading.Thread(target=run.agent.compile_update, args=(batch,), name="compilation")
            trainer.compilation.start()  # races arrive meanwhile
        if run.has_collectors:
            log.info("waiting for the first race", extra={"phase": "waiting for the first race"})
        trainer.train()
