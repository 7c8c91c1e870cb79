"""torchrl's loggers of a run, each in a thread of its own, so that a slow or absent server does not block the training.

Steps are frames of the run. The services read their own environment variables (`WANDB_MODE`, `WANDB_PROJECT`,
`MLFLOW_TRACKING_URI`, `TRACKIO_SPACE_ID`). A resumed run continues the service's run, whose id is in the run's folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageSequence
from torchrl.record.loggers import get_logger
from torchrl.record.loggers.common import Logger
from torchrl.record.loggers.mlflow import MLFlowLogger
from typing_extensions import override

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import read_bounded_text
from trackmania_rl.parts import load_part
from trackmania_rl.runs import RunFolder
from trackmania_rl.settings import NamedPart, Settings, SettingsError
from trackmania_rl.telemetry.figures import hyperparameters

log = logging.getLogger(__name__)

NEEDS_PACKAGE: Final = ("wandb", "mlflow", "trackio")
PROJECT: Final = "trackmania_rl"
HISTOGRAM_BINS: Final = 64
MOST_WAITING: Final = 1000
"""Records that wait for a slow logger; further ones are dropped."""
COMPLAINS_EVERY_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 30.0
LOGIN_TIMEOUT_S: Final = 30.0
LONGEST_MLFLOW_PARAMETER: Final = 6000


class RunLogger:
    """Calls of a run on any of torchrl's loggers. Pictures, texts and files need a subclass."""

    def __init__(self, logger: Logger) -> None:
        self.logger: Any = logger

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Log figures by name."""
        self.logger.log_metrics(dict(figures), step=step)

    def log_histogram(self, name: str, values: torch.Tensor, step: int) -> None:
        """Log finite values (n,), on the CPU."""
        with contextlib.suppress(NotImplementedError):
            self.logger.log_histogram(name, values.numpy(), step=step, bins=HISTOGRAM_BINS)

    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        """Log a picture, (H, W, 3) uint8 RGB."""

    def log_film(self, name: str, film: Path, step: int) -> None:
        """Log an .mp4 file, here as the (1, T, 3, H, W) uint8 pictures of the smaller .gif file beside it."""
        with Image.open(film.with_suffix(".gif")) as frames:
            frames_per_s = round(1000 / frames.info["duration"])
            pictures = np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(frames)])
        video = torch.from_numpy(pictures).permute(0, 3, 1, 2).unsqueeze(0)
        with contextlib.suppress(NotImplementedError):
            self.logger.log_video(name, video, step=step, fps=frames_per_s)

    def log_recording(self, name: str, recording: Path, step: int) -> None:
        """Log the file of a race's columns."""

    def log_text(self, name: str, text: str, step: int) -> None:
        """Log a text."""

    def log_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Log the run's settings by name."""
        self.logger.log_hparams(dict(settings))

    def flush(self) -> None:
        """Write what is buffered."""

    def reopen(self) -> None:
        """Recover from an `OSError`."""

    def close(self) -> None:
        """Write what is left."""


