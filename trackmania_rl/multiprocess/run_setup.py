"""Setting up a run: check the machine, create what the processes share, build the supervisor."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from torch import nn

from trackmania_rl.agents.builder import AgentBuilder, MakeAgentBuilder, make_agent_builder
from trackmania_rl.channels.protocols import Channels, RolloutSource, WeightsKind
from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.files import read_bounded, require_no_special_files, write_durably
from trackmania_rl.games.race_games import MakeGamesBuilder, make_games_builder
from trackmania_rl.multiprocess.collector_logs import CollectorLogs
from trackmania_rl.multiprocess.collector_process import collector_process_fn
from trackmania_rl.multiprocess.collector_task import CollectorTask
from trackmania_rl.multiprocess.ending import end_with_games
from trackmania_rl.multiprocess.liveness import Bounds
from trackmania_rl.multiprocess.signals import hold_back_ctrl_c
from trackmania_rl.multiprocess.supervisor import CollectorProcess, CollectorSupervisor, Placement
from trackmania_rl.places import PROJECT_FOLDER
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.runs import RunFolder, find_manifests
from trackmania_rl.settings import Settings
from trackmania_rl.telemetry.live.feed import FOLDER
from trackmania_rl.telemetry.race_record import UNDONE_FILE, last_session
from trackmania_rl.training.demonstrations import Demonstration
from trackmania_rl.training.hooks.hook import RunContext

MOST_DIGITS: Final = 20
"""Of a count; what is longer is none."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def training_alone(folder: RunFolder) -> Iterator[None]:
    """Keep a run's folder to this process: two trainings of one run would overwrite each other's checkpoints.

    Raises:
        PassingError: if another process trains this run.
        UserError: if the folder cannot be written to.
    """
    lock = FileLock(folder.lock)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise PassingError(
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


@contextlib.contextmanager
def showing_games(folder: RunFolder) -> Iterator[None]:
    """Remove what collectors show their games by: before, that of a training that was killed; at the end, its own."""
    shutil.rmtree(folder.path / FOLDER, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder.path / FOLDER, ignore_errors=True)


@contextlib.contextmanager
def removed_unless_begun(folder: RunFolder) -> Iterator[Callable[[], None]]:
    """Make a run's folders; a command that ends by an error before its run has begun takes those away that it made.

    Yields:
        What is called when the run has begun.

    Raises:
        CheckpointError: if a folder cannot be made.
    """
    own = [path for path in (folder.path, folder.tensorboard) if not path.exists()]
    above = dict.fromkeys(parent for path in own for parent in path.parents if not parent.exists())
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True

    try:
        folder.make()
        yield begin
    except BaseException:
        if not has_begun:
            for path in own:
                shutil.rmtree(path, ignore_errors=True)
            for path in sorted(above, key=lambda parent: len(parent.parts), reverse=True):
                with contextlib.suppress(OSError):  # another run's folder is in it by now
                    path.rmdir()
        raise


@contextlib.contextmanager
def own_folder(folder: RunFolder) -> Iterator[Callable[[], None]]:
    """Make a run's folder and lock it. An error before the run has begun takes back what was written there.

    Yields:
        A function to call when the run has begun.

    Raises:
        UserError: if the folder holds a pipe or a device, which would keep the run waiting.
    """
    require_no_special_files(folder.path)
    with removed_unless_begun(folder) as begin, training_alone(folder), showing_games(folder):
        yield begin


def check_machine(settings: Settings, folder: Path) -> None:
    """Look at what the run needs of the machine; the plugin of the real game is put in place.

    Raises:
        UserError: if the folder cannot be written to, the disk is full, the device or the game cannot be used, or a
            port that a game instance needs is taken.
    """
    from trackmania_rl.doctor.checks import check_start
    from trackmania_rl.doctor.findings import Context

    check_start(Context(settings, folder, PROJECT_FOLDER))


@contextlib.contextmanager
def placed(
    cluster: str | None, settings: Settings, spaces: Spaces, builder: AgentBuilder
) -> Iterator[tuple[Channels, Placement]]:
    """Open the channels between the learner and its collectors, and say where these are.

    Args:
        cluster: the Ray cluster to join; None for processes of this machine.
        settings: in force at the beginning.
        spaces: of the games.
        builder: makes the networks, whose first weights collectors begin with.

    Raises:
        UserError: if there is no such cluster, or no Ray on this machine.
    """
    if cluster is not None:
        require_ray()
    uncompiled_shared_network = builder.make_network()
    uncompiled_shared_evaluation_network = builder.make_network()
    networks: dict[WeightsKind, nn.Module] = {
        "exploration": uncompiled_shared_network,
        "evaluation": uncompiled_shared_evaluation_network,
    }
    if cluster is None:
        from trackmania_rl.channels.shared_memory.opening import open_channels

        channels = open_channels(settings, spaces, networks)
        yield channels, OnThisMachine(channels.rollouts)
        return
    from trackmania_rl.multiprocess.cluster.setup import on_cluster

    with on_cluster(cluster, settings, spaces, networks) as opened:
        yield opened


def require_ray() -> None:
    """Look whether this machine can be one of a cluster.

    Raises:
        UserError: if not; the text says what to do.
    """
    if sys.platform == "win32":
        raise UserError(
            "--cluster is for Linux: a Windows machine takes part by scripts/keep_games.py (docs/game_machines.rst)"
        )
    if find_spec("ray") is None:
        raise UserError('--cluster needs Ray: python -m pip install "trackmania-rl[cluster]"')


class OnThisMachine:
    """Collectors as processes of this machine; see `Placement`.

    Args:
        rollouts: their channel.
    """

    def __init__(self, rollouts: RolloutSource) -> None:
        self.logs = CollectorLogs()
        self._context = multiprocessing.get_context("spawn")  # safe beside threads and accelerators
        self.signs_of_life = rollouts.signs_of_life
        self.end_by_force: Callable[[Any], None] = end_with_games

    def log_pipe(self, name: str) -> Connection:
        """Open a pipe; see `Placement`."""
        return self.logs.open(name)

    def start(self, task: CollectorTask) -> BaseProcess:
        """Spawn a process; see `Placement`."""
        process = self._context.Process(
            target=collector_process_fn, args=(task,), name=f"collector {task.index}", daemon=False
        )
        assert isinstance(task.log_pipe, Connection)
        with hold_back_ctrl_c(), task.log_pipe:  # whose end the collector has afterwards, and nobody else
            process.start()
        return process


def make_supervisor(
    run: RunContext,
    placement: Placement,
    demonstrations: tuple[Demonstration, ...] = (),
    games: MakeGamesBuilder = make_games_builder,
    agent: MakeAgentBuilder = make_agent_builder,
) -> CollectorSupervisor:
    """Make the supervisor of this run's collectors, which starts each as a process of its own.

    In a run that has no race yet, the collectors share the demonstrations among themselves. A collector resumes at its
    `run.progress`. Its random streams are resumed as well, from one session to the next; after a crash they begin
    anew, as the numbers drawn last may be the cause of it.
    """
    channels, folder = run.channels, run.folder
    run_state = channels.run_state.view()
    n_collectors = run_state.settings.game.n_collectors
    n_starts: Counter[int] = Counter()
    n_starts_at: Counter[tuple[int, int]] = Counter()  # by collector, and how many races it had then

    def spawn(index: int) -> CollectorProcess:
        progress = run.progress.get(index, CollectorProgress())
        n_starts[index] += 1
        n_starts_at[index, progress.n_races] += 1
        is_new = run_state.frames_total == 0
        task = CollectorTask(
            index=index,
            name=f"collector-{index}/session-{run.session}/start-{n_starts[index]}",
            maps_folder=run.maps_folder,
            tracks_folder=folder.path / "generated_tracks" / f"collector-{index}",
            live_folder=folder.path / FOLDER,
            rollouts=channels.rollouts.open_collector(index),
            run_state=run_state,
            log_pipe=placement.log_pipe(f"collector {index}"),
            make_games_builder=games,
            make_agent_builder=agent,
            demonstrations=demonstrations[index::n_collectors] if is_new else (),
            progress=progress if n_starts[index] == 1 else replace(progress, streams={}),
            n_starts_before=n_starts_at[index, progress.n_races] - 1,
        )
        return placement.start(task)

    def request_stop() -> None:
        channels.run_state.publish(stop=True)

    def bounds() -> Bounds:
        run_state.pull()
        return Bounds.of_settings(run_state.settings)

    return CollectorSupervisor(
        spawn,
        channels.rollouts.close_collector,
        n_collectors,
        request_stop,
        placement.signs_of_life,
        bounds,
        placement.end_by_force,
    )


def count_session(folder: RunFolder) -> int:
    """Count how often this run was started, this time included; the run's folder remembers.

    Where the file that counts is damaged, as a power cut leaves it, the number is above those that checkpoints and
    races know, so that no random numbers begin again; this is told.
    """
    file = folder.sessions
    try:
        session = 1 + (int(read_bounded(file, MOST_DIGITS)) if file.exists() else 0)
    except (ValueError, UserError):
        session = 1 + _last_known_session(folder)
        log.warning("%s is damaged: this is called session %d, which no checkpoint or race knows", file, session)
    with contextlib.suppress(OSError):  # a disk that fails is told where it matters
        write_durably(file, f"{session}\n")
    return session


def _last_known_session(folder: RunFolder) -> int:
    """Find the largest session that a checkpoint or a race was made in."""
    sessions = [manifest.session for manifest in find_manifests(folder.path).values()]
    with contextlib.suppress(OSError):
        sessions += [last_session(file) for file in (folder.races, folder.races.with_name(UNDONE_FILE))]
    return max(sessions, default=0)
