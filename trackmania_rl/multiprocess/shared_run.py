"""What a collector's process is handed when it is spawned, and how signals and log records are shared."""

from __future__ import annotations

import logging
import logging.handlers
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, Final

from trackmania_rl.channels.protocols import RolloutSink, RunStateView
from trackmania_rl.multiprocess.stop_conditions import OF_THE_TERMINAL
from trackmania_rl.training.demonstrations import Demonstration

LAST_RECORDS_WITHIN_S: Final = 3.0
"""How long the collectors' last log records are waited for."""


def spawn_context() -> SpawnContext:
    """The one way processes are started here: `spawn` is safe beside threads and accelerators."""
    return multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class CollectorTask:
    """Everything one collector process is told.

    Attributes:
        index: its number, from 0.
        name: its name in the seed tree, a new one each time it is started; its games share its streams.
        maps_folder: where tracks and reference lines lie.
        tracks_folder: where it may write the tracks that it generates.
        rollouts: where its races go.
        run_state: what the learner publishes.
        log_queue: where its log records go.
        demonstrations: races to drive before its own.
        n_starts_before: how often this session has started it already.
    """

    index: int
    name: str
    maps_folder: Path
    tracks_folder: Path
    rollouts: RolloutSink
    run_state: RunStateView
    log_queue: Any  # multiprocessing.Queue of logging.LogRecord
    demonstrations: tuple[Demonstration, ...] = ()
    n_starts_before: int = 0


@contextmanager
def hold_back_ctrl_c() -> Iterator[None]:
    """Keep a terminal's signals from processes that are started meanwhile, until each says `release_ctrl_c`.

    Ctrl-C reaches every process of a terminal, and would end one that still imports its modules with a traceback; so
    does the end of the terminal. This process gets its own ones afterwards. Windows cannot do so.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_TERMINAL)
    try:
        yield
    finally:
        release_ctrl_c()


def release_ctrl_c() -> None:
    """Undo `hold_back_ctrl_c` in this process."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_TERMINAL)


def send_logs_to(log_queue: Any) -> None:
    """Let this process's log records go to the main process, which alone writes to terminal and file."""
    root = logging.getLogger()
    root.handlers = [logging.handlers.QueueHandler(log_queue)]
    root.setLevel(logging.INFO)


@contextmanager
def logs_of_collectors(log_queue: Any) -> Iterator[None]:
    """Handle the collectors' log records by this process's own handlers.

    A collector that is killed in the midst of a record may leave the queue locked for ever; the end waits for that no
    longer than `LAST_RECORDS_WITHIN_S`.
    """
    listener = logging.handlers.QueueListener(log_queue, *logging.getLogger().handlers, respect_handler_level=True)
    listener.start()
    try:
        yield
    finally:
        ending = threading.Thread(target=listener.stop, name="last log records", daemon=True)
        ending.start()
        ending.join(LAST_RECORDS_WITHIN_S)
        if ending.is_alive():
            log_queue.cancel_join_thread()  # else the interpreter's end would wait for the lock, too
