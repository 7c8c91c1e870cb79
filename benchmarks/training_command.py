"""The training command as its users have it: a process, its children, its files.

Tests from end to end and the benchmarks that watch whole trainings start it by this.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port

PROJECT: Final = Path(__file__).resolve().parent.parent
FIRST_RACE_WITHIN_S: Final = 120.0
"""Twice what a stranger may wait: the machine that tests has other work."""
ENDS_WITHIN_S: Final = 60.0
MOST_GAMES: Final = 4
"""Of one training; so many ports in a row are looked for."""


class TrainingFailedError(AssertionError):
    """A training that did not come to what was waited for; the text has all that it said."""


class TrainCommand:
    """One run of `scripts/train.py` in a process group of its own.

    Args:
        folder: its output folder; the terminal's output goes to files there.
        settings: overrides, as Python writes their values.
        options: further command line options.
        environment: beside this process's own.
        prefix: a command that is given the training's as its arguments, and becomes it.

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

    @property
    def output(self) -> str:
        """What this command has said so far."""
        return self._output_file.read_bytes()[self.began_at_byte :].decode()

    @property
    def races(self) -> list[dict[str, Any]]:
        """The lines of races.jsonl; the last one may just be written."""
        file = self.run_folder / "races.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def children(self, part_of_command: str) -> list[psutil.Process]:
        """Living children, at any depth, with such a command line."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._family[child.pid] = child
                with contextlib.suppress(psutil.Error):
                    if part_of_command in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                        found.append(child)
        return found

    def collectors(self) -> list[psutil.Process]:
        """The collectors' processes."""
        return self.children("spawn_main")

    def games(self) -> list[psutil.Process]:
        """The game instances."""
        return self.children("simulated_game.py")

    def shared_memory(self) -> set[str]:
        """The shared memory that the main process maps, as paths."""
        maps = psutil.Process(self.process.pid).memory_maps()
        return {entry.path for entry in maps if entry.path.startswith("/dev/shm/trackmania_rl_")}

    def wait_for(self, condition: Callable[[], object], what: str, within_s: float = 60.0) -> float:
        """Wait until something is so; return the seconds that it took.

        Raises:
            TrainingFailedError: if the command ends, or it is not so within the time.
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
        """Wait for further races; return the seconds that it took."""
        n_races = len(self.races) + n_more
        return self.wait_for(lambda: len(self.races) >= n_races, f"{n_races} races", FIRST_RACE_WITHIN_S)

    def stop(self, number: signal.Signals, *, whole_group: bool = False) -> float:
        """Send a signal, wait for the end of the command and all that it started; return the seconds that it took."""
        self.children("")  # remembers them
        began_s = time.monotonic()
        (os.killpg if whole_group else os.kill)(self.process.pid, number)
        self.process.wait(ENDS_WITHIN_S)
        while self.survivors() and time.monotonic() - began_s < ENDS_WITHIN_S:
            time.sleep(0.02)
        return time.monotonic() - began_s

    def survivors(self) -> list[psutil.Process]:
        """Processes that this command has started and that still run."""
        return [p for p in self._family.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        self.children("")
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
