"""The supervisor restarts what dies and leaves nothing alive."""

import itertools
import multiprocessing
import time
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import Any

import pytest

from trackmania_rl.channels.protocols import SignsOfLife
from trackmania_rl.channels.shared_memory.stop_flag import StopFlag
from trackmania_rl.errors import UserError
from trackmania_rl.exit_codes import ExitCode
from trackmania_rl.multiprocess import supervisor as supervisor_module
from trackmania_rl.multiprocess.liveness import Bounds
from trackmania_rl.multiprocess.supervisor import CollectorsKeepDyingError, CollectorSupervisor

CONTEXT = multiprocessing.get_context("fork")


def _obedient(stop: StopFlag) -> None:
    ends_s = time.monotonic() + 30
    while not stop.is_set() and time.monotonic() < ends_s:
        time.sleep(0.01)


def _deaf() -> None:
    time.sleep(30)


def _dies() -> None:
    raise SystemExit(7)


def _start(target: object, *args: object) -> BaseProcess:
    process = CONTEXT.Process(target=target, args=args, daemon=True)  # type: ignore[arg-type]
    process.start()
    return process


def test_all_end_when_asked() -> None:
    stop = StopFlag(CONTEXT)
    supervisor = CollectorSupervisor(lambda _: _start(_obedient, stop), lambda _: None, 3, stop.set)
    supervisor.start()
    assert supervisor.n_alive == 3
    supervisor.stop(within_s=5)
    assert supervisor.n_alive == 0


def test_a_deaf_collector_is_killed_in_time() -> None:
    stop = StopFlag(CONTEXT)
    supervisor = CollectorSupervisor(lambda _: _start(_deaf), lambda _: None, 1, stop.set)
    supervisor.start()
    began_s = time.monotonic()
    supervisor.stop(within_s=0.2)
    assert supervisor.n_alive == 0
    assert time.monotonic() - began_s < 3


def test_the_dead_are_reported_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_RESTART_DELAY_S", 0.0)
    stop, dead = StopFlag(CONTEXT), []
    targets = iter([lambda: _start(_dies), lambda: _start(_obedient, stop)])
    supervisor = CollectorSupervisor(lambda _: next(targets)(), dead.append, 1, stop.set)
    supervisor.start()
    deadline_s = time.monotonic() + 10
    while supervisor.restarts == 0 and time.monotonic() < deadline_s:
        supervisor.check()
        time.sleep(0.01)
    assert dead == [0]
    assert supervisor.n_alive == 1
    supervisor.stop()


def test_a_collector_that_needs_a_person_ends_the_run_at_once() -> None:
    process = SimpleNamespace(is_alive=lambda: False, exitcode=int(ExitCode.NEEDS_A_PERSON))
    supervisor = CollectorSupervisor(lambda _: process, lambda _: None, 2, lambda: None)
    supervisor.start()
    with pytest.raises(UserError, match="collector 0 cannot play, see its message above"):
        supervisor.check()


def test_it_gives_up_on_a_collector_that_always_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_RESTART_DELAY_S", 0.0)
    stop = StopFlag(CONTEXT)
    supervisor = CollectorSupervisor(lambda _: _start(_dies), lambda _: None, 1, stop.set)
    supervisor.start()

    def check_for_a_while() -> None:
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            supervisor.check()
            time.sleep(0.005)

    with pytest.raises(CollectorsKeepDyingError, match="died 6 times in a row"):
        check_for_a_while()


