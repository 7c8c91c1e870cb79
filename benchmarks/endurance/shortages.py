"""What a machine runs out of: disk, folder, shared memory, memory; and a clock that is set forward and back.

Disks are small ones in memory, which only root can mount, as only root can make a folder immutable (Linux); the clock
is libfaketime's. Where one of these is missing, the row says so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil

from benchmarks.endurance.outcomes import Outcome, outcome_of
from benchmarks.endurance.small_training import CHECKPOINT_INTERVAL_S, TormentedRun, end_in_order
from benchmarks.training_command import TrainCommand
from trackmania_rl.errors import ExitCode

DISK_MB: Final = 64
LEFT_ON_A_FULL_DISK_BYTES: Final = 64 << 10
FULL_FOR_S: Final = 20.0
ENDS_WITHIN_S: Final = 60.0
COMPLAINS_WITHIN_S: Final = 60.0
MINIMUM_FREE_MB: Final = 8
WITHOUT_SHARED_MEMORY: Final = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
SMALL_SHARED_MEMORY: Final = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"',
    "sh",
)
FAKETIME: Final = tuple(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


class MissingError(Exception):
    """Something that an experiment needs is not on this machine."""


def measure(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Take one thing after the other away."""
    del asked  # nothing is drawn
    cases: tuple[tuple[str, str, Callable[[Path], str]], ...] = (
        ("disk full, then freed", "goes on, says so, checkpoints come again", _disk_full),
        (
            "disk full at the end",
            "says so, exit code for a person, the last good checkpoint is named",
            _disk_full_at_the_end,
        ),
        ("run folder read-only, then writable", "goes on, says so, checkpoints come again", _read_only),
        ("run folder deleted", "checkpoints come again, the same command resumes", _folder_gone),
        ("shared memory full at the start", "one line, exit code 78, no run folder", _no_shared_memory),
        ("memory limit of the learner", "ends with an error, the same command resumes", _memory_limit),
        ("clock a day forward, then two back", "goes on, checkpoints come as before", _clock),
    )
    outcomes = []
    for number, (what, promised, experiment) in enumerate(cases):
        try:
            outcomes.append(_tried(what, promised, experiment, folder / str(number)))
        except MissingError as error:
            outcomes.append(Outcome(what, promised, told=f"not tried: {error}"))
    return outcomes


