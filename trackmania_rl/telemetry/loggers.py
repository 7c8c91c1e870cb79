"""A run's torchrl loggers, each in a separate thread, so a slow or absent server does not block the training.

Steps are the run's frames. The services read environment variables (`WANDB_MODE`, `MLFLOW_TRACKING_URI`,
`TRACKIO_SPACE_ID`...). A resumed run continues the service's run, whose id is in the run's folder.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image, ImageSequence
from torchrl.record.loggers import get_logger
from torchrl.record.loggers.common import Logger
from torchrl.record.loggers.mlflow import MLFlowLogger

from trackmania_rl.errors import UserError, one_line, warn_once
from trackmania_rl.files import check_name, read_bounded_text
from trackmania_rl.parts import load_part
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.settings import NamedPart, Settings, SettingsError
from trackmania_rl.telemetry.figures import chart_layout, hyperparameters

log = logging.getLogger(__name__)

NEEDS_PACKAGE: Final = ("wandb", "mlflow", "trackio")
PROJECT: Final = "trackmania_rl"
HISTOGRAM_BINS: Final = 64
MOST_WAITING: Final = 1000
"""Most records that wait for a slow logger; further ones are dropped."""
COMPLAINS_EVERY_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 30.0
LOGIN_TIMEOUT_S: Final = 30.0
LONGEST_MLFLOW_PARAMETER: Final = 6000
RESULTS: Final = ("best_time_s", "median_time_s", "finish_rate")
"""Figures by which tensorboard's page "HParams" compares runs."""

Calls = Mapping[str, Callable[..., object]]
"""A logger's calls by record kind; it does not take other kinds.

figures(figures by name, step), histogram(name, finite values (n,) on the CPU, step),
picture(name, (H, W, 3) uint8 RGB, step), film(name, .mp4 file with a smaller .gif beside it, step),
recording(name, file, step), text(name, text, step), settings(values by name), flush(), close(), and reopen(), which
returns the calls after an `OSError`.
"""


NAMED: Final = ("histogram", "picture", "film", "recording", "text")
"""Record kinds that begin with a name."""


