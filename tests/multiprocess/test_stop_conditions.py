"""Conditions that end a training, and signals."""

import signal
import threading

import pytest

from trackmania_rl.multiprocess.learner_process import StopConditions
from trackmania_rl.processes import HANG_UP, OF_THE_TERMINAL, end_thread

ENDING = (*OF_THE_TERMINAL, signal.SIGTERM)


class Run:
    wall_s = 0.0
    frames_total = 0
    updates_total = 0


@pytest.fixture
def run():
    return Run()


@pytest.fixture
def make_conditions(run):
    before = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:  # the tests themselves may run under nohup
        signal.signal(number, signal.SIG_DFL)
    yield lambda: StopConditions(5.0, 700, lambda: run.wall_s, run, max_updates=30)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def should_stop(make_conditions):
    return make_conditions()


def test_limits_end_a_run(run, should_stop):
    assert not should_stop()
    run.wall_s = 5.1
    assert should_stop()
    run.wall_s, run.frames_total = 5.0, 700
    assert should_stop()
    run.frames_total = 699
    assert not should_stop()
    run.updates_total = 30
    assert should_stop()


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_asks_for_the_end_and_only_a_second_ctrl_c_interrupts(should_stop, number):
    signal.raise_signal(number)
    assert should_stop()
    for other in ENDING:
        if other != signal.SIGINT:
            signal.raise_signal(other)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.skipif(HANG_UP is None, reason="nohup is POSIX's")
def test_a_run_that_nohup_started_outlives_its_terminal(make_conditions):
    signal.signal(HANG_UP, signal.SIG_IGN)
    should_stop = make_conditions()
    signal.raise_signal(HANG_UP)
    assert not should_stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # Python itself is silent
def test_a_thread_is_interrupted_also_where_it_catches_exceptions():
    begun = threading.Event()

    def work():
        while True:
            try:
                begun.set()
            except Exception:
                continue

    thread = threading.Thread(target=work)
    end_thread(thread)  # not started
    thread.start()
    begun.wait()
    end_thread(thread)
    assert not thread.is_alive()
