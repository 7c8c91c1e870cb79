"""Supervisor of collectors, kept games (`scripts/keep_games.py`) and, with `train.py --supervised`, the training.

It detects processes that hang, and restarts failed ones under one restart policy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Final, Generic, Protocol, TypeVar

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.errors import PassingError
from trackmania_rl.processes import ENDS_WITHIN_S, descendants_of, end_processes

log = logging.getLogger(__name__)

MOST_OF_ONE_LOOK_S: Final = 1.0
"""Most time that one check counts: the supervisor may have been stopped, or the machine suspended."""
REMEMBERED_S: Final = 86_400.0
MOST_DOUBLINGS: Final = 10


@dataclass(frozen=True)
class Limits:
    """Longest times of a process, in seconds."""

    silence_s: float  # without a heartbeat
    stall_s: float  # without progress, waits left out
    first_silence_s: float  # from its start to the first heartbeat: it loads its libraries
    first_stall_s: float  # from its start to the first progress: it compiles


class HangWatch:
    """Hang detector of one process."""

    def __init__(self) -> None:
        self._beat_at_s = self._progress_at_s = 0.0
        self._silent_s = self._stalled_s = 0.0

    def check(self, heartbeat: Heartbeat, passed_s: float, limits: Limits) -> str | None:
        """Describe the hang; return None without one.

        Args:
            heartbeat: of the process.
            passed_s: time since the last call.
            limits: in force now.
        """
        counted_s = min(passed_s, MOST_OF_ONE_LOOK_S)
        self._silent_s = self._silent_s + counted_s if heartbeat.at_s == self._beat_at_s else 0.0
        if heartbeat.progress_at_s != self._progress_at_s:
            self._stalled_s = 0.0
        elif heartbeat.n_waiting == 0:
            self._stalled_s += counted_s
        self._beat_at_s, self._progress_at_s = heartbeat.at_s, heartbeat.progress_at_s
        if self._silent_s > (limits.silence_s if self._beat_at_s else limits.first_silence_s):
            return f"has had no heartbeat for {self._silent_s:.0f} s"
        if self._stalled_s > (limits.stall_s if self._progress_at_s else limits.first_stall_s):
            return f"has made no progress for {self._stalled_s:.0f} s"
        return None


@dataclass(frozen=True)
class RestartPolicy:
    """Delays of restarts, and the limit of failures.

    Attributes:
        first_delay_s: after the first failure since a success. Each further failure doubles the delay.
        longest_delay_s: largest delay.
        most_failures: restarting ends once every job has failed this often within a day without a success.
    """

    first_delay_s: float
    longest_delay_s: float
    most_failures: int | None = None


class KeepsFailingError(PassingError):
    """Every job has failed too often."""


class Job(Protocol):
    """Process that a supervisor keeps running; `name` is for the log."""

    name: str

    @property
    def has_succeeded(self) -> bool:
        """True if it did useful work since its last start; its failures are then forgotten."""
        ...

    def start(self) -> str | None:
        """Start it; return an error, such as "could not be started (no memory)"."""
        ...

    def failure(self, passed_s: float) -> str | None:
        """Return its failure in the last `passed_s` seconds, such as "died (exit code 1)"; None if it runs."""
        ...

    def end(self) -> None:
        """Kill what is left of it and free its memory; called after each failure."""
        ...


AJob = TypeVar("AJob", bound=Job)


@dataclass
class _Post(Generic[AJob]):
    job: AJob
    failed_at_s: list[float] = field(default_factory=list)
    restart_at_s: float | None = None


class Supervisor(Generic[AJob]):
    """Starts jobs and restarts failed ones.

    Args:
        jobs: to keep running.
        policy: of the restarts.
        say: logs a line.

    Attributes:
        restarts: number of starts beyond the first ones.
    """

    def __init__(self, jobs: Sequence[AJob], policy: RestartPolicy, say: Callable[[str], object] = log.warning) -> None:
        self.jobs = jobs
        self.restarts = 0
        self._posts = [_Post(job) for job in jobs]
        self._policy = policy
        self._say = say
        self._last_check_s = time.monotonic()

    def start(self) -> None:
        """Start every job."""
        self._last_check_s = time.monotonic()
        for post in self._posts:
            self._start(post)

    def check(self) -> None:
        """End the jobs that failed, and start those whose delay is over.

        Raises:
            KeepsFailingError: if every job has failed too often. Until then all are restarted.
        """
        now_s = time.monotonic()
        passed_s, self._last_check_s = now_s - self._last_check_s, now_s
        for post in self._posts:
            if post.restart_at_s is None:
                how = post.job.failure(passed_s)
                if how is not None:
                    self._fail(post, how)
            elif now_s >= post.restart_at_s:
                self.restarts += 1
                self._start(post)

    def _start(self, post: _Post[AJob]) -> None:
        post.restart_at_s = None
        how = post.job.start()
        if how is not None:
            self._fail(post, how)

    def _fail(self, post: _Post[AJob], how: str) -> None:
        now_s = time.monotonic()
        for one in self._posts:
            if one.job.has_succeeded:
                one.failed_at_s.clear()
        post.job.end()
        post.failed_at_s = [at_s for at_s in post.failed_at_s if now_s - at_s < REMEMBERED_S] + [now_s]
        n_failures, most = len(post.failed_at_s), self._policy.most_failures
        if most is not None and all(len(one.failed_at_s) >= most for one in self._posts):
            others = ", and so has each of the others" if len(self._posts) > 1 else ""
            raise KeepsFailingError(
                f"{post.job.name} {how}: it has failed {n_failures} times in a row{others}; the messages above say "
                "why; nothing learned is lost, the run can be resumed"
            )
        delay_s = min(
            self._policy.first_delay_s * 2 ** min(n_failures - 1, MOST_DOUBLINGS), self._policy.longest_delay_s
        )
        post.restart_at_s = now_s + delay_s
        self._say(f"{post.job.name} {how}; it starts again in {delay_s:.0f} s")


def end_with_games(process: BaseProcess) -> None:
    """Kill a process with its descendants and their games."""
    assert process.pid is not None
    descendants = descendants_of(process.pid)
    process.kill()
    process.join(ENDS_WITHIN_S)
    end_processes(descendants)
    end_games_of(process.pid)


def end_games_of(*pids: int) -> None:
    """End the recorded real games of processes. Started by Wine or TMLoader, they are no descendants."""
    from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords  # imports numba

    for pid in pids:
        GameRecords().end_games_of(pid)
