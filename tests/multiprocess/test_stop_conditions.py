"""When a training ends, and what a signal does meanwhile."""

import os
import signal

import pytest

from trackmania_rl.multiprocess.stop_conditions import StopConditions


class Run:
    wall_s = 0.0
    frames = 0


@pytest.fixture
def run():
    return Run()


@pytest.fixture
def should_stop(run):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield StopConditions(5.0, 700, lambda: run.wall_s, lambda: run.frames)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_limits_end_a_run(run, should_stop):
    assert not should_stop()
    run.wall_s = 5.1
    assert should_stop()
    run.wall_s, run.frames = 5.0, 700
    assert should_stop()
    run.frames = 699
    assert not should_stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_for_the_end_and_interrupts_nothing(should_stop, number):
    os.kill(os.getpid(), number)
    assert should_stop()


def test_a_second_ctrl_c_interrupts_at_once_but_a_second_sigterm_does_not(should_stop):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert should_stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_interruptible_is_left_at_the_first_signal(should_stop, number):
    done = []
    with should_stop.interruptible():
        done.append("before")
        try:
            os.kill(os.getpid(), number)
        except Exception:
            done.append("swallowed")
        done.append("after")
    assert done == ["before"]
    assert should_stop()


def test_what_comes_after_is_interrupted_by_a_second_ctrl_c_only(should_stop):
    with should_stop.interruptible():
        pass
    os.kill(os.getpid(), signal.SIGINT)
    assert should_stop()
    with pytest.raises(KeyboardInterrupt), should_stop.interruptible():
        os.kill(os.getpid(), signal.SIGINT)
