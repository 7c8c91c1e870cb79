"""Weights & Biases, MLflow and Trackio, through torchrl's classes.

Where figures go is said by each package's own variables: `WANDB_MODE`, `WANDB_PROJECT`, `WANDB_ENTITY`;
`MLFLOW_TRACKING_URI`; `TRACKIO_SPACE_ID`. Each run is one run there, which a resumed run goes on with: its number is
kept in the run's folder.
"""

from __future__ import annotations

import contextlib
import html
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torchrl.record.loggers.mlflow import MLFlowLogger
from torchrl.record.loggers.trackio import TrackioLogger
from torchrl.record.loggers.wandb import WandbLogger

from trackmania_rl.errors import UserError, one_line
from trackmania_rl.files import read_bounded_text
from trackmania_rl.runs import RunFolder
from trackmania_rl.telemetry.loggers.of_torchrl import HISTOGRAM_BINS, TorchrlLogger

log = logging.getLogger(__name__)

PROJECT: Final = "trackmania_rl"
"""What the runs stand under, unless a variable names something else."""
LOGIN_WITHIN_S: Final = 30.0
LONGEST_MLFLOW_PARAMETER: Final = 6000


class WandbRun(TorchrlLogger):
    """A run of Weights & Biases; offline (`WANDB_MODE=offline`) it lies in the run's folder wandb/.

    Args:
        folder: of the run.
        goes_on: whether it is the run that was begun there before.

    Raises:
        UserError: if nobody is logged in, or the server refuses or does not answer.
    """

    def __init__(self, folder: RunFolder, *, goes_on: bool) -> None:
        import wandb

        self._wandb = wandb
        kept = folder.path / "wandb_run.txt"
        # silent: no question is asked at the terminal, and nothing is printed into the live table.
        settings = wandb.Settings(
            console="off",
            silent=True,
            init_timeout=LOGIN_WITHIN_S,
            login_timeout=LOGIN_WITHIN_S,
            host="",  # this and the following: no host name, command line, paths, packages, git remote or source code
            x_disable_meta=True,
            x_save_requirements=False,
            disable_git=True,
            disable_code=True,
        )
        wandb.setup(settings)
        try:
            logger = WandbLogger(
                exp_name=folder.path.name,
                save_dir=str(folder.path),
                id=_kept_number(kept) if goes_on else None,
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                log_env_packages=False,
                settings=settings,
            )
        except (wandb.errors.Error, TimeoutError) as error:
            raise UserError(
                f"loggers: wandb cannot be used: {one_line(error)}; log in with `wandb login`, look whether the server "
                "can be reached, or set the environment variable WANDB_MODE=offline and send the run later with "
                "`wandb sync`"
            ) from error
        super().__init__(logger)
        kept.write_text(f"{self.logger.experiment.id}\n", encoding="utf-8")
        log.info("wandb: %s", self.logger.experiment.url or Path(self.logger.experiment.dir).parent)

    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        """See `RunLogger`."""
        self.logger.log_metrics({name: self._wandb.Image(picture)}, step=step)

    def log_film(self, name: str, film: Path, step: int) -> None:
        """See `RunLogger`."""
        self.logger.log_metrics({name: self._wandb.Video(str(film), format="mp4")}, step=step)

    def log_text(self, name: str, text: str, step: int) -> None:
        """See `RunLogger`."""
        page = f"<pre>{html.escape(text)}</pre>"
        self.logger.log_metrics({name: self._wandb.Html(page)}, step=step)

    def log_recording(self, name: str, recording: Path, step: int) -> None:
        """Keep it as a version of the artifact {run}-recordings."""
        artifact = self._wandb.Artifact(f"{self.logger.exp_name}-recordings", "recording", metadata={"frames": step})
        artifact.add_file(str(recording))
        self.logger.experiment.log_artifact(artifact)

    def close(self) -> None:
        """See `RunLogger`."""
        self.logger.experiment.finish()


