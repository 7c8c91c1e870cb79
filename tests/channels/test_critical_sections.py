"""A collector that is killed or stopped within each step of handing over a race, or with a lock: nobody else waits."""

import os
import sys
import time
from typing import Any

import pytest

from trackmania_rl.channels.shared_memory.rollouts import SharedRolloutSource
from trackmania_rl.channels.shared_memory.stop_flag import StopFlag

from .conftest import BOUNDS, SPAWN, assert_is_race
from .rollout_children import PLACES

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
OTHERS_RACES_WITHIN_S = 10.0
"""They take milliseconds; who waits for the dead waits for ever."""


def start(target: Any, *arguments: Any) -> Any:
    process = SPAWN.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def wait_for_signal(process: Any, number: str) -> None:
    """Wait until the process has ended, or is stopped."""
    if number == "SIGKILL":
        process.join(60)
        assert process.exitcode == -9
    else:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)


@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
@pytest.mark.parametrize("place", PLACES)
def test_nobody_waits_for_one_that_ends_there(children: Any, place: str, number: str) -> None:
    source = SharedRolloutSource(BOUNDS, slots_per_collector=2, stop=StopFlag(SPAWN))
    sink = source.open_collector(0)
    if "turn" in place:
        source.give_turn(0, 1)
    ended = start(children.end_within, sink, place, number, 1)
    try:
        wait_for_signal(ended, number)
        first = source.get(timeout_s=60)
        assert first is not None
        with first:
            assert_is_race(first, *children.make_rollout(1, 4))
        began_s = time.monotonic()
        other = source.open_collector(1)
        seeds = [11, 12, 13, 14]
        for seed in seeds:
            other.acquire_frames(0)
            other.put(0, *children.make_rollout(seed, 5))
            while True:  # the other's last race may come in between
                rollout = source.get(timeout_s=5.0)
                assert rollout is not None
                with rollout:
                    if rollout.collector == 1:
                        assert_is_race(rollout, *children.make_rollout(seed, 5))
                        break
        assert source.signs_of_life(0).n_beats > 0
        ended.kill()
        ended.join(30)
        again = source.open_collector(0)  # of the process that is started in its place
        again.acquire_frames(0)
        again.put(0, *children.make_rollout(21, 6))
        rollout = source.get(timeout_s=5.0)
        assert rollout is not None
        with rollout:
            assert_is_race(rollout, *children.make_rollout(21, 6))
        assert time.monotonic() - began_s < OTHERS_RACES_WITHIN_S
        again.close()
        other.close()
    finally:
        ended.kill()
        source.close()
