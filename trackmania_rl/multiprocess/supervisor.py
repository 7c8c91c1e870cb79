"""Keeps the collector processes alive, and ends them all in good time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

from trackmania_rl.errors import PassingError

log = logging.getLogger(__name__)

FIRST_RESTART_DELAY_S = 1.0
LONGEST_RESTART_DELAY_S = 30.0
MOST_DOUBLINGS = 10
SETTLED_AFTER_S = 60.0
"""A collector that delivers a race after so long is taken to work: its next failure counts as the first."""
GIVE_UP_AFTER_FAILURES = 6
KILL_AFTER_S = 1.0
"""A collector that ignores SIGTERM for so long is killed."""


class CollectorsKeepDyingError(PassingError):
    """No collector can be kept alive; the log holds what each of them said."""


@dataclass
class _Post:
    """One collector's place: the process that fills it now, and its recent failures."""

    process: BaseProcess | None = None
    started_at_s: float = 0.0
    failures: int = 0
    restart_at_s: float = 0.0


class CollectorSupervisor:
    """Starts `n_collectors` processes through `spawn(index)`, restarts those that die, and stops them.

    Args:
        spawn: starts collector number `index` and returns its process.
        on_death: called with the index of a collector that died, before it is started again; frees what it held.
        n_collectors: how many there are.
        request_stop: tells every collector that the run ends.
    """

    def __init__(
        self,
        spawn: Callable[[int], BaseProcess],
        on_death: Callable[[int], None],
        n_collectors: int,
        request_stop: Callable[[], None],
    ) -> None:
        self._spawn = spawn
        self._on_death = on_death
        self._request_stop = request_stop
        self._posts = [_Post() for _ in range(n_collectors)]
        self.restarts = 0

    def start(self) -> None:
        """Start every collector."""
        for index in range(len(self._posts)):
            self._start(index)

    def delivered(self, index: int) -> None:
        """Note that a race of collector `index` has come in."""
        post = self._posts[index]
        if time.monotonic() - post.started_at_s > SETTLED_AFTER_S:
            post.failures = 0

    def check(self) -> None:
        """Start again the collectors that died, the later the more often they do.

        Raises:
            CollectorsKeepDyingError: when each has failed `GIVE_UP_AFTER_FAILURES` times in a row. As long as one works
                the run goes on.
        """
        now_s = time.monotonic()
        for index, post in enumerate(self._posts):
            if post.process is None:
                if now_s >= post.restart_at_s:
                    self.restarts += 1
                    self._start(index)
            elif not post.process.is_alive():
                self._bury(index, post, now_s)

    @property
    def n_alive(self) -> int:
        """How many collectors are running."""
        return sum(post.process is not None and post.process.is_alive() for post in self._posts)

    def stop(self, within_s: float = 1.5) -> None:
        """Ask every collector to end between two actions.

        One that has not done so within `within_s` seconds waits for something, such as a game that starts up: it is
        interrupted by SIGTERM, and killed if that does not help either.
        """
        self._request_stop()
        processes = [post.process for post in self._posts if post.process is not None]
        for process in _not_ended_within(within_s, processes):
            process.terminate()
        for process in _not_ended_within(KILL_AFTER_S, processes):
            log.warning("%s did not end when asked and is killed", process.name)
            process.kill()
            process.join()

    def _start(self, index: int) -> None:
        post = self._posts[index]
        post.process = self._spawn(index)
        post.started_at_s = time.monotonic()

    def _bury(self, index: int, post: _Post, now_s: float) -> None:
        assert post.process is not None
        post.failures += 1
        exit_code = post.process.exitcode
        post.process = None
        self._on_death(index)
        if all(one.failures >= GIVE_UP_AFTER_FAILURES for one in self._posts):
            others = ", and so did all others" if len(self._posts) > 1 else ""
            raise CollectorsKeepDyingError(
                f"collector {index} died {post.failures} times in a row (last exit code {exit_code}){others}; "
                "the messages above say why; nothing learned is lost, the run can be resumed"
            )
        delay_s = min(FIRST_RESTART_DELAY_S * 2 ** min(post.failures - 1, MOST_DOUBLINGS), LONGEST_RESTART_DELAY_S)
        post.restart_at_s = now_s + delay_s
        log.warning("collector %d died (exit code %s); it starts again in %.0f s", index, exit_code, delay_s)


def _not_ended_within(seconds: float, processes: list[BaseProcess]) -> list[BaseProcess]:
    """Wait for the processes' end, and return those that have not ended in time."""
    deadline_s = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    return [process for process in processes if process.is_alive()]
