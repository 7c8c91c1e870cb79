"""A process that hangs is ended with its games, also where no signal asks it to and no kernel ends its children."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from trackmania_rl.multiprocess import ending
from trackmania_rl.multiprocess import supervisor as supervisor_module
from trackmania_rl.multiprocess.ending import end_with_games
from trackmania_rl.multiprocess.supervisor import CollectorSupervisor

SPAWN = multiprocessing.get_context("spawn")


def start_a_game_and_hang(pipe: Connection) -> None:
    game = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pipe.send(game.pid)
    time.sleep(600)


class HungCollector:
    """A collector's process that never ends by itself, with a game that outlives it."""

    def __init__(self) -> None:
        here, there = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(target=start_a_game_and_hang, args=(there,))
        self.process.start()
        assert here.poll(60)
        self.game = psutil.Process(here.recv())


@pytest.fixture
def ended_games_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Whose real games on record were ended."""
    owners: list[int] = []
    monkeypatch.setattr(ending, "GameRecords", lambda: SimpleNamespace(end_games_of=owners.append))
    return owners


@pytest.fixture
def hung() -> Any:
    collector = HungCollector()
    yield collector
    for process in (collector.process, collector.game):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    collector.process.join()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_it_ends_with_its_games(hung: HungCollector, ended_games_of: list[int], is_stopped: bool) -> None:
    if is_stopped:
        if sys.platform == "win32":
            pytest.skip("there is no SIGSTOP")
        os.kill(hung.process.pid or 0, signal.SIGSTOP)
    end_with_games(hung.process)
    assert not hung.process.is_alive()
    assert not hung.game.is_running()
    assert ended_games_of == [hung.process.pid]


def test_at_the_end_of_a_run_on_windows_it_is_not_terminated_alone(
    hung: HungCollector, ended_games_of: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "HAS_SIGTERM", False)
    supervisor = CollectorSupervisor(lambda _: hung.process, lambda _: None, 1, lambda: None)
    supervisor.start()
    supervisor.stop(within_s=0.1)
    assert supervisor.n_alive == 0
    assert not hung.game.is_running()
    assert ended_games_of == [hung.process.pid]
