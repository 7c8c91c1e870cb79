"""When a training is taken to hang, and when it is started again: on a clock of the test's own."""

import itertools

import pytest

from trackmania_rl.exit_codes import ExitCode
from trackmania_rl.multiprocess.restarts import (
    DEFAULT_SILENCE_S,
    DEFAULT_STALL_S,
    GIVE_UP_AFTER,
    End,
    PulseWatch,
    Restart,
    RestartPolicy,
)


@pytest.mark.parametrize("code", [0, 2, 74, 78, 130])
def test_what_is_done_or_needs_a_person_is_not_tried_again(code: int) -> None:
    assert RestartPolicy().decide(code, 0, 0.0) == End(code)


@pytest.mark.parametrize("code", [1, 75, -9, -11, 137, None])
def test_what_crashed_hung_or_may_pass_is_tried_again(code: int | None) -> None:
    assert RestartPolicy().decide(code, 0, 0.0) == Restart(2.0)


def test_each_start_waits_twice_as_long_as_the_one_before_up_to_five_minutes_and_then_it_gives_up() -> None:
    policy, decisions = RestartPolicy(), []
    for number in range(GIVE_UP_AFTER):
        decisions.append(policy.decide(ExitCode.TRY_AGAIN, 0, 600.0 * number))
    assert [d.after_s for d in decisions if isinstance(d, Restart)] == [2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert decisions[-1] == End(ExitCode.NEEDS_A_PERSON, gives_up=True)


def test_a_training_that_learns_and_saves_between_its_crashes_goes_on_for_ever() -> None:
    policy = RestartPolicy()
    for number in range(1000):
        assert policy.decide(-11, 100 * (number + 1), 60.0 * number) == Restart(2.0)


def test_saving_again_what_was_saved_already_is_no_progress() -> None:
    policy = RestartPolicy()
    decisions = [policy.decide(-11, 1_000_000, 60.0 * number) for number in range(GIVE_UP_AFTER)]
    assert decisions[-1] == End(ExitCode.NEEDS_A_PERSON, gives_up=True)


def test_rare_failures_are_forgotten() -> None:
    policy = RestartPolicy()
    for day in range(100):
        for hour in (0, 12):
            assert isinstance(policy.decide(1, 0, 86_400.0 * day + 3600.0 * hour), Restart)


class Watched:
    """A training that is looked at twice a second."""

    def __init__(self, silence_s: float = 60.0, stall_s: float = 900.0) -> None:
        self.watch, self.bounds_s = PulseWatch(), (silence_s, stall_s)
        self.stirs, self.ticks = itertools.count(1), itertools.count(1)
        self.last = 0, 0

    def go_on(self, seconds: float, *, stirs: bool = True, ticks: bool = True, look_s: float = 0.5) -> str | None:
        for _ in range(round(seconds / look_s)):
            self.last = next(self.stirs) if stirs else self.last[0], next(self.ticks) if ticks else self.last[1]
            how = self.watch.look(*self.last, look_s, *self.bounds_s)
            if how is not None:
                return how
        return None


def test_a_stopped_training_is_noticed() -> None:
    watched = Watched()
    assert watched.go_on(100) is None
    assert watched.go_on(59, stirs=False, ticks=False) is None
    assert watched.go_on(2, stirs=False, ticks=False) == "gave no sign of life for 60 s"


def test_compiling_for_minutes_is_no_hang_but_a_dead_loop_is() -> None:
    watched = Watched()
    assert watched.go_on(100) is None
    assert watched.go_on(899, ticks=False) is None
    assert watched.go_on(2, ticks=False) == "did not go on for 900 s"


def test_a_start_may_take_longer() -> None:
    watched = Watched(silence_s=0.0, stall_s=0.0)
    assert watched.go_on(DEFAULT_SILENCE_S - 1, stirs=False, ticks=False) is None
    assert watched.go_on(DEFAULT_STALL_S - DEFAULT_SILENCE_S - 1, ticks=False) is None
    assert watched.go_on(4, ticks=False) is not None


def test_a_machine_that_was_suspended_kills_nobody() -> None:
    watched = Watched()
    for _ in range(10):
        assert watched.go_on(10) is None
        assert watched.go_on(3600, stirs=False, ticks=False, look_s=3600.0) is None
