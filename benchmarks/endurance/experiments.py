"""A small, quick training to disturb, on a straight of 60 m that many races finish; and results of experiments."""

from __future__ import annotations

import contextlib
import shutil
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.training_command import MOST_GAMES, TrainCommand
from trackmania_rl.errors import ExitCode
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port

LINE_M: Final = 60.0
CHECKPOINT_INTERVAL_S: Final = 2.0
ENTRY: Final = {"map_name": "straight", "map_path": "straight.npy", "reference_line": "straight.npy"}
SETTINGS: Final[Mapping[str, object]] = {
    "use_torch_compile": False,  # half a minute at each start
    "n_collectors": 2,
    "games_per_collector": 2,
    "map_cycle": (
        {**ENTRY, "is_explo": True, "fill_buffer": True, "repeat": 3},
        {**ENTRY, "is_explo": False, "fill_buffer": True, "repeat": 1},
    ),
    "cutoff_race_longer_than_ms": 20_000,
    "memory_size_schedule": ((0, 20_000),),
    "memory_size_start_learn_schedule": ((0, 300),),
    "checkpoint_interval_s": CHECKPOINT_INTERVAL_S,
}


class MissingError(Exception):
    """An experiment needs something that this machine lacks."""


@dataclass
class Outcome:
    """One row of the table."""

    what: str
    promised: str
    tries: int = 0
    survived: int = 0  # tries that went as promised
    measured: str = ""
    failures: list[str] = field(default_factory=list)

    def count(self, failure: str | None) -> None:
        """Count a try; None is a success."""
        self.tries += 1
        if failure is None:
            self.survived += 1
        else:
            self.failures.append(failure)


def tried(what: str, promised: str, experiment: Callable[[Path], str], folder: Path) -> Outcome:
    """Run an experiment once in an empty folder. It returns measured figures as text; an exception is a failure."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = Outcome(what, promised)
    try:
        outcome.measured = experiment(folder)
    except MissingError as error:
        outcome.measured = f"not tried: {error}"
    except Exception as error:  # the other experiments continue
        outcome.count("".join(traceback.format_exception(error))[-4000:])
    else:
        outcome.count(None)
    return outcome


class DisturbedRun:
    """One run that is started repeatedly with the same settings: `SETTINGS`, changed by keyword arguments."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        maps = folder / "maps"
        maps.mkdir(parents=True, exist_ok=True)
        along_m = np.arange(0, LINE_M, 0.5)
        np.save(maps / "straight.npy", along_m[:, None] * np.array([0.0, 0.0, 1.0]) + (0, 100, 0))
        all_settings = {**SETTINGS, "maps_folder": str(maps), "base_tmi_port": find_free_port(MOST_GAMES), **settings}
        self._settings = {name: repr(value) for name, value in all_settings.items()}

    def start(
        self, *options: str, environment: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> TrainCommand:
        """Start the training; the arguments are those of `TrainCommand`."""
        return TrainCommand(self.folder, self._settings, options, environment, prefix)


def end_in_order(command: TrainCommand) -> None:
    """End a training by SIGTERM and require exit code 0 and no surviving process."""
    command.stop(signal.SIGTERM)
    assert command.process.returncode == ExitCode.DONE, f"exit code {command.process.returncode}: {command.output}"
    assert not command.survivors(), f"these live on: {command.survivors()}"


def checkpoints(command: TrainCommand) -> dict[int, float]:
    """Return complete checkpoints by number, with their modification times."""
    found = {}
    for path in (command.run_folder / "checkpoints").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
            if path.name.isdigit():
                found[int(path.name)] = path.stat().st_mtime
    return found


def newest_checkpoint(command: TrainCommand) -> int:
    """Return the newest checkpoint's number, 0 without one."""
    return max(checkpoints(command), default=0)


def wait_for_checkpoint(command: TrainCommand, after: int = 0, within_s: float = 60.0) -> float:
    """Wait for a checkpoint newer than number `after`; return the seconds."""
    return command.wait_for(lambda: newest_checkpoint(command) > after, "a checkpoint", within_s)
