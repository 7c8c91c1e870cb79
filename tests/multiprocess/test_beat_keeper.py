"""Who beats while the main thread cannot."""

import threading
import time
from collections.abc import Callable

import numba
from numba.core import event

from trackmania_rl.multiprocess.beat_keeper import COMPILING, BeatKeeper


class Beats:
    def __init__(self) -> None:
        self.n = 0

    def beat(self) -> None:
        self.n += 1

    def go_on(self, within_s: float = 10.0) -> bool:
        """Whether two more come in time."""
        n, deadline_s = self.n, time.monotonic() + within_s
        while self.n < n + 2 and time.monotonic() < deadline_s:
            time.sleep(0.005)
        return self.n >= n + 2


def test_a_process_that_begins_beats_until_its_main_thread_does() -> None:
    beats = Beats()
    with BeatKeeper(beats.beat, every_s=0.01) as keeper:
        assert beats.go_on()
        keeper.beat()
        time.sleep(0.1)  # one that had begun already
        n = beats.n
        assert not beats.go_on(within_s=0.3)
        assert beats.n == n
        keeper.beat()
        assert beats.n == n + 1
    assert not beats.go_on(within_s=0.2)


def test_it_beats_while_numba_compiles_in_any_thread() -> None:
    beats = Beats()
    with BeatKeeper(beats.beat, every_s=0.01) as keeper:
        keeper.beat()

        def compile_for_long(go_on: Callable[[], object]) -> None:
            with event.trigger_event(COMPILING):
                go_on()

        has_gone_on = threading.Event()
        thread = threading.Thread(target=compile_for_long, args=(has_gone_on.wait,))
        thread.start()
        assert beats.go_on()
        has_gone_on.set()
        thread.join()
        time.sleep(0.1)
        assert not beats.go_on(within_s=0.3)


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