def _tried(what: str, promised: str, experiment: Callable[[Path], str], folder: Path) -> Outcome:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    missing: list[MissingError] = []

    def carry_out() -> str:
        try:
            return experiment(folder)
        except MissingError as error:
            missing.append(error)
            return ""

    outcome = outcome_of(what, promised, carry_out)
    if missing:
        raise missing[0]
    return outcome


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk of `DISK_MB`."""
    disk = folder / "disk"
    disk.mkdir()
    _as_root("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(disk))
    try:
        yield disk
    finally:
        _as_root("mount", "-o", "remount,rw", str(disk))
        _as_root("umount", "--lazy", str(disk))


def _as_root(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError("it needs root, and Linux") from error


def _fill(disk: Path) -> Path:
    """Fill a disk but for a little."""
    filler = disk / "filler"
    left_bytes = shutil.disk_usage(disk).free - LEFT_ON_A_FULL_DISK_BYTES
    with filler.open("wb") as file:
        for _ in range(left_bytes >> 16):
            file.write(bytes(1 << 16))
    return filler


def _disk_full(folder: Path) -> str:
    with _small_disk(folder) as disk, _training_on(disk) as command:
        _wait_for_checkpoint(command)
        filler = _fill(disk)
        said_s = command.wait_for(lambda: "disk" in command.output, "a word about the disk", COMPLAINS_WITHIN_S)
        time.sleep(FULL_FOR_S)
        newest = _newest_checkpoint(command)
        filler.unlink()
        back_s = command.wait_for(lambda: _newest_checkpoint(command) > newest, "another checkpoint", ENDS_WITHIN_S)
        command.wait_for_races(2)
        end_in_order(command)
    return f"said after {said_s:.0f} s; a checkpoint {back_s:.0f} s after space was freed"


def _disk_full_at_the_end(folder: Path) -> str:
    with _small_disk(folder) as disk, _training_on(disk) as command:
        _wait_for_checkpoint(command)
        newest = f"{_newest_checkpoint(command)}"
        _fill(disk)
        command.stop(signal.SIGTERM)
        assert command.process.returncode == ExitCode.NOT_SAVED, f"{command.process.returncode}: {command.output}"
        assert newest in command.output.splitlines()[-1] + command.output.splitlines()[-2], command.output
    return f"exit code {ExitCode.NOT_SAVED}"


def _read_only(folder: Path) -> str:
    # Permissions do not hold root back, who runs this, but the flag does.
    with TormentedRun(folder).training() as command:
        _wait_for_checkpoint(command)
        folders = [str(command.run_folder), str(command.run_folder / "checkpoints")]
        with contextlib.ExitStack() as writable:
            _as_root("chattr", "+i", *folders)
            writable.callback(_as_root, "chattr", "-i", *folders)
            said_s = command.wait_for(lambda: "not permitted" in command.output, "a word about it", COMPLAINS_WITHIN_S)
            time.sleep(FULL_FOR_S)
            newest = _newest_checkpoint(command)
        back_s = command.wait_for(lambda: _newest_checkpoint(command) > newest, "another checkpoint", ENDS_WITHIN_S)
        command.wait_for_races(2)
        end_in_order(command)
    return f"said after {said_s:.0f} s; a checkpoint {back_s:.0f} s after it was writable"


def _folder_gone(folder: Path) -> str:
    run = TormentedRun(folder)
    with run.training() as command:
        _wait_for_checkpoint(command)
        shutil.rmtree(command.run_folder)
        back_s = command.wait_for(lambda: _newest_checkpoint(command) > 0, "another checkpoint", ENDS_WITHIN_S)
        end_in_order(command)
    _require_resuming(run)
    return f"a checkpoint {back_s:.0f} s later, from which the same command goes on"


def _no_shared_memory(folder: Path) -> str:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise MissingError("it needs root, and Linux")
    run = TormentedRun(folder)
    with run.training(prefix=("unshare", "--mount", "sh", "-c", WITHOUT_SHARED_MEMORY, "sh")) as command:
        command.process.wait(ENDS_WITHIN_S)
        assert command.process.returncode == ExitCode.NEEDS_A_PERSON, f"{command.process.returncode}: {command.output}"
        assert "Traceback" not in command.output, command.output
    return command.output.strip().splitlines()[-1][:120]


def _memory_limit(folder: Path) -> str:
    run = TormentedRun(folder)
    with run.training() as command:
        _wait_for_checkpoint(command)
        learner = psutil.Process(command.process.pid)
        if not hasattr(learner, "rlimit"):
            raise MissingError("it needs Linux")
        limit_bytes = learner.memory_info().vms
        learner.rlimit(psutil.RLIMIT_AS, (limit_bytes, limit_bytes))
        # It may live with what it has: then it is asked to end, and writes its last checkpoint.
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(FULL_FOR_S)
        lived = command.process.poll() is None
        if lived:
            command.stop(signal.SIGTERM)
        first = command.process.returncode
    _require_resuming(run)
    return f"{'lived on and ended' if lived else 'ended'} with exit code {first}, then resumed"


def _clock(folder: Path) -> str:
    if not FAKETIME:
        raise MissingError("it needs libfaketime (apt-get install faketime)")
    clock = folder / "clock"
    clock.write_text("+0")
    environment = {
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    with TormentedRun(folder).training(environment=environment) as command:
        _wait_for_checkpoint(command)
        collectors = {process.pid for process in command.collectors()}
        waits_s = []
        for offset in ("+1d", "-1d"):
            clock.write_text(offset)
            newest = _newest_checkpoint(command)
            waits_s.append(
                command.wait_for(lambda n=newest: _newest_checkpoint(command) > n, "a checkpoint", ENDS_WITHIN_S)  # type: ignore[misc]
            )
            command.wait_for_races(4)
        assert {process.pid for process in command.collectors()} == collectors, "a healthy collector was replaced"
        end_in_order(command)
    return f"next checkpoints after {waits_s[0]:.1f} and {waits_s[1]:.1f} s (asked every {CHECKPOINT_INTERVAL_S:g} s)"


@contextlib.contextmanager
def _training_on(disk: Path) -> Iterator[TrainCommand]:
    with TormentedRun(disk, minimum_free_disk_mb=MINIMUM_FREE_MB).training() as command:
        yield command


def _newest_checkpoint(command: TrainCommand) -> int:
    """Its number; 0 where there is none."""
    names = (path.name for path in (command.run_folder / "checkpoints").glob("*"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def _require_resuming(run: TormentedRun) -> None:
    """See that the same command goes on with the run."""
    with run.training() as again:
        again.wait_for_races(2)
        assert "resumed" in again.output, again.output
        end_in_order(again)


def _wait_for_checkpoint(command: TrainCommand) -> None:
    command.wait_for_races(4)
    command.wait_for(lambda: _newest_checkpoint(command) > 0, "a checkpoint")
