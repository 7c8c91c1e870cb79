"""A collector on whatever machine has room: the actor that plays, and what can be done to it from outside."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
import ray

from trackmania_rl.channels.over_ray.rollouts import RaySink
from trackmania_rl.errors import UserError
from trackmania_rl.multiprocess.collector_process import collector_process_fn, end_at_once
from trackmania_rl.multiprocess.collector_task import CollectorTask
from trackmania_rl.multiprocess.ending import descendants_of, end_processes
from trackmania_rl.places import SHIPPED_FOLDER

LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True)
class Place:
    """Where a collector plays.

    Attributes:
        node_id: Ray's name of the machine.
        machine: its own.
        pid: of the process there.
        began_s: when that was started, so that no later process of this number is taken for it.
    """

    node_id: str
    machine: str
    pid: int
    began_s: float


class CollectorHost:
    """An actor that is one collector; its process is that collector's, and its games end with it."""

    def place(self) -> Place:
        """Say where this is."""
        node_id, pid = ray.get_runtime_context().get_node_id(), os.getpid()
        return Place(node_id, socket.gethostname(), pid, psutil.Process(pid).create_time())

    def play(self, task: CollectorTask) -> None:
        """Play until the run ends, another one fills the post, or the learner's machine is out of reach."""
        assert isinstance(task.rollouts, RaySink)
        silence_s = task.run_state.settings.run.collector_silence_s
        threading.Thread(target=_end_when_alone, args=(task.rollouts, silence_s), daemon=True).start()
        with tempfile.TemporaryDirectory(prefix="trackmania_rl_collector_") as folder:
            collector_process_fn(_at_home_here(task, Path(folder)))


def end_there(place: Place) -> None:
    """Kill the process of a collector with its games; to be run on its machine. It may be stopped, or hang."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(place.pid)
        if process.create_time() == place.began_s:
            end_processes([process, *descendants_of(place.pid)])


def _at_home_here(task: CollectorTask, folder: Path) -> CollectorTask:
    """Let a collector write to a folder of this machine, and read the maps that are here."""
    maps_folder = next((one for one in (task.maps_folder, SHIPPED_FOLDER / "maps") if one.is_dir()), None)
    if maps_folder is None:
        raise UserError(f"{socket.gethostname()} has no folder {task.maps_folder}: copy the maps there")
    return replace(task, maps_folder=maps_folder, tracks_folder=folder / "tracks", live_folder=folder / "live")


def _end_when_alone(rollouts: RaySink, silence_s: float) -> None:
    """End this process with its games where nobody waits for its races any more."""
    while True:
        time.sleep(LOOK_EVERY_S)
        if rollouts.is_refused:
            logging.getLogger(__name__).warning("another process plays in the place of this collector: it ends")
            end_at_once()
        if time.monotonic() - rollouts.answered_s > silence_s:
            end_at_once()


class RelayLogs:
    """Hands a collector's log records to the relay; see `LogPipe`.

    Args:
        relay: the run's.
    """

    def __init__(self, relay: Any) -> None:
        self._relay = relay

    def send(self, record: logging.LogRecord, /) -> None:
        """Hand on a record, and wait for nobody."""
        self._relay.log.remote(record)