class BackgroundLogger:
    """Logger in a thread, made from the calls that `make` returns. Errors are logged, at most once a minute."""

    def __init__(self, name: str, make: Callable[[], Calls]) -> None:
        self._name = name
        self._waiting: queue.Queue[tuple[Any, ...]] = queue.Queue(MOST_WAITING)
        self._complained_s = -COMPLAINS_EVERY_S
        is_open: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(make, is_open), name=f"{name} logger", daemon=True)
        self._thread.start()
        is_open.result()

    def do(self, kind: str, *record: object) -> None:
        """Queue one of the `Calls`. It is dropped if too many wait, and without a valid name (`check_name`)."""
        if kind == "figures":
            figures, step = record
            record = ({name: value for name, value in figures.items() if _is_valid(name)}, step)  # type: ignore[attr-defined]
        elif kind in NAMED and not _is_valid(str(record[0])):
            return
        try:
            self._waiting.put_nowait((kind, *record))
        except queue.Full:
            self._complain("it is too slow, so that figures are left out")

    def close(self) -> None:
        """Flush and close the logger. Abandon it after `CLOSE_TIMEOUT_S`."""
        ends_s = time.monotonic() + CLOSE_TIMEOUT_S
        with contextlib.suppress(queue.Full):  # logged below, as the thread still runs
            self._waiting.put(("close",), timeout=CLOSE_TIMEOUT_S)
        self._thread.join(max(0.0, ends_s - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s: did not take the last figures within %g s", self._name, CLOSE_TIMEOUT_S)

    def _run(self, make: Callable[[], Calls], is_open: Future[None]) -> None:
        try:
            calls = make()
        except BaseException as error:
            is_open.set_exception(error)
            return
        is_open.set_result(None)
        kind = ""
        while kind != "close":
            kind, *record = self._waiting.get()
            try:
                if kind in calls:
                    calls[kind](*record)
            except NotImplementedError:  # torchrl's loggers for kinds that they do not take
                pass
            except Exception as error:  # servers and users' loggers may fail in any way; the run continues
                is_new = self._complain(f"{type(error).__name__}: {one_line(error)}")
                if is_new and isinstance(error, OSError) and "reopen" in calls:
                    with contextlib.suppress(OSError):
                        calls = calls["reopen"]()  # type: ignore[assignment]

    def _complain(self, reason: str) -> bool:
        """Log an error and return True, unless one was logged just before."""
        now_s = time.monotonic()
        if now_s - self._complained_s < COMPLAINS_EVERY_S:
            return False
        self._complained_s = now_s
        log.error("%s does not take the run's figures: %s; the run goes on without them there", self._name, reason)
        return True


def _is_valid(name: str) -> bool:
    try:
        check_name(name)
    except ValueError as error:
        warn_once(f"a figure is left out: {error}", log)
        return False
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
    """Open the loggers in the setting `loggers`, and log the settings. Each logger must be closed.

    Args:
        settings: run settings.
        folder: run folder.
        resumed_at_frame: 0 for a new run. Records beyond it are removed from files.
        maps_with_times: maps that have times to beat.

    Raises:
        UserError: if a logger cannot be opened; none is open then.
    """
    if missing := missing_packages(settings):
        raise UserError("; and ".join(missing))
    run = _Run(settings, folder, resumed_at_frame, maps_with_times)
    with contextlib.ExitStack() as if_one_fails:
        opened = []
        for name in settings.telemetry.loggers:
            make = SERVICES.get(str(name), lambda run, name=name: _calls_of(_own_logger(name, run.folder)))
            logger = BackgroundLogger(str(name), lambda make=make: make(run))  # type: ignore[misc]
            if_one_fails.callback(logger.close)
            logger.do("settings", hyperparameters(settings))
            opened.append(logger)
        if_one_fails.pop_all()
        return opened


@dataclass(frozen=True)
class _Run:
    settings: Settings
    folder: RunFolder
    resumed_at_frame: int
    maps_with_times: Container[str]

    def kept_id(self, file_name: str) -> str | None:
        """Return a service's id for a resumed run."""
        file = self.folder.path / file_name
        is_resumed = self.resumed_at_frame > 0 and file.exists()
        return read_bounded_text(file, 1000).strip() or None if is_resumed else None

    def keep_id(self, file_name: str, run_id: str) -> None:
        (self.folder.path / file_name).write_text(f"{run_id}\n", encoding="utf-8")


def _calls_of(logger: Any) -> dict[str, Callable[..., object]]:
    def log_film(name: str, film: Path, step: int) -> None:
        with Image.open(film.with_suffix(".gif")) as frames:
            frames_per_s = round(1000 / frames.info["duration"])
            pictures = np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(frames)])
        video = torch.from_numpy(pictures).permute(0, 3, 1, 2).unsqueeze(0)  # (1, T, 3, H, W)
        logger.log_video(name, video, step=step, fps=frames_per_s)

    return {
        "figures": logger.log_metrics,
        "histogram": lambda name, values, step: logger.log_histogram(
            name, values.numpy(), step=step, bins=HISTOGRAM_BINS
        ),
        "film": log_film,
        "settings": logger.log_hparams,
    }


def _own_logger(name: str | NamedPart, folder: RunFolder) -> Logger:
    part = load_part(name, "loggers")
    try:
        logger = part(exp_name=folder.path.name, log_dir=str(folder.path))
    except Exception as error:  # user code can fail in any way
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
    try:
        yield
    except Exception as error:
        raise UserError(f"loggers: {problem}: {one_line(error)}; {advice}") from error