class MlflowRun(TorchrlLogger):
    """A run of MLflow, in the store that `MLFLOW_TRACKING_URI` names, or in mlflow/mlflow.db beside save/.

    Args:
        folder: of the run.
        goes_on: whether it is the run that was begun there before.

    Raises:
        UserError: if the store cannot be used.
    """

    def __init__(self, folder: RunFolder, *, goes_on: bool) -> None:
        import mlflow

        self._mlflow = mlflow
        kept = folder.path / "mlflow_run.txt"
        uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if uri is None:
            store = folder.path.absolute().parents[1] / "mlflow"
            store.mkdir(exist_ok=True)
            uri, artifacts = f"sqlite:///{(store / 'mlflow.db').as_posix()}", (store / "artifacts").as_uri()
        number = _kept_number(kept) if goes_on else None
        to_go_on = {} if number is None else {"MLFLOW_RUN_ID": number}  # as MLflow's start_run has it
        try:
            with _environment({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"} | to_go_on):
                project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
                super().__init__(MLFlowLogger(project, uri, artifact_location=artifacts))
            run = self.logger.experiment
            if number is None:
                mlflow.set_tag("mlflow.runName", folder.path.name)
        except Exception as error:  # MLflow's, its database's or its connection's own
            raise UserError(
                f"loggers: mlflow cannot use the store {uri}: {one_line(error)}; look whether the server can be "
                "reached, set the environment variable MLFLOW_TRACKING_URI to another one, or unset it for a store "
                "beside save/"
            ) from error
        kept.write_text(f"{run.info.run_id}\n", encoding="utf-8")
        log.info("mlflow: run %s in %s", run.info.run_id, uri)

    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        """See `RunLogger`."""
        self._mlflow.log_image(picture, key=name, step=step)

    def log_film(self, name: str, film: Path, step: int) -> None:
        """See `RunLogger`."""
        self._mlflow.log_artifact(str(film), "films")

    def log_recording(self, name: str, recording: Path, step: int) -> None:
        """See `RunLogger`."""
        self._mlflow.log_artifact(str(recording), "recordings")

    def log_text(self, name: str, text: str, step: int) -> None:
        """Keep it as an artifact, whose name begins with the frames."""
        folder, _, file = name.rpartition("/")
        self._mlflow.log_text(text, f"{folder}/{step:012d}_{file}.txt")

    def log_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Log them as parameters; those that were edited since the run began are tags, as parameters never change.

        torchrl's own way would need omegaconf.
        """
        texts = {name: str(value)[:LONGEST_MLFLOW_PARAMETER] for name, value in settings.items()}
        begun_with = self._mlflow.get_run(self.logger.experiment.info.run_id).data.params
        self._mlflow.log_params({name: text for name, text in texts.items() if name not in begun_with})
        edited = {name: text for name, text in texts.items() if begun_with.get(name, text) != text}
        self._mlflow.set_tags(edited)

    def close(self) -> None:
        """See `RunLogger`."""
        self._mlflow.end_run()


class TrackioRun(TorchrlLogger):
    """A run of Trackio: on this machine, or in the space that `TRACKIO_SPACE_ID` names.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        import trackio

        self._trackio = trackio
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        try:
            super().__init__(TrackioLogger(exp_name=folder.path.name, project=project, embed=False))
        except Exception as error:  # of the space's server, or of its connection
            raise UserError(
                f"loggers: trackio cannot be used: {one_line(error)}; log in with `hf auth login`, or unset "
                "TRACKIO_SPACE_ID to keep the run on this machine"
            ) from error

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """See `RunLogger`; all at once, where torchrl's class would send each alone."""
        self.logger.experiment.log(dict(figures), step=step)

    def log_histogram(self, name: str, values: torch.Tensor, step: int) -> None:
        """See `RunLogger`."""
        self.logger.log_histogram(name, values.numpy(), step=step, bins=HISTOGRAM_BINS)

    def log_picture(self, name: str, picture: npt.NDArray[np.uint8], step: int) -> None:
        """See `RunLogger`."""
        self.logger.experiment.log({name: self._trackio.Image(picture)}, step=step)

    def log_film(self, name: str, film: Path, step: int) -> None:
        """See `RunLogger`."""
        self.logger.experiment.log({name: self._trackio.Video(str(film))}, step=step)

    def log_text(self, name: str, text: str, step: int) -> None:
        """See `RunLogger`; as a table of its lines, as torchrl's class has texts."""
        self.logger.log_str(name, text, step=step)

    def close(self) -> None:
        """See `RunLogger`."""
        self.logger.experiment.finish()


def _kept_number(file: Path) -> str | None:
    """The run's number at a service; None if it has none yet."""
    return read_bounded_text(file, 1000).strip() or None if file.exists() else None


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while; those that a user has set stay as they are."""
    own: dict[str, Any] = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
