"""Single faults: stopped processes, repeated deaths of collectors, full disks and memories, a clock that is set.

Disks are small ones in memory. Mounting them and making a folder immutable needs root on Linux; setting the clock needs
libfaketime. Where one of these is missing, the table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil

from benchmarks.endurance.experiments import (
    CHECKPOINT_INTERVAL_S,
    DisturbedRun,
    MissingError,
    Outcome,
    end_in_order,
    newest_checkpoint,
    tried,
    wait_for_checkpoint,
)
from benchmarks.training_command import TrainCommand
from trackmania_rl.errors import ExitCode
from trackmania_rl.processes import is_running

Case = tuple[str, str, Callable[[Path], str]]
"""Fault, promised result, experiment."""

STOPPED_S: Final = 60.0
BACK_WITHIN_S: Final = 120.0
GAME_TIMEOUT_S: Final = 15.0
"""Instead of the default of `tmi_protection_timeout_s`, 60 s, which is as long as the stop itself."""
KILL_EVERY_S: Final = 10.0
LEAST_SHARE: Final = 0.6
UNDISTURBED_SHARE: Final = 0.3
"""Undisturbed time before the kills, as a share of their duration."""
DISK_MB: Final = 64
LEFT_ON_A_FULL_DISK_BYTES: Final = 64 << 10
MINIMUM_FREE_MB: Final = 8
FULL_FOR_S: Final = 20.0
WITHOUT_SHARED_MEMORY: Final = (
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"',
    "sh",
)
FAKETIME: Final = tuple(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def measure_standstills(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Stop each kind of process for a minute (SIGSTOP), as a debugger, swapping or a frozen game does."""
    return _measure(folder, STANDSTILLS)


