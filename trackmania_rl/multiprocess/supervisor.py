"""Keeps the collector processes alive, and ends them all in good time."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from trackmania_rl.channels.protocols import SignsOfLife
from trackmania_rl.errors import ExitCode, PassingError, UserError
from trackmania_rl.multiprocess.collector_logs import CollectorLogs
from trackmania_rl.multiprocess.collector_task import CollectorTask, LogPipe
from trackmania_rl.multiprocess.ending import end_with_games
from trackmania_rl.multiprocess.liveness import Bounds, LifeWatch

log = logging.getLogger(__name__)

FIRST_RESTART_DELAY_S = 1.0
LONGEST_RESTART_DELAY_S = 30.0
MOST_DOUBLINGS = 10
GIVE_UP_AFTER_FAILURES = 6
KILL_AFTER_S = 1.0
"""A collector that ignores SIGTERM for so long is killed."""
HAS_SIGTERM: Final = sys.platform != "win32"
"""On Windows `terminate` ends a process at once, which leaves its games behind: it is killed together with them."""


class CollectorProcess(Protocol):
    """A process that plays, on this machine (`multiprocessing.Process` is one) or on another."""

    @property
    def name(self) -> str:
        """For the log."""
        ...

    @property
    def exitcode(self) -> int | None:
        """How it ended; None while it runs."""
        ...

    def is_alive(self) -> bool:
        """Whether it runs, or waits for its machine."""
        ...

    def join(self, timeout: float) -> None:
        """Wait for its end, no longer than so many seconds."""
        ...

    def terminate(self) -> None:
        """Ask it to end at once."""
        ...


class Placement(Protocol):
    """Where the collectors of a run are.

    Attributes:
        logs: handles their log records.
    """

    logs: CollectorLogs

    def log_pipe(self, name: str) -> LogPipe:
        """Make what a collector of this name sends its log records to."""
        ...

    def start(self, task: CollectorTask) -> CollectorProcess:
        """Start a collector.

        Raises:
            OSError: if it cannot be started.
        """
        ...

    def end_by_force(self, process: Any) -> None:
        """Kill a process of this placement with its games."""
        ...

    def signs_of_life(self, collector: int) -> SignsOfLife:
        """Look how a collector is whose process was started."""
        ...


class CollectorsKeepDyingError(PassingError):
    """No collector can be kept alive; the log holds what each of them said."""


@dataclass
class _Post:
    """One collector's place: the process that fills it now, and its recent failures.

    Attributes:
        process: None while the next one is waited for.
        failures: processes in a row that have ended without having delivered anything.
        has_delivered: whether the process now has.
        restart_at_s: when the next one is started.
        watch: over the process now.
    """

    process: CollectorProcess | None = None
    failures: int = 0
    has_delivered: bool = False
    restart_at_s: float = 0.0
    watch: LifeWatch = field(default_factory=LifeWatch)


class CollectorSupervisor:
    """Starts `n_collectors` processes through `spawn(index)`, restarts those that die or hang, and stops them.

    A process that has delivered before it ended is started again soon, however often that happens. Those that deliver
    nothing are started later and later. Only when every collector has failed so `GIVE_UP_AFTER_FAILURES` times in a row
    it gives up: nobody has delivered anything over all these starts.

    Args:
        spawn: starts collector number `index` and returns its process.
        on_death: called with the index of a collector that died, before it is started again; frees what it held.
        n_collectors: how many there are.
        request_stop: tells every collector that the run ends.
        signs_of_life: looks how a collector is whose process runs; None if nobody watches.
        bounds: how long one may be silent, by the settings in force.
        end_by_force: kills a process with its games.
    """

    def __init__(
        self,
        spawn: Callable[[int], CollectorProcess],
        on_death: Callable[[int], None],
        n_collectors: int,
        request_stop: Callable[[], None],
        signs_of_life: Callable[[int], SignsOfLife] | None = None,
        bounds: Callable[[], Bounds] | None = None,
        end_by_force: Callable[[Any], None] = end_with_games,
    ) -> None:
        self._spawn = spawn
        self._on_death = on_death
        self._request_stop = request_stop
        self._signs_of_life = signs_of_life
        self._bounds = bounds
        self._end_by_force = end_by_force
        self._posts = [_Post() for _ in range(n_collectors)]
        self._last_look_s = time.monotonic()
        self.restarts = 0

    def start(self) -> None:
        """Start every collector."""
        for index, post in enumerate(self._posts):
            self._start(index, post)

    def delivered(self, index: int) -> None:
        """Note that a race of collector `index` has come in, or a fragment of one."""
        post = self._posts[index]
        post.failures = 0
        post.has_delivered = True
        post.watch.delivered()

    def check(self) -> None:
        """End the collectors that hang, and start again those that died, the later the more often they fail.

        Raises:
            CollectorsKeepDyingError: when each has failed `GIVE_UP_AFTER_FAILURES` times in a row. As long as one works
                the run goes on.
            UserError: if a collector exited with `NEEDS_A_PERSON`.
        """
        now_s = time.monotonic()
        passed_s, self._last_look_s = now_s - self._last_look_s, now_s
        bounds = None if self._bounds is None else self._bounds()
        for index, post in enumerate(self._posts):
            if post.process is None:
                if now_s >= post.restart_at_s:
                    self.restarts += 1
                    self._start(index, post)
                continue
            if bounds is not None and post.process.is_alive():
                self._end_if_it_hangs(index, post, passed_s, bounds)
            if not post.process.is_alive():
                exit_code = post.process.exitcode
                post.process = None
                self._on_death(index)
                if exit_code == ExitCode.NEEDS_A_PERSON:
                    raise UserError(f"collector {index} cannot play, see its message above; the run can be resumed")
                self._fail(index, post, f"died (exit code {exit_code})")

    @property
    def n_alive(self) -> int:
        """How many collectors are running."""
        return sum(post.process is not None and post.process.is_alive() for post in self._posts)

    def stop(self, within_s: float = 1.5) -> None:
        """Ask every collector to end between two actions.

        One that has not done so within `within_s` seconds waits for something, such as a game that starts up: it is
        interrupted by SIGTERM, and killed with its games if that does not help either.
        """
        self._request_stop()
        processes = [post.process for post in self._posts if post.process is not None]
        if HAS_SIGTERM:
            processes = _not_ended_within(within_s, processes)
            for process in processes:
                process.terminate()
            within_s = KILL_AFTER_S
        for process in _not_ended_within(within_s, processes):
            log.warning("%s did not end when asked and is killed", process.name)
            self._end_by_force(process)

    def _start(self, index: int, post: _Post) -> None:
        post.has_delivered = False
        post.watch = LifeWatch()
        try:
            post.process = self._spawn(index)
        except OSError as error:  # no memory or process left, or killed before it had read its task
            self._on_death(index)
            self._fail(index, post, f"could not be started ({error})")

    def _end_if_it_hangs(self, index: int, post: _Post, passed_s: float, bounds: Bounds) -> None:
        assert post.process is not None
        assert self._signs_of_life is not None
        why = post.watch.look(self._signs_of_life(index), passed_s, bounds)
        if why is not None:
            log.warning("collector %d %s: it is killed with its games", index, why)
            self._end_by_force(post.process)
            post.watch = LifeWatch()  # one that the system does not let go at once is not killed over and over

    def _fail(self, index: int, post: _Post, how: str) -> None:
        """Decide when a collector that has ended is started again.

        Raises:
            CollectorsKeepDyingError: if it is not.
        """
        post.failures += not post.has_delivered
        if all(one.failures >= GIVE_UP_AFTER_FAILURES for one in self._posts):
            others = ", and so did all others" if len(self._posts) > 1 else ""
            raise CollectorsKeepDyingError(
                f"collector {index} died {post.failures} times in a row without having brought a race (at last it "
                f"{how}){others}; the messages above say why; nothing learned is lost, the run can be resumed"
            )
        doublings = min(max(post.failures - 1, 0), MOST_DOUBLINGS)
        delay_s = min(FIRST_RESTART_DELAY_S * 2**doublings, LONGEST_RESTART_DELAY_S)
        post.restart_at_s = time.monotonic() + delay_s
        log.warning("collector %d %s; it starts again in %.0f s", index, how, delay_s)


def _not_ended_within(seconds: float, processes: list[CollectorProcess]) -> list[CollectorProcess]:
    """Wait for the processes' end, and return those that have not ended in time."""
    deadline_s = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    return [process for process in processes if process.is_alive()]
