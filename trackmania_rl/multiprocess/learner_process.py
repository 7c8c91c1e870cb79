"""Process of the learner, the main one: it starts the collectors, learns from their races and ends the run."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.processes import end_thread, ending_signals
from trackmania_rl.training.hooks.hook import Hook, RunContext
from trackmania_rl.training.learner import learn

if TYPE_CHECKING:
    from trackmania_rl.telemetry.statistics import TrainingStatistics

log = logging.getLogger(__name__)


class StopConditions:
    """Conditions that end a run. A signal of the terminal, or SIGTERM, ends it in order; a second Ctrl-C at once.

    The constructor installs signal handlers, in the main thread.

    Args:
        max_wall_s: seconds of the clock after which the run ends.
        max_frames: frames after which it ends.
        clock: seconds since the start of the command.
        counts: of the run.
        max_updates: updates after which the run ends.

    Attributes:
        is_requested: whether a signal has come.
    """

    def __init__(
        self,
        max_wall_s: float,
        max_frames: int,
        clock: Callable[[], float],
        counts: TrainingStatistics,
        max_updates: int = sys.maxsize,
    ) -> None:
        self._max_wall_s = max_wall_s
        self._max_frames = max_frames
        self._max_updates = max_updates
        self._clock = clock
        self._counts = counts
        self.is_requested = False
        for number in ending_signals():
            signal.signal(number, self._on_signal)

    def __call__(self) -> bool:
        """Return whether the run is to end."""
        return (
            self.is_requested
            or self._clock() > self._max_wall_s
            or self._counts.frames_total >= self._max_frames
            or self._counts.updates_total >= self._max_updates
        )

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        is_first, self.is_requested = not self.is_requested, True
        if not is_first and number == signal.SIGINT:
            raise KeyboardInterrupt


class BeatForSupervisor(Hook):
    """Heartbeat that `train.py --supervised` reads, in place of the run's own.

    Args:
        heartbeat: in shared memory.
        restart_reason: end of the training before this one; empty for the first one.
    """

    def __init__(self, heartbeat: Heartbeat, restart_reason: str) -> None:
        self._heartbeat = heartbeat
        self._restart_reason = restart_reason

    @override
    def begin(self) -> None:
        """Replace the heartbeat."""
        self._heartbeat.progress(self.run.heartbeat.silence_s, self.run.heartbeat.stall_s)
        self.run.heartbeat = self._heartbeat
        if self._restart_reason:
            log.warning("started again by --supervised, since the training %s", self._restart_reason)
        self._restart_reason = ""  # a next stage is no restart


class RunCollectors(Protocol):
    """Collectors of a run, on this machine or on a cluster."""

    restarts: int  #: starts beyond the first ones

    @property
    def n_alive(self) -> int:
        """Number of running collectors besides connected workers."""
        ...

    def start(self) -> None:
        """Start every collector."""
        ...

    def check(self) -> None:
        """Restart failed collectors.

        Raises:
            KeepsFailingError: if no collector can be kept running.
        """
        ...

    def stop(self) -> None:
        """Ask every collector to end, and kill those that are busy."""
        ...


class WatchCollectors(Hook):
    """Supervises the collectors of the run while it trains."""

    def __init__(self, collectors: RunCollectors) -> None:
        self._collectors = collectors

    @override
    def tick(self) -> None:
        self._collectors.check()
        statistics = self.run.statistics
        statistics.collector_restarts = self._collectors.restarts
        statistics.collectors_alive = self._collectors.n_alive + (self.run.n_workers or 0)


def learner_process_fn(
    run: RunContext, hooks: Sequence[Hook], collectors: RunCollectors, should_stop: Callable[[], bool]
) -> None:
    """Learn until the run ends; then end the collectors and write a last checkpoint.

    Args:
        run: has begun.
        hooks: of the run.
        collectors: of the run, not started yet.
        should_stop: returns whether the run ends.

    Raises:
        KeepsFailingError: if no collector can be kept running; what was learned is saved first.
        UserError: if the weights are no longer finite numbers; earlier checkpoints stay as they are.
    """
    watch = WatchCollectors(collectors)
    watch.attach(run)
    compilation = threading.Thread(target=_compile_update, args=(run,), name="compilation")
    with ExitStack() as at_end:  # entered last is done first, and everything is done whatever fails
        at_end.callback(lambda: end_thread(compilation))
        at_end.callback(run.channels.rollouts.close)
        at_end.callback(collectors.stop)
        for hook in hooks:
            at_end.callback(hook.end)
        at_end.callback(run.channels.run_state.publish, stop=True)  # collectors end meanwhile
        collectors.start()
        compilation.start()  # races arrive meanwhile
        if run.has_collectors:
            log.info("waiting for the first race", extra={"phase": "waiting for the first race"})
        learn(run, [*hooks, watch], should_stop, compilation)


def _compile_update(run: RunContext) -> None:
    if run.settings.run.use_torch_compile and (batch := run.memory.blank_batch()) is not None:
        log.info("compiling the update")
        run.agent.compile_update(batch)