def measure_shortages(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Take away disk, folder, shared memory and memory, and set the clock."""
    return _measure(folder, SHORTAGES)


def measure_repeated_deaths(asked: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Kill one of two collectors every ten seconds."""
    what = f"one of two collectors killed every 10 s for {asked.death_minutes:g} minutes"
    promised = f"the run keeps {LEAST_SHARE:.0%} of its frames/s"
    return _measure(folder, [(what, promised, lambda place: _repeated_deaths(place, 60 * asked.death_minutes))])


def _measure(folder: Path, cases: list[Case]) -> list[Outcome]:
    return [tried(*case, folder / str(number)) for number, case in enumerate(cases)]


def _repeated_deaths(folder: Path, duration_s: float) -> str:
    # Games and network of the default configuration: the loss is a user's.
    with DisturbedRun(folder, games_per_collector=8, checkpoint_interval_s=60.0).start() as command:
        command.wait_for_races(20)
        n_killed = 0

        def kill() -> None:
            nonlocal n_killed
            if collectors := command.collectors():
                with contextlib.suppress(psutil.NoSuchProcess):
                    collectors[n_killed % len(collectors)].kill()
                n_killed += 1

        rates = []
        for seconds, read in ((UNDISTURBED_SHARE * duration_s, lambda: None), (duration_s, kill)):
            frames, began_s = command.frames()[1], time.monotonic()
            command.watch(seconds, read, KILL_EVERY_S)
            rates.append((command.frames()[1] - frames) / (time.monotonic() - began_s))
        end_in_order(command)
    undisturbed, disturbed = rates
    text = f"{disturbed:,.0f} of {undisturbed:,.0f} frames/s: {disturbed / undisturbed:.0%}"
    assert disturbed >= LEAST_SHARE * undisturbed, text
    return text


def _stop_collector(folder: Path) -> str:
    with DisturbedRun(folder).start() as command:
        command.wait_for_races(8)
        return _stop_one(command, command.collectors()[0])


def _stop_game(folder: Path) -> str:
    run = DisturbedRun(folder, game_transport="socket", tmi_protection_timeout_s=GAME_TIMEOUT_S)
    with run.start() as command:
        command.wait_for_races(8)
        return _stop_one(command, command.games()[0])


def _stop_one(command: TrainCommand, victim: psutil.Process) -> str:
    """Stop a process. It must be replaced within a minute, and races of both collectors follow."""
    n_races = len(command.races)
    victim.suspend()
    try:
        replaced_s = command.wait_for(lambda: not is_running(victim), "end of the stopped process", STOPPED_S)
        n_meanwhile = len(command.races) - n_races
        assert n_meanwhile > 0, "the others drove no race meanwhile"
        n_races = len(command.races)
        command.wait_for(
            lambda: len({race["collector"] for race in command.races[n_races:]}) == 2, "both collectors", BACK_WITHIN_S
        )
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.resume()
    end_in_order(command)
    return f"replaced after {replaced_s:.0f} s, {n_meanwhile} races of the others meanwhile"


def _stop_learner(folder: Path) -> str:
    with DisturbedRun(folder).start() as command:
        command.wait_for_races(8)
        collectors = {process.pid for process in command.collectors()}
        _stop_for_a_minute([psutil.Process(command.process.pid)])
        command.wait_for_races(8)
        assert {process.pid for process in command.collectors()} == collectors, "a healthy collector was replaced"
        end_in_order(command)
    return "races go on with the same collectors"


def _stop_everything(folder: Path) -> str:
    with DisturbedRun(folder, game_transport="socket").start() as command:
        command.wait_for_races(8)
        family = [psutil.Process(command.process.pid), *command.children("")]
        _stop_for_a_minute(family)
        command.wait_for_races(8)
        kept = sum(process.pid in {child.pid for child in command.children("")} for process in family[1:])
        end_in_order(command)
    return f"races go on; {kept} of {len(family) - 1} processes are the same"


def _stop_supervised_learner(folder: Path) -> str:
    with DisturbedRun(folder, learner_silence_s=20.0).start("--supervised") as command:
        wait_for_checkpoint(command, within_s=BACK_WITHIN_S)
        learner = next(child for child in command.children("train.py") if child.pid != command.process.pid)
        learner.suspend()
        killed_s = command.wait_for(lambda: not is_running(learner), "end of the stopped learner", BACK_WITHIN_S)
        back_s = killed_s + command.wait_for_races(4)
        assert "resumed" in command.output, command.output
        end_in_order(command)
    return f"killed after {killed_s:.0f} s, the next races after {back_s:.0f} s"


def _stop_for_a_minute(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    time.sleep(STOPPED_S)
    for process in reversed(processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@contextlib.contextmanager
def _training_on_small_disk(folder: Path) -> Iterator[tuple[Path, TrainCommand]]:
    """Train on a disk of `DISK_MB` until its first checkpoint; yield the disk and the training."""
    disk = folder / "disk"
    disk.mkdir()
    _as_root("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(disk))
    try:
        with DisturbedRun(disk, minimum_free_disk_mb=MINIMUM_FREE_MB).start() as command:
            command.wait_for_races(4)
            wait_for_checkpoint(command)
            yield disk, command
    finally:
        _as_root("umount", "--lazy", str(disk))


def _as_root(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError("it needs root, and Linux") from error


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb") as file:
        for _ in range((shutil.disk_usage(disk).free - LEFT_ON_A_FULL_DISK_BYTES) >> 16):
            file.write(bytes(1 << 16))
    return filler


def _fill_disk(folder: Path) -> str:
    with _training_on_small_disk(folder) as (disk, command), contextlib.ExitStack() as full:
        full.callback(_fill(disk).unlink)
        return _require_recovery(command, "disk", full)


def _fill_disk_at_the_end(folder: Path) -> str:
    with _training_on_small_disk(folder) as (disk, command):
        newest = str(newest_checkpoint(command))
        _fill(disk)
        command.stop(signal.SIGTERM)
        assert command.process.returncode == ExitCode.NOT_SAVED, f"{command.process.returncode}: {command.output}"
        assert newest in "".join(command.output.splitlines()[-2:]), command.output
    return f"exit code {ExitCode.NOT_SAVED}"


def _make_read_only(folder: Path) -> str:
    # Root ignores permissions, but not this flag.
    with DisturbedRun(folder).start() as command, contextlib.ExitStack() as immutable:
        command.wait_for_races(4)
        wait_for_checkpoint(command)
        folders = [str(command.run_folder), str(command.run_folder / "checkpoints")]
        _as_root("chattr", "+i", *folders)
        immutable.callback(_as_root, "chattr", "-i", *folders)
        return _require_recovery(command, "not permitted", immutable)


def _require_recovery(command: TrainCommand, message: str, fault: contextlib.ExitStack) -> str:
    """Require a message about a fault and, when the fault has ended, another checkpoint and races."""
    said_s = command.wait_for(lambda: message in command.output, f"message with {message!r}")
    time.sleep(FULL_FOR_S)
    newest = newest_checkpoint(command)
    fault.close()
    back_s = wait_for_checkpoint(command, newest)
    command.wait_for_races(2)
    end_in_order(command)
    return f"said after {said_s:.0f} s; a checkpoint {back_s:.0f} s after the fault ended"


def _delete_run_folder(folder: Path) -> str:
    run = DisturbedRun(folder)
    with run.start() as command:
        command.wait_for_races(4)
        wait_for_checkpoint(command)
        deleted = command.run_folder.rename(folder / "deleted")  # nothing is written into it meanwhile
        shutil.rmtree(deleted)
        back_s = wait_for_checkpoint(command)
        end_in_order(command)
    _require_resuming(run)
    return f"a checkpoint {back_s:.0f} s later, from which the same command resumes"


def _fill_shared_memory(folder: Path) -> str:
    if sys.platform == "win32" or os.geteuid() != 0 or shutil.which("unshare") is None:
        raise MissingError("it needs root, and Linux")
    with DisturbedRun(folder).start(prefix=WITHOUT_SHARED_MEMORY) as command:
        command.process.wait(60.0)
        assert command.process.returncode == ExitCode.NEEDS_A_PERSON, f"{command.process.returncode}: {command.output}"
        assert "Traceback" not in command.output, command.output
    return command.output.strip().splitlines()[-1][:120]


def _limit_memory(folder: Path) -> str:
    run = DisturbedRun(folder)
    with run.start() as command:
        command.wait_for_races(4)
        wait_for_checkpoint(command)
        learner = psutil.Process(command.process.pid)
        if not hasattr(learner, "rlimit"):
            raise MissingError("it needs Linux")
        limit_bytes = learner.memory_info().vms
        learner.rlimit(psutil.RLIMIT_AS, (limit_bytes, limit_bytes))
        with contextlib.suppress(subprocess.TimeoutExpired):  # the memory it has may be enough
            command.process.wait(FULL_FOR_S)
        lived = command.process.poll() is None
        if lived:
            command.stop(signal.SIGTERM)
        code = command.process.returncode
    _require_resuming(run)
    return f"{'lived on and ended' if lived else 'ended'} with exit code {code}, then resumed"


def _set_clock(folder: Path) -> str:
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
    with DisturbedRun(folder).start(environment=environment) as command:
        command.wait_for_races(4)
        wait_for_checkpoint(command)
        collectors = {process.pid for process in command.collectors()}
        waits_s = []
        for offset in ("+1d", "-1d"):
            clock.write_text(offset)
            waits_s.append(wait_for_checkpoint(command, newest_checkpoint(command)))
            command.wait_for_races(4)
        assert {process.pid for process in command.collectors()} == collectors, "a healthy collector was replaced"
        end_in_order(command)
    return f"next checkpoints after {waits_s[0]:.1f} and {waits_s[1]:.1f} s (asked every {CHECKPOINT_INTERVAL_S:g} s)"


def _require_resuming(run: DisturbedRun) -> None:
    with run.start() as again:
        again.wait_for_races(2)
        assert "resumed" in again.output, again.output
        end_in_order(again)


RECOVERS: Final = "continues, logs it, writes checkpoints again"
STANDSTILLS: Final[list[Case]] = [
    ("a collector stops for 60 s (SIGSTOP)", "replaced, the other drives on", _stop_collector),
    ("a game stops for 60 s (SIGSTOP)", "replaced, the others drive on", _stop_game),
    ("the learner stops for 60 s, not supervised", "continues, no collector is replaced", _stop_learner),
    ("the learner stops, --supervised", "restarted, resumes, nothing left", _stop_supervised_learner),
    ("all processes stop for 60 s, as in a suspended machine", "all go on", _stop_everything),
]
SHORTAGES: Final[list[Case]] = [
    ("disk full, then freed", RECOVERS, _fill_disk),
    ("disk full at the end", "says so, its exit code, names the last good checkpoint", _fill_disk_at_the_end),
    ("run folder read-only, then writable", RECOVERS, _make_read_only),
    ("run folder deleted", "checkpoints come again, the same command resumes", _delete_run_folder),
    ("shared memory full at the start", "one line, exit code 78, no run folder", _fill_shared_memory),
    ("memory limit of the learner", "ends with an error, the same command resumes", _limit_memory),
    ("clock a day forward, then two back", "continues, checkpoints come as before", _set_clock),
]
