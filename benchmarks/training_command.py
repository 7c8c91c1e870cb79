"""The training command as a process, for tests from end to end and benchmarks of whole trainings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import psutil

from trackmania_rl.processes import end_processes, is_running
from trackmania_rl.runs.folder import RUN_LOG
from trackmania_rl.runs.log import iterate_races
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port

PROJECT: Final = Path(__file__).resolve().parent.parent
FIRST_RACE_WITHIN_S: Final = 300.0
TRAINING_ENDS_WITHIN_S: Final = 60.0
MOST_GAMES: Final = 4
"""Games of one training, which listen at consecutive ports."""


class TrainingFailedError(AssertionError):
    """A training ended early or a condition was not met in time; the text has its output."""


class TrainCommand:
    """One run of `scripts/train.py` in a process group of its own; a context manager that kills it.

    Args:
        folder: its output folder; the terminal's output goes to terminal.txt there.
        settings: overrides, as Python writes their values.
        options: further command line options.
        environment: additional variables.
        prefix: a command that is given the training's as its arguments and executes it.

    Attributes:
        run_folder: save/tested in its output folder.
        port: of its first game.
        process: the command's.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object],
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.run_folder = folder / "save" / "tested"
        folder.mkdir(parents=True, exist_ok=True)
        all_settings = {
            "run_name": "'tested'",
            "terminal_view": "'off'",
            "base_tmi_port": find_free_port(MOST_GAMES),
            **settings,
        }
        self.port = int(str(all_settings["base_tmi_port"]))
        sets = [word for name, value in all_settings.items() for word in ("--set", f"{name}={value}")]
        script = PROJECT / "scripts" / "train.py"
        command = [*prefix, sys.executable, "-u", str(script), "--output-folder", str(folder), *sets, *options]
        self._output_file = folder / "terminal.txt"
        with self._output_file.open("ab") as output:
            self.began_at_byte = output.tell()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            )
        self._family: dict[int, psutil.Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def output(self) -> str:
        """This command's output so far."""
        return self._output_file.read_bytes()[self.began_at_byte :].decode()

    @property
    def races(self) -> list[dict[str, Any]]:
        """Races in the run log."""
        log = self.run_folder / RUN_LOG
        return list(iterate_races(log)) if log.is_file() else []

    def frames(self) -> tuple[float, int]:
        """Return wall-clock seconds and number of frames at the end of the newest race."""
        newest = (self.races or [{"wall_s": 0.0, "frames_total": 0}])[-1]
        return newest["wall_s"], newest["frames_total"]

    def children(self, part_of_command: str) -> list[psutil.Process]:
        """Return living children, at any depth, whose command line contains a text."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._family[child.pid] = child
                with contextlib.suppress(psutil.Error):
                    if part_of_command in " ".join(child.cmdline()) and is_running(child):
                        found.append(child)
        return found

    def collectors(self) -> list[psutil.Process]:
        """Return the collectors' processes."""
        return self.children("spawn_main")

    def games(self) -> list[psutil.Process]:
        """Return the processes of simulated games."""
        return self.children("simulated_game.py")

    def shared_memory_bytes(self) -> int:
        """Return the size of the shared memory that the main process maps. It has no names in `/dev/shm`."""
        maps = psutil.Process(self.process.pid).memory_maps()
        return sum(entry.size for entry in maps if entry.path.startswith("/dev/shm/"))

    def wait_for(self, condition: Callable[[], object], what: str, within_s: float = 60.0) -> float:
        """Wait until a condition is true; return the seconds.

        Raises:
            TrainingFailedError: if the command ends, or the condition is not true in time.
        """
        began_s = time.monotonic()
        while not condition():
            if self.process.poll() is not None:
                raise TrainingFailedError(f"it ended while waiting for {what}:\n{self.output}")
            if time.monotonic() - began_s > within_s:
                raise TrainingFailedError(f"no {what} within {within_s} s:\n{self.output}")
            time.sleep(0.05)
        return time.monotonic() - began_s

    def wait_for_races(self, n_more: int = 1) -> float:
        """Wait for further races; return the seconds."""
        n_races = len(self.races) + n_more
        return self.wait_for(lambda: len(self.races) >= n_races, f"{n_races} races", FIRST_RACE_WITHIN_S)

    def watch(self, duration_s: float, read: Callable[[], object] = lambda: None, every_s: float = 1.0) -> None:
        """Call `read` every `every_s` for a time.

        Raises:
            TrainingFailedError: if the command ends before.
        """
        ends_s = time.monotonic() + duration_s
        while (left_s := ends_s - time.monotonic()) > 0:
            time.sleep(min(every_s, left_s))
            if self.process.poll() is not None:
                raise TrainingFailedError(f"it ended while it was watched:\n{self.output}")
            read()

    def stop(self, number: signal.Signals, *, whole_group: bool = False) -> float:
        """Send a signal and wait for the end of the command and its children; return the seconds."""
        self.children("")  # remembers them
        began_s = time.monotonic()
        if whole_group and sys.platform != "win32":
            os.killpg(self.process.pid, number)
        else:
            os.kill(self.process.pid, number)
        self.process.wait(TRAINING_ENDS_WITHIN_S)
        while self.survivors() and time.monotonic() - began_s < TRAINING_ENDS_WITHIN_S:
            time.sleep(0.02)
        return time.monotonic() - began_s

    def survivors(self) -> list[psutil.Process]:
        """Return processes of this command that still run."""
        return list(filter(is_running, self._family.values()))

    def end(self) -> None:
        """Kill all processes of this command."""
        self.children("")
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        end_processes(self.survivors())
