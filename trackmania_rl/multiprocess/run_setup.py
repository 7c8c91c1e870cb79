"""Setting up a run: check the machine, create what the processes share, build the supervisor."""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from filelock import FileLock, Timeout

from trackmania_rl.agents.run_network import make_network
from trackmania_rl.channels.rollout_transport import RolloutReceiver
from trackmania_rl.channels.shared_weights import SharedWeights
from trackmania_rl.checkpoints import RunFolder
from trackmania_rl.doctor.examination import check_start
from trackmania_rl.doctor.findings import Context
from trackmania_rl.errors import UserError
from trackmania_rl.files import replace_patiently
from trackmania_rl.multiprocess.collector_process import collector_process_fn
from trackmania_rl.multiprocess.shared_run import CollectorTask, SharedRun, StopFlag, hold_back_ctrl_c, spawn_context
from trackmania_rl.multiprocess.stop_conditions import HANG_UP
from trackmania_rl.multiprocess.supervisor import CollectorSupervisor
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.tmi_interaction.game_instance_manager import PROJECT_FOLDER
from trackmania_rl.training.demonstrations import Demonstration

log = logging.getLogger(__name__)


@contextlib.contextmanager
def training_alone(folder: RunFolder) -> Iterator[None]:
    """Keep a run's folder to this process: two trainings of one run would overwrite each other's checkpoints.

    Raises:
        UserError: if another process trains this run, or the folder cannot be written to.
    """
    lock = FileLock(folder.path / ".train.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise UserError(
            f"{folder.path} is being trained by another process; give this one a name of its own (--set run_name=...), "
            "or end the other one first"
        ) from error
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(
                f"{folder.path} cannot be written to: {error.strerror}; choose another folder with --output-folder"
            ) from error
        log.warning("%s cannot be locked (%s): let no other process train this run", folder.path, error.strerror)
    try:
        yield
    finally:
        lock.release()


def check_machine(settings: Settings, folder: Path) -> None:
    """Look at what the run needs of the machine; the plugin of the real game is put in place.

    Raises:
        UserError: if the folder cannot be written to, the disk is full, the device or the game cannot be used, or a
            port that a game instance needs is taken.
    """
    check_start(Context(settings, folder, PROJECT_FOLDER))


def share_run(settings: Settings, layout: ObservationLayout, seeds: SeedTree, snapshot_file: Path) -> SharedRun:
    """Make what the processes of a run share; the `uncompiled_shared_network`s hold the weights."""
    _start_resource_tracker()
    context = spawn_context()
    uncompiled_shared_network = make_network(settings, layout, seeds)
    uncompiled_shared_evaluation_network = make_network(settings, layout, seeds)
    return SharedRun(
        snapshot_file=snapshot_file,
        exploration_weights=SharedWeights(uncompiled_shared_network, context),
        evaluation_weights=SharedWeights(uncompiled_shared_evaluation_network, context),
        frames_total=context.Value("q", 0, lock=False),  # one writer; a lock could die with a killed reader
        stop_requested=StopFlag(context),
        log_queue=context.Queue(),
    )


def _start_resource_tracker() -> None:
    """Start Python's own cleaner of shared memory where the end of the terminal does not end it.

    By itself it ignores Ctrl-C and SIGTERM only, and without it nobody knows any more what is to be cleaned up.
    """
    if HANG_UP is None:
        return
    before = signal.signal(HANG_UP, signal.SIG_IGN)  # which is inherited
    try:
        resource_tracker.ensure_running()
    finally:
        signal.signal(HANG_UP, before)


def make_supervisor(
    live: LiveSettings,
    shared: SharedRun,
    receiver: RolloutReceiver,
    maps_folder: Path,
    session: int,
    demonstrations: tuple[Demonstration, ...] = (),
) -> CollectorSupervisor:
    """The supervisor of this run's collectors, which spawns each as a process of its own.

    In a run that has no race yet, the collectors share the demonstrations among themselves. The names of their random
    numbers say which `session` of the run it is: a run that goes on must not draw its old ones again.
    """
    context = spawn_context()
    n_starts: dict[int, int] = {}

    def spawn(index: int) -> BaseProcess:
        n_starts[index] = n_starts.get(index, 0) + 1
        is_new = shared.frames_total.value == 0
        task = CollectorTask(
            index=index,
            name=f"collector-{index}/session-{session}/start-{n_starts[index]}",
            settings=live.current,
            maps_folder=maps_folder,
            sender=receiver.open_collector(index),
            demonstrations=demonstrations[index :: live.current.game.n_collectors] if is_new else (),
            n_starts_before=n_starts[index] - 1,
        )
        process = context.Process(
            target=collector_process_fn, args=(task, shared), name=f"collector {index}", daemon=False
        )
        with hold_back_ctrl_c():
            process.start()
        return process

    return CollectorSupervisor(spawn, receiver.close_collector, live.current.game.n_collectors, shared.stop_requested)


def count_session(folder: RunFolder) -> int:
    """How often this run was started, this time included; the run's folder counts.

    Raises:
        UserError: if the file that counts is damaged.
    """
    file = folder.sessions
    try:
        session = 1 + (int(file.read_text(encoding="utf-8")) if file.is_file() else 0)
    except ValueError as error:
        raise UserError(
            f"{file} is damaged: write into it how often this run was started, or a larger number, so that its random "
            "numbers do not begin again"
        ) from error
    temporary = file.with_suffix(".tmp")
    temporary.write_text(f"{session}\n", encoding="utf-8")
    replace_patiently(temporary, file)
    return session
