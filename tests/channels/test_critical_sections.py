"""A collector that is stopped or killed within any step of handing over a race: no other process waits for it."""

import os
import signal
import sys

import pytest

from trackmania_rl.channels.rollouts import Rollouts, make_stop_flag

from .conftest import MAX_ACTIONS, SPACES, acquired, assert_is_race, got
from .rollout_children import PLACES

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")


@pytest.mark.parametrize("place", PLACES)
def test_no_process_waits_for_one_that_is_stopped_or_killed_there(children, start, place):
    source = Rollouts(MAX_ACTIONS, SPACES, slots_per_collector=2, stop=make_stop_flag())
    sink = source.open_collector(0)
    stopped = start(children.stop_within, sink, place, 1)
    if "turn" in place:
        source.give_turn(0, 1)
    with got(source) as first:
        assert_is_race(first, children.make_race(1, 4))
    children.wait_until_stopped(stopped.pid)
    other = source.open_collector(1)

    def other_collector_plays(*seeds):
        for seed in seeds:
            acquired(other)
            other.put(0, children.make_race(seed, 5))
            while True:  # the last race of the stopped collector may come in between
                with got(source) as rollout:
                    if rollout.facts.collector == 1:
                        assert_is_race(rollout, children.make_race(seed, 5))
                        break

    other_collector_plays(11, 12, 13)
    assert sink.heartbeat.at_s > 0
    os.kill(stopped.pid, signal.SIGKILL)
    stopped.join(60)
    assert stopped.exitcode == -signal.SIGKILL
    other_collector_plays(14, 15, 16)
    replacement = source.open_collector(0)
    acquired(replacement)
    replacement.put(0, children.make_race(21, 6))
    with got(source) as rollout:
        assert rollout.facts.collector == 0
        assert_is_race(rollout, children.make_race(21, 6))
    source.close()
