"""What the processes of one run share: a few objects made once, handed to each process when it is spawned."""

from __future__ import annotations

import logging
import logging.handlers
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import BaseContext, SpawnContext
from pathlib import Path
from typing import Any, Final

from trackmania_rl.channels.rollout_transport import RolloutSender
from trackmania_rl.channels.shared_weights import SharedWeights
from trackmania_rl.multiprocess.stop_conditions import OF_THE_TERMINAL
from trackmania_rl.settings import Settings
from trackmania_rl.training.demonstrations import Demonstration

LAST_RECORDS_WITHIN_S: Final = 3.0
"""How long the collectors' last log records are waited for."""


def spawn_context() -> SpawnContext:
    """The one way processes are started here: `spawn` is safe beside threads and accelerators."""
    return multiprocessing.get_context("spawn")


class StopFlag:
    """Set once, seen by all processes; without a lock, which a killed process could leave locked for all others.

    It is handed to a process when that is spawned. (`multiprocessing.Event` takes a lock also to be looked at.)
    """

    def __init__(self, context: BaseContext) -> None:
        self._value = context.Value("b", 0, lock=False)

    def set(self) -> None:
        """Set it, for good."""
        self._value.value = 1

    def is_set(self) -> bool:
        """Whether it was set."""
        return bool(self._value.value)


@dataclass(frozen=True)
class SharedRun:
    """Shared by the learner and all collectors.

    Attributes:
        snapshot_file: the run's own configuration.
        exploration_weights: the online network's weights.
        evaluation_weights: the averaged network's weights.
        frames_total: the run's frame count, written by the learner.
        stop_requested: set when the run ends.
        log_queue: where collectors send their log records.
    """

    snapshot_file: Path
    exploration_weights: SharedWeights
    evaluation_weights: SharedWeights
    frames_total: Any  # multiprocessing.Value of a 64-bit integer
    stop_requested: StopFlag
    log_queue: Any  # multiprocessing.Queue of logging.LogRecord


@dataclass(frozen=True)
class CollectorTask:
    """Everything one collector process is told.

    Attributes:
        index: its number, from 0.
        name: its name in the seed tree, a new one each time it is started; its games share its streams.
        settings: in force when it is started.
        maps_folder: where tracks and reference lines lie.
        sender: its way to the learner.
        demonstrations: races to drive before its own.
        n_starts_before: how often this session has started it already.
    """

    index: int
    name: str
    settings: Settings
    maps_folder: Path
    sender: RolloutSender
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
