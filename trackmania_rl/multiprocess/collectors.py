"""Collectors as jobs of a `Supervisor`, and their start on this machine."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

from typing_extensions import override

from trackmania_rl.agents.builder import MakeAgentBuilder, make_agent_builder
from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.rollouts import RolloutSink
from trackmania_rl.channels.run_state import RunState
from trackmania_rl.errors import ExitCode, UserError
from trackmania_rl.games.race_games import MakeGamesBuilder, make_games_builder
from trackmania_rl.multiprocess.collector_process import CollectorTask, collector_process_fn
from trackmania_rl.multiprocess.supervisor import HangWatch, Job, Limits, RestartPolicy, Supervisor, end_with_games
from trackmania_rl.processes import UNGUARDED, PipeEnd, spawn
from trackmania_rl.race.race import CollectorProgress
from trackmania_rl.settings import Settings
from trackmania_rl.telemetry.live.feed import FOLDER
from trackmania_rl.track.map_sources import TRACKS_FOLDER
from trackmania_rl.training.demonstrations import Demonstration

COLLECTOR_POLICY: Final = RestartPolicy(first_delay_s=1.0, longest_delay_s=30.0, most_failures=6)
FIRST_BEAT_WITHIN_S: Final = 300.0
"""A new process loads its libraries, perhaps from a cold disk with a virus scanner."""
FIRST_RACE_LATER_S: Final = 600.0
"""Extra time for a new process's first race, since it compiles."""
STARTS_OF_A_GAME: Final = 3
"""Starts of a failing game before its collector ends by itself."""
LAST_RECORDS_WITHIN_S: Final = 3.0
COLLECTOR_ENDS_WITHIN_S: Final = 2.0
"""A collector that runs so long after the end of the run is killed."""
SLOWEST_SPEED: Final = 0.5
"""Slowest game, as a share of real time, or of `running_speed` if that is below 1."""


def limits_of_collectors(settings: Settings) -> Limits:
    """Derive the limits from the longest race, the limits of a game's start and `collector_silence_s`."""
    game, silence_s = settings.game, settings.run.collector_silence_s
    longest_race_s = game.cutoff_race_longer_than_ms / 1000 / (SLOWEST_SPEED * min(1.0, game.running_speed))
    stall_s = silence_s + longest_race_s
    if not game.is_in_process:
        from trackmania_rl.tmi_interaction.launchers.launcher import LISTENS_WITHIN_S
        from trackmania_rl.tmi_interaction.race_machine import START_WITHIN_S

        stall_s += STARTS_OF_A_GAME * (LISTENS_WITHIN_S + START_WITHIN_S + game.tmi_protection_timeout_s)
    return Limits(silence_s, stall_s, max(silence_s, FIRST_BEAT_WITHIN_S), stall_s + FIRST_RACE_LATER_S)


class LogPipes:
    """A pipe for the log records of each collector, which a thread handles here.

    A collector that is killed or stopped within a record blocks only that thread.
    """

    def __init__(self) -> None:
        self._readers: list[threading.Thread] = []

    def open(self, name: str) -> PipeEnd:
        """Return the end of a pipe for a process."""
        reading, writing = multiprocessing.get_context("spawn").Pipe(duplex=False)
        reader = threading.Thread(target=_handle_logs, args=(reading,), name=f"logs of {name}", daemon=True)
        self._readers = [*(one for one in self._readers if one.is_alive()), reader]
        reader.start()
        return writing

    def close(self) -> None:
        """Wait for the last log records of collectors that have ended."""
        deadline_s = time.monotonic() + LAST_RECORDS_WITHIN_S
        for reader in self._readers:
            reader.join(max(0.0, deadline_s - time.monotonic()))


def _handle_logs(pipe: PipeEnd) -> None:
    with pipe, contextlib.suppress(EOFError, OSError):  # until the process ends, in whatever way
        while True:
            logging.getLogger().handle(pipe.recv())


def start_collector(task: CollectorTask, logs: LogPipes) -> SpawnProcess:
    """Start the process of a collector.

    Raises:
        OSError: if it cannot be started.
    """
    name = f"collector {task.index}"
    with logs.open(name) as pipe:  # only the collector keeps this end
        return spawn(name, collector_process_fn, task, pipe)


