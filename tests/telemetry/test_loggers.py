"""The loggers beside tensorboard: their records, resuming in the same run, and reports of faults."""

import contextlib
import errno
import json
import logging
import socket
import sqlite3
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from trackmania_rl.errors import UserError
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.settings import SettingsError, load_settings
from trackmania_rl.telemetry import loggers
from trackmania_rl.telemetry.films import write_gif
from trackmania_rl.telemetry.loggers import BackgroundLogger, missing_packages, open_loggers
from trackmania_rl.telemetry.video import VideoFile

MY_LOGGERS = """
from torchrl.record.loggers import CSVLogger
from torchrl.record.loggers.common import Logger

class KeepingLogger(Logger):
    made = []

    def _create_experiment(self):
        self.made.append(self)
        self.told = []

    def log_scalar(self, name, value, step=None):
        self.told.append((name, value, step))

    def log_video(self, name, video, step=None, **kwargs):
        self.told.append((name, tuple(video.shape), step))

    def log_hparams(self, cfg):
        self.told.append(("seed", cfg["seed"], None))

    def log_histogram(self, name, data, **kwargs):
        raise NotImplementedError

    def __repr__(self):
        return "KeepingLogger()"

class NoLogger:
    def __init__(self, exp_name, log_dir):
        pass

def needy():
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run's folder, with nothing of this machine's services in the environment."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where logins are kept
    (tmp_path / "my_logging_parts.py").write_text(MY_LOGGERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_logging_parts", raising=False)
    return RunFolder.create(tmp_path, "tested")


def settings_with(repository_root, *loggers):
    return load_settings(repository_root / "config_files" / "config.py", {"loggers": loggers, "username": "secret"})


def write_session(settings, folder, frames, resumed_at_frame=0):
    """Begin or resume a run, give the loggers one of everything, and end it."""
    film, recording = folder.path / "film.mp4", folder.path / "race.pt"
    write_gif(film.with_suffix(".gif"), [Image.new("RGB", (16, 12), colour) for colour in ("red", "blue")], 100)
    with VideoFile(film, 10) as video:
        video.write(np.zeros((12, 16, 4), np.uint8))
    torch.save({"actions": torch.arange(3)}, recording)
    (logger,) = open_loggers(settings, folder, resumed_at_frame)
    for frame in frames:
        logger.do("figures", {"learner/loss": frame / 2, "meters/explored/flat 2": 3.0}, frame)
    logger.do("histogram", "weights/layer", torch.linspace(0, 1, 30), frames[-1])
    logger.do("picture", "racing_line/flat 2", np.zeros((20, 30, 3), np.uint8), frames[-1])
    logger.do("film", "film/flat 2", film, frames[-1])
    logger.do("recording", "recording/flat 2", recording, frames[-1])
    logger.do("text", "configuration/config.py", "batch_size = 64  # <b>\n", frames[-1])
    logger.do("flush")
    logger.close()


@pytest.fixture
def no_complaint(caplog):
    with caplog.at_level(logging.WARNING):
        yield
    assert [record.getMessage() for record in caplog.records if record.name.startswith("trackmania_rl")] == []


@pytest.mark.usefixtures("no_complaint")
def test_csv_files_go_on_without_the_lines_after_the_checkpoint(repository_root, folder):
    settings = settings_with(repository_root, "csv")
    write_session(settings, folder, range(1, 5))
    with (folder.path / "csv" / "scalars" / "learner" / "loss.csv").open("a") as file:
        file.write("4,")  # a power cut
    write_session(settings, folder, range(3, 5), resumed_at_frame=2)
    written = (folder.path / "csv" / "scalars" / "learner" / "loss.csv").read_text().splitlines()
    assert written == ["1,0.5", "2,1.0", "3,1.5", "4,2.0"]
    assert (folder.path / "csv" / "scalars" / "meters" / "explored" / "flat 2.csv").is_file()
    (settings_file,) = (folder.path / "csv" / "texts").iterdir()
    assert {"batch_size: 64", 'loggers: ["csv"]'} <= set(settings_file.read_text().splitlines())


def test_names_that_lead_out_of_the_run_are_left_out(repository_root, folder, caplog):
    (logger,) = open_loggers(settings_with(repository_root, "csv"), folder)
    for name in ("../../../evil", "/evil", "a\\evil", "rollout/../../evil", "evil\n"):
        logger.do("figures", {name: 1.0, "good": 2.0}, 1)
        logger.do("picture", name, None, 1)
    logger.close()
    assert not list(folder.path.parent.parent.rglob("*evil*"))
    assert (folder.path / "csv" / "scalars" / "good.csv").is_file()
    assert "'../../../evil' is no name of a figure" in caplog.text
    assert len(caplog.messages) == 5


@pytest.mark.usefixtures("no_complaint")
def test_a_users_own_logger_is_given_all_that_torchrls_take(repository_root, folder):
    write_session(settings_with(repository_root, "my_logging_parts:KeepingLogger"), folder, range(1, 3))
    (logger,) = sys.modules["my_logging_parts"].KeepingLogger.made
    assert (logger.exp_name, logger.log_dir) == ("tested", str(folder.path))
    assert logger.told == [
        ("seed", 0, None),
        ("learner/loss", 0.5, 1),
        ("meters/explored/flat 2", 3.0, 1),
        ("learner/loss", 1.0, 2),
        ("meters/explored/flat 2", 3.0, 2),
        ("film/flat 2", (1, 2, 3, 12, 16), 2),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoLogger", "makes a NoLogger; derive it from torchrl.record.loggers.Logger"),
        ("needy", "cannot be called with exp_name and log_dir: TypeError: "),
        ("Missing", "my_logging_parts.py has no Missing"),
    ],
)
def test_parts_that_are_no_loggers_are_refused(repository_root, folder, name, message):
    settings = settings_with(repository_root, "csv", f"my_logging_parts:{name}")
    others = {*threading.enumerate()}
    with pytest.raises(SettingsError, match=message) as caught:
        open_loggers(settings, folder)
    assert "\n" not in str(caught.value)
    new = {*threading.enumerate()} - others
    assert not any(thread.name.endswith(" logger") for thread in new), "csv's was closed"


def test_a_missing_package_is_named(repository_root, folder, monkeypatch):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda _: None)
    for name in loggers.NEEDS_PACKAGE:
        settings = settings_with(repository_root, "csv", name)
        (message,) = missing_packages(settings)
        assert (
            f'needs the package {name}, which is not installed: python -m pip install "trackmania-rl[{name}]"'
            in message
        )
        with pytest.raises(UserError, match=rf'pip install "trackmania-rl\[{name}\]"'):
            open_loggers(settings, folder)
    assert open_loggers(settings_with(repository_root), folder) == [], "no logger needs none"


class FailingLogger:
    """Fails at its second figure until it is opened again; slowly, if it may not go on."""

    def __init__(self, may_go_on=True):
        self.may_go_on = threading.Event()
        if may_go_on:
            self.may_go_on.set()
        self.is_full = False
        self.steps = []

    def open(self):
        self.is_full = False
        return {"figures": self.log_figures, "reopen": self.open, "close": self.close}

    def log_figures(self, _, step):
        self.may_go_on.wait(60)
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space\nleft")
        self.steps.append(step)
        self.is_full = step == 1

    def close(self):
        raise ConnectionError("still gone")


def log_frames(made, n_frames):
    logger = BackgroundLogger("mine", made.open)
    for frame in range(n_frames):
        logger.do("figures", {"a": 1.0}, frame)
    return logger


def test_a_logger_whose_disk_was_full_is_opened_again(caplog):
    made = FailingLogger()
    log_frames(made, 5).close()
    assert made.steps == [0, 1, 3, 4]
    told = "mine does not take the run's figures: OSError: [Errno 28] No space left; the run goes on"
    assert caplog.text.count(told) == 1


def test_a_logger_that_is_slow_or_hangs_costs_its_figures_only(monkeypatch, caplog):
    monkeypatch.setattr(loggers, "MOST_WAITING", 3)
    monkeypatch.setattr(loggers, "CLOSE_TIMEOUT_S", 0.1)
    made = FailingLogger(may_go_on=False)
    logger = log_frames(made, 10)
    assert "mine does not take the run's figures: it is too slow" in caplog.text
    logger.close()
    assert "mine: did not take the last figures within 0.1 s" in caplog.text
    made.may_go_on.set()


@pytest.mark.slow
@pytest.mark.usefixtures("no_complaint")
def test_a_local_store_of_mlflow(repository_root, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.below(Path(), folder.path.name)  # a relative --output-folder
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: python -m pip install mlflow")
    pytest.importorskip("sqlalchemy", reason="a local store of mlflow needs sqlalchemy")
    write_session(settings_with(repository_root, "mlflow"), folder, range(1, 5))
    edited = settings_with(repository_root, "mlflow").flat() | {"batch_size": 256}
    settings = load_settings(repository_root / "config_files" / "config.py", edited)
    write_session(settings, folder, range(3, 7), resumed_at_frame=2)
    database = sqlite3.connect(tmp_path / "mlflow" / "mlflow.db")
    with contextlib.closing(database):
        (run,) = database.execute("select run_uuid, name, status from runs").fetchall()
        losses = database.execute("select step, value from metrics where key = 'learner/loss' order by timestamp, step")
        assert {step for step, _ in losses} == set(range(1, 7))
    assert run[1:] == ("tested", "FINISHED")
    client = mlflow.MlflowClient()
    data = client.get_run(run[0]).data
    assert (data.params["batch_size"], data.tags["batch_size"]) == ("64", "256")
    assert [artifact.path for artifact in client.list_artifacts(run[0], "films")] == ["films/film.mp4"]
    assert [artifact.path for artifact in client.list_artifacts(run[0], "recordings")] == ["recordings/race.pt"]
    texts = [artifact.path for artifact in client.list_artifacts(run[0], "configuration")]
    assert texts == [f"configuration/{frames:012d}_config.py.txt" for frames in (4, 6)]
    assert client.list_artifacts(run[0], "images")


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["http://127.0.0.1:1", "sqlite:////dev/null/mlflow.db"])
def test_a_store_of_mlflow_that_cannot_be_used(repository_root, folder, uri, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed: python -m pip install mlflow")
    pytest.importorskip("sqlalchemy", reason="a local store of mlflow needs sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match=f"mlflow cannot use the store {uri}: .*MLFLOW_TRACKING_URI") as caught:
        open_loggers(settings_with(repository_root, "mlflow"), folder)
    assert "\n" not in str(caught.value)


@pytest.fixture
def wandb():
    """The package; what it keeps of one run in this process is forgotten."""
    package = pytest.importorskip("wandb", reason="wandb is not installed: python -m pip install wandb")
    yield package
    package.teardown()


@pytest.mark.slow
@pytest.mark.usefixtures("no_complaint")
def test_wandb_offline(repository_root, folder, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(socket, "gethostname", lambda: "name-of-my-machine")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--my-argument"])
    settings = settings_with(repository_root, "wandb")
    write_session(settings, folder, range(1, 5))
    number = (folder.path / "wandb_run.txt").read_text().strip()
    write_session(settings, folder, range(3, 7), resumed_at_frame=2)
    wandb.teardown()  # as at the end of a program: its own process may still be writing
    files = sorted((folder.path / "wandb").glob(f"offline-run-*/run-{number}.wandb"))
    assert len(files) == 2, "two sessions of one run"
    for word in ("name-of-my-machine", "--my-argument", sys.executable, "torch=="):
        assert word.encode() not in files[0].read_bytes()
    resumed = files[1].read_bytes()
    for name in ("learner/loss", "weights/layer", "racing_line/flat 2", "film/flat 2", "configuration/config.py"):
        assert name.encode() in resumed


@pytest.mark.slow
@pytest.mark.usefixtures("wandb")
def test_wandb_without_a_login(repository_root, folder, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(
        UserError, match=r"wandb cannot be used: .*log in with `wandb login`.*WANDB_MODE=offline"
    ) as caught:
        open_loggers(settings_with(repository_root, "wandb"), folder)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_complaint")
def test_trackio_on_this_machine(repository_root, folder, tmp_path):
    pytest.importorskip("trackio", reason="trackio is not installed: python -m pip install trackio")
    settings = settings_with(repository_root, "trackio")
    write_session(settings, folder, range(1, 5))
    write_session(settings, folder, range(3, 7), resumed_at_frame=2)
    (file,) = tmp_path.rglob("trackmania_rl.db")
    with contextlib.closing(sqlite3.connect(file)) as database:
        told = database.execute("select step, metrics from metrics where run_name = 'tested'").fetchall()
    assert {step for step, values in told if "learner/loss" in json.loads(values)} == set(range(1, 7))
    assert b"film/flat 2" in b"".join(values for _, values in told)
