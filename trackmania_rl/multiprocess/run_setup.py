"""Setup of a run: its folder, the count of its sessions, and checks."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout

from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.files import read_bounded, require_regular, write_durably
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.runs.log import newest_race
from trackmania_rl.runs.reading import find_manifests
from trackmania_rl.settings import Settings, SettingsError
from trackmania_rl.telemetry.live.feed import FOLDER

if TYPE_CHECKING:
    from trackmania_rl.channels.over_grpc import WorkerAccess

MOST_DIGITS: Final = 20
"""Of a count."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def new_run_folder(folder: RunFolder) -> Iterator[Callable[[], None]]:
    """Make a run's folder and lock it. An error before the run has begun removes new folders.

    The live state of games is removed before, of a killed training, and at the end.

    Yields:
        A function to call when the run has begun.

    Raises:
        PassingError: if another process trains this run.
        UserError: if the folder cannot be made or written to, or holds a pipe or a device, which would block the run.
    """
    for file in folder.path.iterdir() if folder.path.is_dir() else ():
        if not file.is_dir():
            require_regular(file)
    own = [path for path in (folder.path, folder.tensorboard) if not path.exists()]
    above = dict.fromkeys(parent for path in own for parent in path.parents if not parent.exists())
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True

    try:
        folder.make()
        with _locked(folder):
            shutil.rmtree(folder.path / FOLDER, ignore_errors=True)
            try:
                yield begin
            finally:
                shutil.rmtree(folder.path / FOLDER, ignore_errors=True)
    except BaseException:
        if not has_begun:
            for path in own:
                shutil.rmtree(path, ignore_errors=True)
            for path in sorted(above, key=lambda parent: len(parent.parts), reverse=True):
                with contextlib.suppress(OSError):  # another run's folder is in it by now
                    path.rmdir()
        raise


@contextlib.contextmanager
def _locked(folder: RunFolder) -> Iterator[None]:
    """Lock a run's folder: two trainings of one run would overwrite each other's checkpoints."""
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


def check_machine(settings: Settings, folder: Path) -> None:
    """Check the machine, and install the plugin of the real game.

    Raises:
        UserError: if the folder, the disk, the device, the game or a game's port cannot be used.
    """
    from trackmania_rl.doctor.checks import check_start
    from trackmania_rl.doctor.findings import Context

    check_start(Context(settings, folder, PROJECT_FOLDER))


def require_races(settings: Settings, plays_elsewhere: bool, serves_workers: bool) -> None:
    """Raise `SettingsError` if a run has nothing to learn from, or its workers cannot play as it asks.

    Args:
        settings: of the run.
        plays_elsewhere: whether its collectors play on a cluster.
        serves_workers: whether workers connect from other machines.
    """
    if settings.game.n_collectors == 0 and not settings.replay.offline and not serves_workers:
        raise SettingsError(
            "n_collectors = 0 plays no game: name a data set in offline, serve --workers, or set n_collectors to 1 or "
            "more"
        )
    if (serves_workers or plays_elsewhere) and settings.sync.is_synchronous:
        raise SettingsError(
            'sampling = "synchronous" is for one machine, as its turns would wait for the network: leave --cluster and '
            '--workers out, or set sampling = "asynchronous"'
        )
    if serves_workers and plays_elsewhere:
        raise SettingsError("a run has its workers on a cluster or by --workers: leave one of the two out")


def require_ray() -> None:
    """Raise `UserError` if this machine cannot be part of a cluster."""
    if sys.platform == "win32":
        raise UserError(
            "--cluster is for Linux: a Windows machine takes part by scripts/worker.py (docs/other_machines.rst)"
        )
    if any(find_spec(package) is None for package in ("ray", "grpc", "zstandard")):
        raise UserError('--cluster needs Ray and gRPC: python -m pip install "trackmania-rl[cluster]"')


def joined(cluster: str) -> contextlib.AbstractContextManager[WorkerAccess]:
    """Join a Ray cluster; see `cluster.connected`.

    Raises:
        UserError: if there is no such cluster, or no Ray on this machine.
    """
    require_ray()
    from trackmania_rl.multiprocess.cluster import connected

    return connected(cluster)


def count_session(folder: RunFolder) -> int:
    """Count the starts of this run, this one included, in the run's folder.

    The count exceeds the sessions of all checkpoints and races, also after a power cut: no random numbers repeat.
    """
    known = [0, *(manifest.session for manifest in find_manifests(folder.path).values())]
    with contextlib.suppress(UserError):  # the log is damaged, which its writer reports
        _, newest_session = newest_race(folder.run_log)
        known.append(newest_session)
    with contextlib.suppress(OSError, ValueError, UserError):
        known.append(int(read_bounded(folder.sessions, MOST_DIGITS)))
    session = 1 + max(known)
    with contextlib.suppress(OSError):  # errors of the disk are logged with the first checkpoint
        write_durably(folder.sessions, f"{session}\n")
    return session
