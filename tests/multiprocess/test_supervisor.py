"""The supervisor restarts what dies and leaves nothing alive."""

import itertools
import multiprocessing
import time
from multiprocessing.process import BaseProcess
from types import SimpleNamespace

import pytest

from trackmania_rl.channels.shared_memory.stop_flag import StopFlag
from trackmania_rl.multiprocess import supervisor as supervisor_module
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


def test_a_collector_that_lives_long_without_a_race_keeps_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_RESTART_DELAY_S", 0.0)
    monkeypatch.setattr(supervisor_module, "SETTLED_AFTER_S", 0.0)
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
