"""Spawned processes; this file imports little, as they import it."""

import multiprocessing
import signal
import time

import psutil

from trackmania_rl.processes import OF_THE_TERMINAL, spawn

SPAWN = multiprocessing.get_context("spawn")


def say_handlers(pipe):
    pipe.send([signal.getsignal(number) for number in OF_THE_TERMINAL])


def test_a_spawned_process_leaves_the_signals_of_the_terminal_to_the_main_one():
    here, there = SPAWN.Pipe(duplex=False)
    process = spawn("one", say_handlers, there)
    assert here.recv() == [signal.SIG_IGN] * len(OF_THE_TERMINAL)
    process.join()


class TakesForever:
    """Is unpickled for an hour, as a module that is imported from a disk that does not answer."""

    def __reduce__(self):
        return time.sleep, (3600,)


def spawn_and_wait(pipe):
    process = spawn("one", print, TakesForever())
    pipe.send(process.pid)
    process.join()


def test_a_process_that_still_imports_its_modules_ends_with_its_parent():
    here, there = SPAWN.Pipe(duplex=False)
    parent = SPAWN.Process(target=spawn_and_wait, args=(there,))
    parent.start()
    child = psutil.Process(here.recv())
    parent.kill()
    parent.join()
    child.wait(60)
