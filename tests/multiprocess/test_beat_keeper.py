"""Beats of a process whose main thread cannot beat."""

import threading
import time

import numba
from numba.core import event

from trackmania_rl.multiprocess.beat_keeper import COMPILING, BeatKeeper


class Beats:
    def __init__(self) -> None:
        self.n = 0

    def beat(self) -> None:
        self.n += 1

    def wait_for_more(self) -> None:
        n, deadline_s = self.n, time.monotonic() + 60
        while self.n < n + 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)

    def wait_until_there_are_none(self) -> None:
        """Wait until none came for many times their interval; one may have begun already."""
        n, deadline_s = -1, time.monotonic() + 60
        while self.n != n:
            assert time.monotonic() < deadline_s
            n = self.n
            time.sleep(0.3)


def test_it_beats_until_the_main_thread_does_and_while_numba_compiles_in_any_thread() -> None:
    beats = Beats()
    has_gone_on = threading.Event()

    def compile_for_long() -> None:
        with event.trigger_event(COMPILING):
            has_gone_on.wait()

    with BeatKeeper(beats.beat, every_s=0.01) as keeper:
        beats.wait_for_more()
        keeper.beat()
        beats.wait_until_there_are_none()
        compiling = threading.Thread(target=compile_for_long)
        compiling.start()
        beats.wait_for_more()
        has_gone_on.set()
        compiling.join()
        beats.wait_until_there_are_none()
        n = beats.n
        keeper.beat()
        assert beats.n == n + 1
    beats.wait_until_there_are_none()


def test_numba_tells_of_its_compiling_under_that_name() -> None:
    beats = Beats()
    with BeatKeeper(beats.beat, every_s=1e-4) as keeper:
        keeper.beat()
        n = beats.n

        @numba.njit
        def compiled(x: float) -> float:
            return x + 1.0

        assert compiled(1.5) == 2.5
        assert beats.n > n
