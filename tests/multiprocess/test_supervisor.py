"""The supervisor starts collectors again that die or hang, on a clock of the test's own, and leaves none alive."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.errors import ExitCode, UserError
from trackmania_rl.multiprocess import collectors as collectors_module
from trackmania_rl.multiprocess import supervisor as supervisor_module
from trackmania_rl.multiprocess.collectors import CollectorSetup, CollectorSupervisor, limits_of_collectors
from trackmania_rl.multiprocess.supervisor import KeepsFailingError, Limits, RestartPolicy, Supervisor
from trackmania_rl.processes import end_processes, is_running
from trackmania_rl.settings import load_settings
from trackmania_rl.tmi_interaction.launchers import game_processes

NO_SIGSTOP = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
PATIENT = Limits(1e9, 1e9, 1e9, 1e9)
FORK = multiprocessing.get_context("spawn" if sys.platform == "win32" else "fork")


class FakeCollectors:
    """Collectors of no process, that die, beat and deliver as a test has it."""

    def __init__(self, monkeypatch, n_collectors, limits=PATIENT):
        self.now_s = 1000.0
        self.starts_s = [[] for _ in range(n_collectors)]
        self.heartbeats = [Heartbeat() for _ in range(n_collectors)]
        self.processes = [None] * n_collectors
        self.killed = []
        self.reported_dead = []
        self.failing_starts = []
        monkeypatch.setattr(supervisor_module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(collectors_module, "limits_of_collectors", lambda _: limits)
        monkeypatch.setattr(collectors_module, "start_collector", self._start)
        monkeypatch.setattr(collectors_module, "end_with_games", self._kill)
        setup = CollectorSetup(n_collectors, "1", self._open, self.reported_dead.append, {}, Path("maps"), Path("run"))
        self.supervisor = CollectorSupervisor(setup)
        self.supervisor.start()

    def pass_time(self, seconds):
        self.now_s += seconds
        self.supervisor.check()

    def die(self, index, exit_code=-9):
        self.processes[index].is_alive = lambda: False
        self.processes[index].exitcode = exit_code

    def go_on(self, seconds, *, beats=True, waits=False, look_s=0.5):
        """Let time pass for collector 0; return whether it was killed meanwhile."""
        n_killed = len(self.killed)
        for _ in range(round(seconds / look_s)):
            self.heartbeats[0].at_s += beats
            self.heartbeats[0].n_waiting = waits
            self.pass_time(look_s)
            if len(self.killed) > n_killed:
                return True
        return False

    def _open(self, index):
        self.heartbeats[index] = Heartbeat()
        return SimpleNamespace(heartbeat=self.heartbeats[index]), SimpleNamespace(frames_total=0, settings=None)

    def _start(self, task, _):
        if self.failing_starts:
            raise self.failing_starts.pop()
        index = task.index
        self.starts_s[index].append(self.now_s)
        self.processes[index] = SimpleNamespace(index=index, is_alive=lambda: True, exitcode=None)
        return self.processes[index]

    def _kill(self, process):
        self.killed.append(process.index)
        self.die(process.index)


@pytest.fixture
def collectors_of(monkeypatch):
    return lambda n_collectors, limits=PATIENT: FakeCollectors(monkeypatch, n_collectors, limits)


def test_each_restart_waits_twice_as_long_as_the_one_before_up_to_half_a_minute(collectors_of):
    collectors = collectors_of(2)  # of which one works, so that the run goes on
    for _ in range(200):
        collectors.die(0)
        collectors.pass_time(0.5)
    delays_s = [later - earlier - 0.5 for earlier, later in itertools.pairwise(collectors.starts_s[0])]
    assert delays_s == [1, 2, 4, 8, 16, 30, 30]
    assert len(collectors.starts_s[1]) == 1
    assert set(collectors.reported_dead) == {0}
    assert collectors.supervisor.restarts == len(delays_s)


def test_a_run_ends_when_no_collector_delivers_any_more(collectors_of):
    collectors = collectors_of(2)

    def all_die_for_an_hour():
        for _ in range(3600):
            for index in (0, 1):
                collectors.die(index)
            collectors.pass_time(1.0)

    for index in (0, 1):
        collectors.heartbeats[index].progress_at_s += 1
    with pytest.raises(KeepsFailingError, match=r"\(exit code -9\): it has failed 6 times in a row, and so has each"):
        all_die_for_an_hour()


def test_a_collector_that_needs_a_person_ends_the_run_at_once(collectors_of):
    collectors = collectors_of(2)
    collectors.die(0, ExitCode.NEEDS_A_PERSON)
    with pytest.raises(UserError, match="collector 0 cannot play, see its message above"):
        collectors.supervisor.check()


def test_a_start_for_which_there_is_no_memory_is_tried_again(collectors_of, caplog):
    collectors = collectors_of(1)
    collectors.failing_starts = [OSError("Cannot allocate memory") for _ in range(3)]
    collectors.die(0)
    for _ in range(20):
        collectors.pass_time(1.0)
    assert collectors.supervisor.n_alive == 1
    assert "collector 0 could not be started (Cannot allocate memory); it starts again in 8 s" in caplog.text


LIMITS = Limits(silence_s=30.0, stall_s=200.0, first_silence_s=300.0, first_stall_s=800.0)


@pytest.fixture
def watched(collectors_of):
    """One that has delivered."""
    collectors = collectors_of(1, LIMITS)
    assert not collectors.go_on(10)
    collectors.heartbeats[0].progress_at_s += 1
    return collectors


def test_a_collector_that_falls_silent_is_killed_with_its_games_and_replaced(watched, caplog):
    assert not watched.go_on(29, beats=False, waits=True)
    assert watched.go_on(2, beats=False, waits=True)
    assert (
        "collector 0 has had no heartbeat for 30 s and is killed with its games; it starts again in 1 s" in caplog.text
    )
    watched.pass_time(2.0)
    assert len(watched.starts_s[0]) == 2
    # A process that begins may take longer until it beats.
    assert not watched.go_on(297, beats=False)
    assert watched.go_on(4, beats=False)


def test_a_collector_that_beats_but_brings_no_race_is_killed(watched, caplog):
    assert not watched.go_on(100_000, waits=True, look_s=10.0), "it waits for room or for its turn"
    assert not watched.go_on(199)
    assert watched.go_on(2)
    assert "has made no progress for 200 s" in caplog.text
    watched.pass_time(2.0)
    # The first race of a process may take longer, since it compiles.
    assert not watched.go_on(797)
    assert watched.go_on(4)


def test_after_a_machine_was_suspended_no_collector_is_killed(watched):
    """The supervisor was stopped as well: an hour has passed between two looks."""
    for _ in range(20):
        assert not watched.go_on(3600, beats=False, look_s=3600.0)
        assert not watched.go_on(1)


def test_the_limits_follow_from_the_longest_race_and_from_a_games_start(repository_root):
    def stall_s(**changes):
        overrides = {"cutoff_race_longer_than_ms": 60_000, "collector_silence_s": 30.0, **changes}
        limits = limits_of_collectors(load_settings(repository_root / "config_files" / "config.py", overrides))
        assert (limits.silence_s, limits.first_silence_s) == (30.0, 300.0)
        assert limits.first_stall_s == limits.stall_s + 600
        return limits.stall_s

    assert stall_s() == 30 + 60 * 2
    assert stall_s(cutoff_race_longer_than_ms=300_000) == 30 + 300 * 2
    assert stall_s(running_speed=0.5) == 30 + 60 * 2 * 2
    assert stall_s(running_speed=80.0) == stall_s(running_speed=1.0)
    assert stall_s(game_transport="socket", tmi_protection_timeout_s=10.0) == 30 + 60 * 2 + 3 * (120 + 120 + 10)


@pytest.fixture
def failures(monkeypatch):
    """`failures(n_failures, every_s)`: lines of a job that fails so often, under the policy of `--supervised`."""
    now_s = [0.0]
    monkeypatch.setattr(supervisor_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def fail(n_failures, every_s, *, succeeds=False):
        lines = list[str]()
        job = SimpleNamespace(name="the training", start=lambda: None, end=lambda: None, has_succeeded=succeeds)
        job.failure = lambda passed_s: "ended"
        supervisor = Supervisor([job], RestartPolicy(2.0, 300.0, most_failures=10), lines.append)
        supervisor.start()
        while len(lines) < n_failures:
            supervisor.check()
            now_s[0] += every_s
            supervisor.check()
        return lines

    return fail


def test_the_delay_doubles_up_to_the_longest_and_the_tenth_failure_within_a_day_is_the_last(failures):
    delays_s = [2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert failures(9, every_s=600.0) == [f"the training ended; it starts again in {delay} s" for delay in delays_s]
    with pytest.raises(KeepsFailingError, match="the training ended: it has failed 10 times in a row; the messages"):
        failures(10, every_s=600.0)


def test_a_job_that_succeeds_between_its_failures_or_fails_rarely_is_started_for_ever(failures):
    assert set(failures(1000, 60.0, succeeds=True)) == {"the training ended; it starts again in 2 s"}
    assert len(failures(1000, every_s=43_200.0)) == 1000


def hang_with_a_game(pipe):
    """Start a game and never end, not by SIGTERM either."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    game = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pipe.send(game.pid)
    time.sleep(600)


