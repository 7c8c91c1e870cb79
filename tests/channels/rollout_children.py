"""Functions of the tests' processes, in a module of its own, so that they import little."""

import os
import signal
import time

import numpy as np
import psutil

from trackmania_rl.race.race import Race, RaceFacts


def make_race(seed, n_actions, frames=None):
    """A small race; its arrays follow from the seed. `frames` is where to write the pictures, if not in new memory."""
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (n_actions, 1, 6, 8), dtype=np.uint8)
    if frames is not None:
        frames[:n_actions] = pictures
        pictures = frames[:n_actions]
    columns = {
        "frames": pictures,
        "state_float": rng.random((n_actions, 5), dtype=np.float32),
        "actions": rng.integers(0, 3, n_actions),
        "action_was_greedy": rng.random(n_actions) < 0.5,
        "current_zone_idx": np.arange(n_actions + 1),
    }
    facts = RaceFacts(
        map_name="a",
        is_explo=True,
        fill_buffer=True,
        race_finished=True,
        race_time_ms=50 * n_actions,
        furthest_zone_idx=n_actions,
        checkpoint_times_ms=(100, 200),
        inputs="0.00 press up\n" * n_actions,
    )
    return Race(columns, facts)


def set_and_die(flag):
    """Set the flag for the end of the run, and be killed."""
    flag.value = True
    os.kill(os.getpid(), signal.SIGKILL)


class StopsBefore:
    """Wrapper of a shared object; before (or after) the call of one of its methods, the process stops itself."""

    def __init__(self, shared, method, after=False):
        self._shared, self._method, self._after = shared, method, after

    def __getattr__(self, name):
        of_shared = getattr(self._shared, name)
        if name != self._method:
            return of_shared

        def interrupted(*arguments, **named):
            result = of_shared(*arguments, **named) if self._after else None
            os.kill(os.getpid(), signal.SIGSTOP)
            return result if self._after else of_shared(*arguments, **named)

        return interrupted


def stop_within(sink, place, seed):
    """Send one race, and stop in the midst of the next one, at a place of `PLACES`."""
    shared = sink._link
    frames = sink.acquire_frames(0)
    sink.put(0, make_race(seed, 4, frames))
    part, method, after = PLACES[place]
    object.__setattr__(shared, part, StopsBefore(getattr(shared, part), method, after))
    if part == "turns":
        sink.await_turn()
        sink.end_turn()
    sink.acquire_frames(0)
    sink.put(0, make_race(seed + 1, 4))


def wait_until_stopped(pid):
    """Wait until another process, a child or not, has stopped itself."""
    deadline_s = time.monotonic() + 60
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


PLACES = {
    "before a slot is taken": ("free", "recv", False),
    "after a slot was taken": ("free", "recv", True),
    "before the header is sent": ("headers_in", "send", False),
    "after the header was sent": ("headers_in", "send", True),
    "as a turn begins": ("turns", "recv", True),
}
