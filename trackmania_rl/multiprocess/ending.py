"""Ending a process by force together with what it has started, be it stopped, hung or dead already."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from typing import Final

import psutil

from trackmania_rl.tmi_interaction.launchers.game_processes import GameRecords

ENDS_WITHIN_S: Final = 5.0


def descendants_of(pid: int) -> list[psutil.Process]:
    """What a process has started, at any depth, as far as it runs; nothing where the process itself has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def end_with_games(process: BaseProcess) -> None:
    """Kill a process of ours, its descendants, and the real games on record as its own.

    The simulated games are its children. On Linux the kernel ends them with their parent; elsewhere nobody else does.
    The real ones are handed over by Wine or TMLoader, and nobody's children.
    """
    assert process.pid is not None
    descendants = descendants_of(process.pid)
    process.kill()
    process.join(ENDS_WITHIN_S)
    end_processes(descendants)
    GameRecords().end_games_of(process.pid)


def end_processes(processes: Iterable[psutil.Process]) -> None:
    """Kill processes and wait a little for their end; children of this process are for their maker to wait for."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            process.kill()
    psutil.wait_procs(processes, timeout=ENDS_WITHIN_S)