def test_each_restart_waits_twice_as_long_as_the_one_before_up_to_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(supervisor_module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    alive, dead = SimpleNamespace(is_alive=lambda: True), SimpleNamespace(is_alive=lambda: False, exitcode=7)
    started_s: list[float] = []

    def spawn(index: int) -> BaseProcess:
        if index == 1:  # one that works, so that nobody gives up
            return alive  # type: ignore[return-value]
        started_s.append(clock.now_s)
        return dead  # type: ignore[return-value]

    supervisor = CollectorSupervisor(spawn, lambda _: None, 2, StopFlag(CONTEXT).set)
    supervisor.start()
    check_every_s = 0.5
    for _ in range(200):
        clock.now_s += check_every_s
        supervisor.check()
    delays_s = [later - earlier - check_every_s for earlier, later in itertools.pairwise(started_s)]
    assert delays_s == [1, 2, 4, 8, 16, 30, 30]


def test_a_collector_that_dies_after_each_race_is_started_again_and_again_but_not_one_that_brings_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_RESTART_DELAY_S", 0.0)
    stop = StopFlag(CONTEXT)
    supervisor = CollectorSupervisor(lambda _: _start(_dies), lambda _: None, 1, stop.set)
    supervisor.start()

    def check_until(restarts: int, delivers: bool) -> None:
        deadline_s = time.monotonic() + 20
        while supervisor.restarts < restarts and time.monotonic() < deadline_s:
            if delivers:
                supervisor.delivered(0)
            supervisor.check()
            time.sleep(0.005)

    check_until(10, delivers=True)
    assert supervisor.restarts == 10
    with pytest.raises(CollectorsKeepDyingError, match="died 6 times in a row"):
        check_until(20, delivers=False)


class FakeCollectors:
    """Collectors of no process, that are killed and beat as a test has it, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_collectors: int, bounds: Bounds | None = None) -> None:
        self.now_s = 1000.0
        self.n_starts = [0] * n_collectors
        self.signs = [SignsOfLife(0, is_waiting=False)] * n_collectors
        self.processes: list[Any] = [None] * n_collectors
        self.killed: list[int] = []
        monkeypatch.setattr(supervisor_module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.supervisor = CollectorSupervisor(
            self._spawn,
            lambda _: None,
            n_collectors,
            lambda: None,
            lambda index: self.signs[index],
            None if bounds is None else lambda: bounds,
            self._kill,
        )
        self.supervisor.start()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.supervisor.check()

    def beat(self, *indices: int) -> None:
        for index in indices:
            self.signs[index] = SignsOfLife(self.signs[index].n_beats + 1, self.signs[index].is_waiting)

    def die(self, index: int) -> None:
        self.processes[index].is_alive = lambda: False

    def _spawn(self, index: int) -> BaseProcess:
        self.n_starts[index] += 1
        self.signs[index] = SignsOfLife(0, is_waiting=False)
        self.processes[index] = SimpleNamespace(index=index, is_alive=lambda: True, exitcode=-9)
        return self.processes[index]  # type: ignore[no-any-return]

    def _kill(self, process: Any) -> None:
        self.killed.append(process.index)
        self.die(process.index)


def test_one_of_two_collectors_that_is_killed_every_ten_seconds_never_ends_a_run_that_delivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collectors = FakeCollectors(monkeypatch, 2)
    for second in range(36_000):
        collectors.supervisor.delivered(1)
        if second % 10 == 8 and collectors.processes[0].is_alive():
            collectors.supervisor.delivered(0)
        if second % 10 == 9:
            collectors.die(0)
        collectors.pass_time(1.0)
    assert collectors.n_starts[1] == 1
    assert collectors.n_starts[0] == pytest.approx(3600, abs=2), "each time after a second, since it delivers"


def test_one_that_never_delivers_is_started_twice_a_minute_beside_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collectors = FakeCollectors(monkeypatch, 2)
    for _ in range(36_000):
        collectors.supervisor.delivered(1)
        collectors.die(0)
        collectors.pass_time(1.0)
    assert collectors.n_starts[0] == pytest.approx(36_000 / 31, rel=0.05)


def test_a_run_in_which_nobody_delivers_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    collectors = FakeCollectors(monkeypatch, 2)
    for index in (0, 1):
        collectors.supervisor.delivered(index)

    def all_die_for_an_hour() -> None:
        for _ in range(3600):
            for index in (0, 1):
                collectors.die(index)
            collectors.pass_time(1.0)

    with pytest.raises(CollectorsKeepDyingError, match=r"6 times in a row .*\(exit code -9\)\), and so did all others"):
        all_die_for_an_hour()


def test_a_collector_that_falls_silent_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collectors = FakeCollectors(monkeypatch, 2, Bounds(silence_s=30.0, delivery_s=1e6))
    for _ in range(100):
        collectors.beat(0, 1)
        collectors.pass_time(0.5)
    for _ in range(59):
        collectors.beat(1)
        collectors.pass_time(0.5)
    assert collectors.killed == []
    for _ in range(10):
        collectors.beat(1)
        collectors.pass_time(0.5)
    assert (collectors.killed, collectors.n_starts) == ([0], [2, 1])
    assert "collector 0 has given no sign of life for 30 s: it is killed with its games" in caplog.text


def test_a_start_for_which_there_is_no_memory_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collectors = FakeCollectors(monkeypatch, 1)
    spawn = collectors._spawn
    failing = iter([OSError("Cannot allocate memory")] * 3)

    def spawn_or_fail(index: int) -> BaseProcess:
        if (error := next(failing, None)) is not None:
            raise error
        return spawn(index)

    monkeypatch.setattr(collectors.supervisor, "_spawn", spawn_or_fail)
    collectors.die(0)
    for _ in range(20):
        collectors.pass_time(1.0)
    assert collectors.supervisor.n_alive == 1
    assert "collector 0 could not be started (Cannot allocate memory); it starts again in 8 s" in caplog.text


def test_as_long_as_one_collector_works_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_RESTART_DELAY_S", 0.0)
    stop = StopFlag(CONTEXT)
    supervisor = CollectorSupervisor(
        lambda index: _start(_dies) if index == 0 else _start(_obedient, stop), lambda _: None, 2, stop.set
    )
    supervisor.start()
    deadline_s = time.monotonic() + 20
    while supervisor.restarts < 10 and time.monotonic() < deadline_s:
        supervisor.check()
        time.sleep(0.005)
    assert supervisor.restarts == 10
    assert supervisor.n_alive >= 1
    supervisor.stop()