@dataclass(frozen=True)
class CollectorSetup:
    """Parts that the collectors of a run have in common."""

    n_collectors: int
    session: str  # for their names in the seed tree
    open_collector: Callable[[int], tuple[RolloutSink, RunState]]  # makes the ends of a new process
    close_collector: Callable[[int], object]  # frees those of one that has ended
    progress: Mapping[int, CollectorProgress]  # by collector, read at each start
    maps_folder: Path
    folder: Path  # receives generated tracks and the games' state
    games: MakeGamesBuilder = make_games_builder
    agent: MakeAgentBuilder = make_agent_builder
    demonstrations: tuple[Demonstration, ...] = ()  # shared out if there are no earlier races


class CollectorJob(Job):
    """One collector as a `Job`.

    It starts at its progress. Its random streams resume at its first start in a session only: after a crash they begin
    anew, as their last numbers may have caused it.
    """

    def __init__(self, index: int, setup: CollectorSetup, logs: LogPipes) -> None:
        self.name = f"collector {index}"
        self.process: SpawnProcess | None = None
        self._index = index
        self._setup, self._logs = setup, logs
        self._heartbeat = Heartbeat()
        self._has_played = False
        self._n_starts: Counter[int] = Counter()  # by how many races it had then
        self._watch = HangWatch()

    def _make_task(self) -> CollectorTask:
        setup, index = self._setup, self._index
        so_far = setup.progress.get(index, CollectorProgress())
        self._n_starts[so_far.n_races] += 1
        n_starts = self._n_starts.total()
        rollouts, run_state = setup.open_collector(index)
        self._has_played |= self.has_succeeded
        self._heartbeat, self._run_state = rollouts.heartbeat, run_state
        is_new = run_state.frames_total == 0 and not self._has_played
        return CollectorTask(
            index=index,
            name=f"collector-{index}/{setup.session}/start-{n_starts}",
            maps_folder=setup.maps_folder,
            tracks_folder=setup.folder / TRACKS_FOLDER / f"collector-{index}",
            live_folder=setup.folder / FOLDER,
            rollouts=rollouts,
            run_state=run_state,
            make_games_builder=setup.games,
            make_agent_builder=setup.agent,
            demonstrations=setup.demonstrations[index :: setup.n_collectors] if is_new else (),
            progress=so_far if n_starts == 1 else replace(so_far, streams={}),
            n_starts_before=self._n_starts[so_far.n_races] - 1,
        )

    @property
    @override
    def has_succeeded(self) -> bool:
        return self._heartbeat.progress_at_s > 0

    @property
    def is_alive(self) -> bool:
        """True if the process runs."""
        return self.process is not None and self.process.is_alive()

    @override
    def start(self) -> str | None:
        self._watch = HangWatch()
        try:
            self.process = start_collector(self._make_task(), self._logs)
        except OSError as error:  # no memory or process left, or killed before it had read its task
            return f"could not be started ({error})"
        return None

    @override
    def failure(self, passed_s: float) -> str | None:
        """Return the failure of the process; see `Job`.

        Raises:
            UserError: if it exited with `NEEDS_A_PERSON`.
            SystemExit: if the program has no guard.
        """
        assert self.process is not None
        if self.process.is_alive():
            how = self._watch.check(self._heartbeat, passed_s, limits_of_collectors(self._run_state.settings))
            return how and f"{how} and is killed with its games"
        if self.process.exitcode == UNGUARDED:
            raise SystemExit(
                f'error: {sys.argv[0]} calls train() without `if __name__ == "__main__":`; put that line above it, '
                "as each collector is a process that imports the program again"
            )
        if self.process.exitcode == ExitCode.NEEDS_A_PERSON:
            self.end()
            raise UserError(f"{self.name} cannot play, see its message above; the run can be resumed")
        return f"died (exit code {self.process.exitcode})"

    @override
    def end(self) -> None:
        if self.process is not None and self.process.is_alive():
            end_with_games(self.process)
        self.process = None
        self._setup.close_collector(self._index)


class CollectorSupervisor(Supervisor[CollectorJob]):
    """Keeps the collectors of a run running."""

    def __init__(self, setup: CollectorSetup) -> None:
        self._logs = LogPipes()
        jobs = [CollectorJob(index, setup, self._logs) for index in range(setup.n_collectors)]
        super().__init__(jobs, COLLECTOR_POLICY)

    @property
    def n_alive(self) -> int:
        """Number of running collectors."""
        return sum(job.is_alive for job in self.jobs)

    def stop(self, within_s: float = COLLECTOR_ENDS_WITHIN_S) -> None:
        """Wait for the collectors, which end between two actions, and kill those that are busy with a game's start."""
        deadline_s = time.monotonic() + within_s
        for job in self.jobs:
            if job.process is not None:
                job.process.join(max(0.0, deadline_s - time.monotonic()))
        for job in self.jobs:
            job.end()
        self._logs.close()