def _tensorboard(run: _Run) -> Calls:
    """Open event files with a chart layout. Films are .gif pictures, as tensorboard plays no videos."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # slow to import
    from tensorboard.compat.proto.summary_pb2 import Summary
    from torch.utils.tensorboard.summary import hparams

    map_cycle = run.settings.game.map_cycle
    logger = get_logger("tensorboard", str(run.folder.tensorboard.parent), run.folder.tensorboard.name)
    writer: Any = logger.experiment  # type: ignore[union-attr]
    writer.add_custom_scalars(chart_layout(map_cycle, run.maps_with_times))
    files, step = writer.file_writer, run.resumed_at_frame + 1
    if run.resumed_at_frame > 0:  # as SummaryWriter's purge_step
        files.add_event(Event(step=step, file_version="brain.Event:2"))
        files.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def log_figures(figures: Mapping[str, float], step: int) -> None:
        """Write one event, which takes half as much space as many."""
        if figures:
            files.add_summary(Summary(value=[Summary.Value(tag=t, simple_value=v) for t, v in figures.items()]), step)

    def log_film(name: str, film: Path, step: int) -> None:
        small = film.with_suffix(".gif")
        with Image.open(small) as first:
            width_px, height_px = first.size
        image = Summary.Image(height=height_px, width=width_px, colorspace=3, encoded_image_string=small.read_bytes())
        files.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def log_settings(values: Mapping[str, Any]) -> None:
        """Write the page "HParams", with evaluation results."""
        results = {f"rollout/{figure}/evaluated/{e.map_name}": 0.0 for e in map_cycle for figure in RESULTS}
        for summary in hparams(dict(values), results):
            files.add_summary(summary)

    return {
        "figures": log_figures,
        "histogram": lambda name, values, step: writer.add_histogram(name, values, step),
        "picture": lambda name, picture, step: writer.add_image(name, picture, step, dataformats="HWC"),
        "film": log_film,
        "text": lambda name, text, step: writer.add_text(name, f"```\n{text}\n```", step),
        "settings": log_settings,
        "flush": writer.flush,
        "reopen": lambda: _tensorboard(replace(run, resumed_at_frame=0)),  # the writer never writes after an error
        "close": writer.close,
    }


def _csv(run: _Run) -> Calls:
    """Write csv/scalars/{figure}.csv in a run's folder, with lines `frames,value`."""
    for file in (run.folder.path / "csv" / "scalars").rglob("*.csv"):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
        # A power cut may have left the last line unfinished.
        kept = [line for line in lines if line.endswith("\n") and int(line.partition(",")[0]) <= run.resumed_at_frame]
        if len(kept) < len(lines):
            file.write_text("".join(kept), encoding="utf-8")
    logger: Any = get_logger("csv", str(run.folder.path), "csv")

    def log_figures(figures: Mapping[str, float], step: int) -> None:
        """Write figures. torchrl's logger would keep every file open, and every figure in memory."""
        logger.log_metrics(figures, step)
        written = logger.experiment
        while written.files:
            written.files.popitem()[1].close()
        written.scalars.clear()

    return {"figures": log_figures, "settings": logger.log_hparams}


def _wandb(run: _Run) -> Calls:
    """Open a run of Weights & Biases, offline (`WANDB_MODE=offline`) in the run's folder."""
    import wandb

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
    how: dict[str, Any] = {"id": run.kept_id("wandb_run.txt"), "project": os.environ.get("WANDB_PROJECT", PROJECT)}
    with _explained(
        "wandb cannot be used",
        "log in with `wandb login`, look whether the server can be reached, or set the environment variable "
        "WANDB_MODE=offline and send the run later with `wandb sync`",
    ):
        how |= {"log_env_packages": False, "settings": settings}
        logger: Any = get_logger("wandb", str(run.folder.path), run.folder.path.name, wandb_kwargs=how)
    run.keep_id("wandb_run.txt", logger.experiment.id)
    log.info("wandb: %s", logger.experiment.url or Path(logger.experiment.dir).parent)

    def log_recording(_: str, recording: Path, step: int) -> None:
        artifact = wandb.Artifact(f"{logger.exp_name}-recordings", "recording", metadata={"frames": step})
        artifact.add_file(str(recording))
        logger.experiment.log_artifact(artifact)

    return _calls_of(logger) | {
        "picture": lambda name, picture, step: logger.log_metrics({name: wandb.Image(picture)}, step),
        "film": lambda name, film, step: logger.log_metrics({name: wandb.Video(str(film))}, step),
        "recording": log_recording,
        "text": logger.log_str,
        "close": logger.experiment.finish,
    }


