"""Opening the loggers that the setting `loggers` names."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Container
from typing import Final

from torchrl.record.loggers.common import Logger

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.parts import load_part
from trackmania_rl.runs import RunFolder
from trackmania_rl.settings import NamedPart, Settings, SettingsError
from trackmania_rl.telemetry.cycle_figures import trained_and_blind
from trackmania_rl.telemetry.figures import hyperparameters
from trackmania_rl.telemetry.loggers.background import InBackground
from trackmania_rl.telemetry.loggers.protocol import RunLogger

NEEDS_PACKAGE: Final = ("wandb", "mlflow", "trackio")
"""Loggers whose package, of the same name, is installed only by those who want it."""


def missing_packages(settings: Settings) -> list[str]:
    """Say of each logger whose package is not installed how to get it, in one line each."""
    return [
        f"loggers: {name!r} needs the package {name}, which is not installed: "
        f'python -m pip install "trackmania-rl[{name}]", or take {name!r} out of the setting loggers'
        for name in settings.telemetry.loggers
        if name in NEEDS_PACKAGE and importlib.util.find_spec(name) is None
    ]


def open_loggers(
    settings: Settings, folder: RunFolder, resumed_at_frame: int = 0, maps_with_times: Container[str] = ()
) -> list[RunLogger]:
    """Open the loggers of a run, and tell them its settings; each must be closed.

    Args:
        settings: of the run.
        folder: of the run.
        resumed_at_frame: where a resumed run goes on; 0 for one that begins. What was written beyond it is taken back
            where that is possible.
        maps_with_times: maps that have times to beat.

    Raises:
        UserError: if a logger cannot be opened; none is open then.
    """
    if missing := missing_packages(settings):
        raise UserError("; and ".join(missing))
    with contextlib.ExitStack() as if_one_fails:
        opened = []
        for name in settings.telemetry.loggers:
            logger: RunLogger
            if name == "tensorboard":
                logger = _tensorboard(settings, folder, resumed_at_frame, maps_with_times)
            else:
                logger = InBackground(str(name), _maker(name, folder, resumed_at_frame))
            if_one_fails.callback(logger.close)
            logger.log_settings(hyperparameters(settings))
            opened.append(logger)
        if_one_fails.pop_all()
        return opened


def _tensorboard(
    settings: Settings, folder: RunFolder, resumed_at_frame: int, maps_with_times: Container[str]
) -> RunLogger:
    from trackmania_rl.telemetry.loggers.tensorboard import TensorboardWriter

    cycle = settings.game.map_cycle
    map_names, blind_maps = (entry.map_name for entry in cycle), trained_and_blind(cycle)[1]
    return TensorboardWriter(folder.tensorboard, map_names, resumed_at_frame, maps_with_times, blind_maps)


def _maker(name: str | NamedPart, folder: RunFolder, resumed_at_frame: int) -> Callable[[], RunLogger]:
    """What makes a logger in its own thread; modules that need its package are imported there."""

    def make() -> RunLogger:
        from trackmania_rl.telemetry.loggers import of_torchrl, services

        goes_on = resumed_at_frame > 0
        match name:
            case "csv":
                return of_torchrl.CsvFiles(folder.path, resumed_at_frame)
            case "wandb":
                return services.WandbRun(folder, goes_on=goes_on)
            case "mlflow":
                return services.MlflowRun(folder, goes_on=goes_on)
            case "trackio":
                return services.TrackioRun(folder)
        return of_torchrl.TorchrlLogger(_own(name, folder))

    return make


def _own(name: str | NamedPart, folder: RunFolder) -> Logger:
    """A user's own logger.

    Raises:
        SettingsError: if it cannot be had, or is none of torchrl's.
    """
    part = load_part(name, "loggers")
    try:
        logger = part(exp_name=folder.path.name, log_dir=str(folder.path))
    except Exception as error:  # a user's own code can fail in any way; its error is what helps
        raise SettingsError(
            f"loggers = {str(name)!r} cannot be called with exp_name and log_dir: {type(error).__name__}: "
            f"{one_line(error)}"
        ) from error
    if not isinstance(logger, Logger):
        raise SettingsError(
            f"loggers = {str(name)!r} makes a {type(logger).__name__}; derive it from torchrl.record.loggers.Logger"
        )
    return logger
