"""The training that is tormented: small and quick, on a straight of 60 m that many of its races finish."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


class TormentedRun:
    """One run, started again and again with the same settings.

    Args:
        folder: for all that it writes.
        settings: beside `SETTINGS`.
    """

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
        """Start the command, with further options of its own; see `TrainCommand`."""
        return TrainCommand(self.folder, self._settings, options, environment, prefix)

    @contextmanager
    def training(
        self, *options: str, environment: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> Iterator[TrainCommand]:
        """Start the command; it ends with the context, however that ends."""
        command = self.start(*options, environment=environment, prefix=prefix)
        try:
            yield command
        finally:
            command.end()


def end_in_order(command: TrainCommand) -> None:
    """End a training as SIGTERM does; nothing may be left."""
    command.stop(signal.SIGTERM)
    assert command.process.returncode == ExitCode.DONE, f"exit code {command.process.returncode}: {command.output}"
    assert not command.survivors(), f"these live on: {command.survivors()}"