def _trackio(run: _Run) -> Calls:
    """Open a Trackio run, on this machine or in `TRACKIO_SPACE_ID`."""
    import trackio

    how = {"project": os.environ.get("TRACKIO_PROJECT", PROJECT), "embed": False}
    with _explained(
        "trackio cannot be used",
        "log in with `hf auth login`, or unset TRACKIO_SPACE_ID to keep the run on this machine",
    ):
        logger: Any = get_logger("trackio", "", run.folder.path.name, trackio_kwargs=how)
    log_row = logger.experiment.log  # one row with all figures, where torchrl's logger writes one for each
    return _calls_of(logger) | {
        "figures": log_row,
        "picture": lambda name, picture, step: log_row({name: trackio.Image(picture)}, step),
        "film": lambda name, film, step: log_row({name: trackio.Video(str(film))}, step),
        "text": logger.log_str,
        "close": logger.experiment.finish,
    }


def _mlflow(run: _Run) -> Calls:
    """Open an MLflow run, in `MLFLOW_TRACKING_URI` or mlflow/mlflow.db beside save/."""
    import mlflow

    uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
    if uri is None:
        store = run.folder.path.absolute().parents[1] / "mlflow"
        store.mkdir(exist_ok=True)
        uri, artifacts = f"sqlite:///{(store / 'mlflow.db').as_posix()}", (store / "artifacts").as_uri()
    run_id = run.kept_id("mlflow_run.txt")
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
        logger: Any = MLFlowLogger(project, uri, artifact_location=artifacts)  # get_logger takes a folder and no store
        opened = logger.experiment.info.run_id
        if run_id is None:
            mlflow.set_tag("mlflow.runName", run.folder.path.name)
    run.keep_id("mlflow_run.txt", opened)
    log.info("mlflow: run %s in %s", opened, uri)

    def log_text(name: str, text: str, step: int) -> None:
        folder, _, file = name.rpartition("/")
        mlflow.log_text(text, f"{folder}/{step:012d}_{file}.txt")

    def log_settings(settings: Mapping[str, Any]) -> None:
        """Log parameters, which never change; edited settings become tags."""
        texts = {name: str(value)[:LONGEST_MLFLOW_PARAMETER] for name, value in settings.items()}
        logged = mlflow.get_run(opened).data.params
        mlflow.log_params({name: text for name, text in texts.items() if name not in logged})
        mlflow.set_tags({name: text for name, text in texts.items() if logged.get(name, text) != text})

    return {
        "figures": logger.log_metrics,
        "picture": lambda name, picture, step: mlflow.log_image(picture, key=name, step=step),
        "film": lambda _name, film, _step: mlflow.log_artifact(str(film), "films"),
        "recording": lambda _name, recording, _step: mlflow.log_artifact(str(recording), "recordings"),
        "text": log_text,
        "settings": log_settings,
        "close": mlflow.end_run,
    }


SERVICES: Final[Mapping[str, Callable[[_Run], Calls]]] = {
    "tensorboard": _tensorboard,
    "csv": _csv,
    "wandb": _wandb,
    "trackio": _trackio,
    "mlflow": _mlflow,
}
"""Loggers by the name in the setting. Any other name is a user's part."""