class BackgroundLogger:
    """Logger in a thread. Its errors are logged, at most once a minute.

    Raises:
        Exception: any of `make`.
    """

    def __init__(self, name: str, make: Callable[[], RunLogger]) -> None:
        self._name = name
        self._waiting: queue.Queue[Callable[[RunLogger], object] | None] = queue.Queue(MOST_WAITING)
        self._complained_s = -COMPLAINS_EVERY_S
        is_open: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(make, is_open), name=f"{name} logger", daemon=True)
        self._thread.start()
        is_open.result()

    def do(self, work: Callable[[RunLogger], object]) -> None:
        """Queue a call of the logger; it is dropped if too many wait."""
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            self._complain("it is too slow, so that figures are left out")

    def close(self) -> None:
        """Flush what waits and close the logger. Abandon it after `CLOSE_TIMEOUT_S`."""
        ends_s = time.monotonic() + CLOSE_TIMEOUT_S
        with contextlib.suppress(queue.Full):  # logged below, as the thread still runs
            self._waiting.put(None, timeout=CLOSE_TIMEOUT_S)
        self._thread.join(max(0.0, ends_s - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s: did not take the last figures within %g s", self._name, CLOSE_TIMEOUT_S)

    def _run(self, make: Callable[[], RunLogger], is_open: Future[None]) -> None:
        try:
            logger = make()
        except BaseException as error:
            is_open.set_exception(error)
            return
        is_open.set_result(None)
        for work in self._calls():
            try:
                work(logger)
            except Exception as error:  # servers and users' own loggers may fail in any way; the run continues
                is_new = self._complain(f"{type(error).__name__}: {one_line(error)}")
                if is_new and isinstance(error, OSError):
                    with contextlib.suppress(OSError):
                        logger.reopen()

    def _calls(self) -> Iterator[Callable[[RunLogger], object]]:
        yield from iter(self._waiting.get, None)
        yield lambda logger: logger.close()

    def _complain(self, reason: str) -> bool:
        """Log an error unless one was logged just before; return whether it was logged."""
        now_s = time.monotonic()
        if now_s - self._complained_s < COMPLAINS_EVERY_S:
            return False
        self._complained_s = now_s
        log.error("%s does not take the run's figures: %s; the run goes on without them there", self._name, reason)
        return True


def missing_packages(settings: Settings) -> list[str]:
    """Return one line for each logger whose package is not installed."""
    return [
        f"loggers: {name!r} needs the package {name}, which is not installed: "
        f'python -m pip install "trackmania-rl[{name}]", or take {name!r} out of the setting loggers'
        for name in settings.telemetry.loggers
        if name in NEEDS_PACKAGE and importlib.util.find_spec(name) is None
    ]


def open_loggers(
    settings: Settings, folder: RunFolder, resumed_at_frame: int = 0, maps_with_times: Container[str] = ()
) -> list[BackgroundLogger]:
    """Open the loggers of the setting `loggers`, and log the settings. Each logger must be closed.

    Args:
        settings: of the run.
        folder: of the run.
        resumed_at_frame: where a resumed run continues; 0 for a new run. Records beyond it are removed from files.
        maps_with_times: maps that have times to beat.

    Raises:
        UserError: if a logger cannot be opened; none is open then.
    """
    if missing := missing_packages(settings):
        raise UserError("; and ".join(missing))
    is_resumed = resumed_at_frame > 0

    def make(name: str | NamedPart) -> RunLogger:
        match name:
            case "tensorboard":
                from trackmania_rl.telemetry.tensorboard import TensorboardRun

                return TensorboardRun(folder.tensorboard, settings.game.map_cycle, resumed_at_frame, maps_with_times)
            case "csv":
                return CsvRun(folder.path, resumed_at_frame)
            case "wandb":
                return WandbRun(folder, is_resumed)
            case "mlflow":
                return MlflowRun(folder, is_resumed)
            case "trackio":
                return TrackioRun(folder)
        return RunLogger(_own_logger(name, folder))

    with contextlib.ExitStack() as if_one_fails:
        opened = []
        for name in settings.telemetry.loggers:
            logger = BackgroundLogger(str(name), lambda name=name: make(name))  # type: ignore[misc]
            if_one_fails.callback(logger.close)
            logger.do(lambda logger: logger.log_settings(hyperparameters(settings)))
            opened.append(logger)
        if_one_fails.pop_all()
        return opened


def _own_logger(name: str | NamedPart, folder: RunFolder) -> Logger:
    part = load_part(name, "loggers")
    try:
        logger = part(exp_name=folder.path.name, log_dir=str(folder.path))
    except Exception as error:  # a user's own code can fail in any way
        raise SettingsError(
            f"loggers = {str(name)!r} cannot be called with exp_name and log_dir: {type(error).__name__}: "
            f"{one_line(error)}"
        ) from error
    if not isinstance(logger, Logger):
        raise SettingsError(
            f"loggers = {str(name)!r} makes a {type(logger).__name__}; derive it from torchrl.record.loggers.Logger"
        )
    return logger


@contextlib.contextmanager
def _explained(problem: str, advice: str) -> Iterator[None]:
    """Turn any error of a service, its database or its connection into a `UserError`."""
    try:
        yield
    except Exception as error:
        raise UserError(f"loggers: {problem}: {one_line(error)}; {advice}") from error


def _kept_id(file: Path, is_resumed: bool) -> str | None:
    return read_bounded_text(file, 1000).strip() or None if is_resumed and file.exists() else None


class CsvRun(RunLogger):
    """Files csv/scalars/{figure}.csv in a run's folder, with lines `frames,value`."""

    def __init__(self, run_folder: Path, resumed_at_frame: int) -> None:
        for file in (run_folder / "csv" / "scalars").rglob("*.csv"):
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
            # A power cut may have left the last line unfinished.
            kept = [line for line in lines if line.endswith("\n") and int(line.partition(",")[0]) <= resumed_at_frame]
            if len(kept) < len(lines):
                file.write_text("".join(kept), encoding="utf-8")
        super().__init__(get_logger("csv", str(run_folder), "csv"))

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures; torchrl's logger keeps every file open, and every figure in memory."""
        super().log_figures(figures, step)
        written = self.logger.experiment
        while written.files:
            written.files.popitem()[1].close()
        written.scalars.clear()

    def log_film(self, name: str, film: Path, step: int) -> None:
        """Do nothing: the film is in the run's folder."""


class ServiceRun(RunLogger):
    """A run of a service whose package has Image and Video, which are logged like figures."""

    def __init__(self, logger: Logger, package: Any) -> None:
        super().__init__(logger)
        self._package = package

    @override
    def log_figures(self, figures: Mapping[str, Any], step: int) -> None:
        self.logger.experiment.log(dict(figures), step=step)

    @override
    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        self.log_figures({name: self._package.Image(picture)}, step)

    @override
    def log_film(self, name: str, film: Path, step: int) -> None:
        self.log_figures({name: self._package.Video(str(film))}, step)

    @override
    def log_text(self, name: str, text: str, step: int) -> None:
        self.logger.log_str(name, text, step=step)

    @override
    def close(self) -> None:
        self.logger.experiment.finish()


class WandbRun(ServiceRun):
    """A run of Weights & Biases; offline (`WANDB_MODE=offline`) in the run's folder wandb/."""

    def __init__(self, folder: RunFolder, is_resumed: bool) -> None:
        import wandb

        kept = folder.path / "wandb_run.txt"
        settings = wandb.Settings(
            console="off",
            silent=True,  # no questions, and nothing printed into the live table
            init_timeout=LOGIN_TIMEOUT_S,
            login_timeout=LOGIN_TIMEOUT_S,
            host="",  # this and the following: no host name, command line, paths, packages, git remote or source code
            x_disable_meta=True,
            x_save_requirements=False,
            disable_git=True,
            disable_code=True,
        )
        wandb.setup(settings)
        how: dict[str, Any] = {
            "id": _kept_id(kept, is_resumed),
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "log_env_packages": False,
            "settings": settings,
        }
        with _explained(
            "wandb cannot be used",
            "log in with `wandb login`, look whether the server can be reached, or set the environment variable "
            "WANDB_MODE=offline and send the run later with `wandb sync`",
        ):
            super().__init__(get_logger("wandb", str(folder.path), folder.path.name, wandb_kwargs=how), wandb)
        kept.write_text(f"{self.logger.experiment.id}\n", encoding="utf-8")
        log.info("wandb: %s", self.logger.experiment.url or Path(self.logger.experiment.dir).parent)

    @override
    def log_figures(self, figures: Mapping[str, Any], step: int) -> None:
        self.logger.log_metrics(dict(figures), step=step)  # with a step axis that may go back after a resume

    @override
    def log_recording(self, name: str, recording: Path, step: int) -> None:
        artifact = self._package.Artifact(f"{self.logger.exp_name}-recordings", "recording", metadata={"frames": step})
        artifact.add_file(str(recording))
        self.logger.experiment.log_artifact(artifact)


class TrackioRun(ServiceRun):
    """A run of Trackio: on this machine, or in the space that `TRACKIO_SPACE_ID` names."""

    def __init__(self, folder: RunFolder) -> None:
        import trackio

        how = {"project": os.environ.get("TRACKIO_PROJECT", PROJECT), "embed": False}
        with _explained(
            "trackio cannot be used",
            "log in with `hf auth login`, or unset TRACKIO_SPACE_ID to keep the run on this machine",
        ):
            super().__init__(get_logger("trackio", "", folder.path.name, trackio_kwargs=how), trackio)


class MlflowRun(RunLogger):
    """A run of MLflow, in the store that `MLFLOW_TRACKING_URI` names, or in mlflow/mlflow.db beside save/."""

    def __init__(self, folder: RunFolder, is_resumed: bool) -> None:
        import mlflow

        self._mlflow = mlflow
        uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if uri is None:
            store = folder.path.absolute().parents[1] / "mlflow"
            store.mkdir(exist_ok=True)
            uri, artifacts = f"sqlite:///{(store / 'mlflow.db').as_posix()}", (store / "artifacts").as_uri()
        kept = folder.path / "mlflow_run.txt"
        run_id = _kept_id(kept, is_resumed)
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        if run_id is not None:
            os.environ.setdefault("MLFLOW_RUN_ID", run_id)  # MLflow's start_run reads and removes it
        with _explained(
            f"mlflow cannot use the store {uri}",
            "look whether the server can be reached, set the environment variable MLFLOW_TRACKING_URI to another one, "
            "or unset it for a store beside save/",
        ):
            project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            # get_logger takes a folder and no store
            super().__init__(MLFlowLogger(project, uri, artifact_location=artifacts))
            run = self.logger.experiment
            if run_id is None:
                mlflow.set_tag("mlflow.runName", folder.path.name)
        kept.write_text(f"{run.info.run_id}\n", encoding="utf-8")
        log.info("mlflow: run %s in %s", run.info.run_id, uri)

    @override
    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        self._mlflow.log_image(picture, key=name, step=step)

    @override
    def log_film(self, name: str, film: Path, step: int) -> None:
        self._mlflow.log_artifact(str(film), "films")

    @override
    def log_recording(self, name: str, recording: Path, step: int) -> None:
        self._mlflow.log_artifact(str(recording), "recordings")

    @override
    def log_text(self, name: str, text: str, step: int) -> None:
        folder, _, file = name.rpartition("/")
        self._mlflow.log_text(text, f"{folder}/{step:012d}_{file}.txt")

    @override
    def log_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Log parameters; settings that were edited later become tags, as parameters never change."""
        texts = {name: str(value)[:LONGEST_MLFLOW_PARAMETER] for name, value in settings.items()}
        logged = self._mlflow.get_run(self.logger.experiment.info.run_id).data.params
        self._mlflow.log_params({name: text for name, text in texts.items() if name not in logged})
        self._mlflow.set_tags({name: text for name, text in texts.items() if logged.get(name, text) != text})

    @override
    def close(self) -> None:
        self._mlflow.end_run()
