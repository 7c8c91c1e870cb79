"""The end of a run reaches all processes, whatever happens to the one that asks for it."""

import multiprocessing
import os
import signal

import pytest

from trackmania_rl.channels.shared_memory.stop_flag import StopFlag

CONTEXT = multiprocessing.get_context("spawn")


def _set_and_die(flag: StopFlag) -> None:
    flag.set()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process as POSIX systems do")
def test_the_stop_flag_reaches_all_and_has_no_lock_to_leave_behind() -> None:
    flag = StopFlag(CONTEXT)
    assert not flag.is_set()
    process = CONTEXT.Process(target=_set_and_die, args=(flag,))
    process.start()
    process.join(60)
    assert flag.is_set()
    assert not hasattr(flag._value, "get_lock")