def test_a_process_that_nobody_collects_has_ended_when_it_is_killed():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        assert end_processes([psutil.Process(child.pid)], within_s=60.0) == []
        assert sys.platform == "win32" or psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("is_stopped", [False, pytest.param(True, marks=NO_SIGSTOP)])
def test_a_collector_that_does_not_end_is_killed_with_its_games(is_stopped, monkeypatch):
    owners_of_ended_games = []
    records = SimpleNamespace(end_games_of=owners_of_ended_games.append)
    monkeypatch.setattr(game_processes, "GameRecords", lambda: records)
    here, there = FORK.Pipe(duplex=False)
    process = FORK.Process(target=hang_with_a_game, args=(there,))
    process.start()
    try:
        game = psutil.Process(here.recv())
        if is_stopped:
            os.kill(process.pid or 0, signal.SIGSTOP)
        monkeypatch.setattr(collectors_module, "start_collector", lambda *_: process)
        ends = SimpleNamespace(heartbeat=Heartbeat()), SimpleNamespace(frames_total=0)
        setup = CollectorSetup(1, "1", lambda _: ends, lambda _: None, {}, Path("maps"), Path("run"))
        collectors = CollectorSupervisor(setup)
        collectors.start()
        collectors.stop(within_s=0.1)
        assert not process.is_alive()
        assert collectors.n_alive == 0
        assert not is_running(game)
        assert owners_of_ended_games == [process.pid]
    finally:
        process.kill()
        process.join()
