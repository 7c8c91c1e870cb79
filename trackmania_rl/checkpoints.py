"""What a run leaves on disk: its folder, its checkpoint and its best races.

::

    save/{run_name}/
        config/                    the run's own configuration, edits to which are applied while it runs
        checkpoint.pt              everything needed to go on
        checkpoint.previous.pt     the one before
        best_runs/{map}_{time}/    input script, Q values and configuration of each record, and the best one's driver
        drivers/{frames}.driver    the driver on the way, see keep_driver_every_s
        races.jsonl                one line for each race
        seeds.json                 the run's seed, and those of the learner's parts
        pictures/                  what the driver expects and where it errs, with an index
        sessions.txt               how often the run was started
        train.log                  what was logged
        evaluation/                what scripts/evaluate.py wrote
        live/                      what can be seen of the games while it trains
        generated_tracks/          tracks that the collectors made for themselves
    tensorboard/{run_name}/        event files

A checkpoint is one file that is complete or not there: it is written under a temporary name, flushed to the disk and
then renamed. It holds tensors, numbers, texts, lists and dicts only and is read with `weights_only=True`, so a file
from somewhere else cannot run code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trackmania_rl.errors import UserError
from trackmania_rl.files import replace_patiently

FORMAT_VERSION = 2
CHECKPOINT_FILE = "checkpoint.pt"
PREVIOUS_CHECKPOINT_FILE = "checkpoint.previous.pt"
RACES_FILE = "races.jsonl"
FIRST_CHECKPOINT_AFTER_S = 15.0
"""How long after a new run's first finish its first checkpoint is written."""

log = logging.getLogger(__name__)


class CheckpointError(UserError):
    """A checkpoint that cannot be written or read; the text says which, why and what to do."""


class DiskTooFullError(CheckpointError):
    """A checkpoint that is larger than what the disk can spare; nothing was written."""


@dataclass(frozen=True)
class RunFolder:
    """Where each thing of a run lies.

    Attributes:
        path: save/{run_name}.
        tensorboard: tensorboard/{run_name}.
    """

    path: Path
    tensorboard: Path

    @classmethod
    def create(cls, root: Path, run_name: str) -> RunFolder:
        """The folders of a run below `root` (the project's folder), made where they do not exist.

        Raises:
            CheckpointError: if a folder cannot be made.
        """
        folder = cls.below(root, run_name)
        folder.make()
        return folder

    @classmethod
    def below(cls, root: Path, run_name: str) -> RunFolder:
        """The folders of a run below `root`, whether they are there or not."""
        return cls(path=root / "save" / run_name, tensorboard=root / "tensorboard" / run_name)

    def make(self) -> None:
        """Make the folders that are not there.

        Raises:
            CheckpointError: if one cannot be made.
        """
        for path in (self.config, self.best_runs, self.tensorboard):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(
                    f"cannot make the folder {path}: {error.strerror}; choose another place with --output-folder"
                ) from error

    @property
    def config(self) -> Path:
        """The run's own configuration files."""
        return self.path / "config"

    @property
    def best_runs(self) -> Path:
        """One folder for each record."""
        return self.path / "best_runs"

    @property
    def drivers(self) -> Path:
        """The driver on the way, one file for each moment."""
        return self.path / "drivers"

    @property
    def recordings(self) -> Path:
        """Evaluated races that were kept, and their films."""
        return self.path / "recordings"

    @property
    def pictures(self) -> Path:
        """What the driver expects, where it errs and how it drives, with an index."""
        return self.path / "pictures"

    @property
    def races(self) -> Path:
        """One JSON line for each race."""
        return self.path / RACES_FILE

    @property
    def seeds(self) -> Path:
        """The run's seed, and those of the learner's parts; collectors draw theirs by names of their own."""
        return self.path / "seeds.json"

    @property
    def sessions(self) -> Path:
        """How often the run was started."""
        return self.path / "sessions.txt"

    @property
    def log(self) -> Path:
        """What was logged."""
        return self.path / "train.log"

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint."""
        return self.path / CHECKPOINT_FILE

    @property
    def previous_checkpoint(self) -> Path:
        """The one before it."""
        return self.path / PREVIOUS_CHECKPOINT_FILE


def save_checkpoint(folder: Path, state: Mapping[str, Any], minimum_free_disk_mb: int) -> Path:
    """Writes a checkpoint; the newest one becomes the previous one. Whatever fails, the newest one stays as it was.

    The previous one is deleted first where the disk has room for three only without it.

    Args:
        folder: the run's folder.
        state: nested dicts and lists of tensors, numbers, texts, booleans and None.
        minimum_free_disk_mb: the disk must keep this much free after writing.

    Returns:
        The checkpoint's file.

    Raises:
        DiskTooFullError: if the disk is too full.
        CheckpointError: if it fails.
        TypeError: if the state holds something else; it could not be read back.
    """
    newest = folder / CHECKPOINT_FILE
    _write_whole(newest, state, minimum_free_disk_mb, old_becomes=folder / PREVIOUS_CHECKPOINT_FILE)
    return newest


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint's state, its tensors on the CPU; None only where there is no checkpoint at all.

    Raises:
        CheckpointError: if there is one but it cannot be read; the text names the older good one, if there is one.
    """
    newest, previous = folder / CHECKPOINT_FILE, folder / PREVIOUS_CHECKPOINT_FILE
    if newest.exists():
        try:
            return read_checkpoint(newest)
        except CheckpointError as error:
            raise CheckpointError(f"{error}. {_advice(newest, previous)}") from error
    if previous.exists():
        log.warning("%s is missing (a save was interrupted, or it was moved away); going on from %s", newest, previous)
        return read_checkpoint(previous)
    return None


def read_checkpoint(file: Path) -> dict[str, Any]:
    """One checkpoint file's state, its tensors on the CPU.

    Raises:
        CheckpointError: if it is damaged, or of a format that this version does not know.
    """
    try:
        with zipfile.ZipFile(file) as archive:  # torch.load does not compare the tensors' check sums
            damaged_part = archive.testzip()
        if damaged_part is not None:
            raise zipfile.BadZipFile(f"the check sum of {damaged_part} is wrong")
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes make the unpickler fail in any way; none may pass as "no checkpoint"
        raise CheckpointError(f"cannot read the checkpoint {file}: {_reason(error)}") from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"cannot read the checkpoint {file}: its format is {version!r}, this program reads format {FORMAT_VERSION}"
        )
    return content["state"]


def save_best_run(
    best_runs_folder: Path,
    map_name: str,
    race_time_ms: int,
    input_script: str,
    q_values: npt.NDArray[np.float32],
    config_folder: Path,
) -> Path:
    """Keeps a record: `{map}_{time}/` with `{map}_{time}.inputs`, `q_values.npy` and a copy of the configuration.

    Args:
        best_runs_folder: `RunFolder.best_runs`.
        map_name: the map cycle's name of the map.
        race_time_ms: the finish time.
        input_script: the race's inputs as TMInterface's `load` command reads them.
        q_values: (T, A) float32, the network's values of all actions at each decision.
        config_folder: the configuration in force; its Python files are copied.

    Returns:
        The record's folder. It appears complete, under its final name; one that exists already is left as it is.

    Raises:
        CheckpointError: if the disk is full or fails.
    """
    name = f"{map_name}_{race_time_ms}"
    folder, temporary = best_runs_folder / name, best_runs_folder / f".{name}.tmp"
    try:
        if folder.exists():
            return folder
        shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed here
        temporary.mkdir(parents=True)
        (temporary / f"{name}.inputs").write_text(input_script, encoding="utf-8")
        np.save(temporary / "q_values.npy", q_values, allow_pickle=False)
        (temporary / "config").mkdir()
        for file in sorted(config_folder.glob("*.py")):
            shutil.copyfile(file, temporary / "config" / file.name)
        replace_patiently(temporary, folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"cannot keep the record {folder}: {error.strerror}") from error
    return folder


def _advice(newest: Path, previous: Path) -> str:
    try:
        read_checkpoint(previous)
    except CheckpointError:
        return "No older good checkpoint is there: begin a new run under another run_name"
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(previous.stat().st_mtime))
    return (
        f"The one before it, {previous} of {written}, is good: to go on from there, move the damaged file away "
        f"(mv '{newest}' '{newest}.damaged') and start again"
    )


def _write_whole(
    file: Path, state: Mapping[str, Any], minimum_free_disk_mb: int, old_becomes: Path | None = None
) -> None:
    """Writes a file that is complete or not there, under a name of its own first.

    Args:
        file: its final name.
        state: what it holds.
        minimum_free_disk_mb: the disk must keep this much free after writing.
        old_becomes: another name for a file of this name that is there already; None to replace it.

    Raises:
        DiskTooFullError: if the disk is too full.
        CheckpointError: if it fails; the file that is there stays as it was.
        TypeError: if the state could not be read back.
    """
    _require_plain(state, "state")
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        for left_behind in file.parent.glob(f"*{file.suffix}.*.tmp"):  # by a process that was killed while it wrote
            left_behind.unlink(missing_ok=True)
        needed_bytes = _tensor_bytes(state)
        if old_becomes is not None and file.exists():
            _make_room(old_becomes, needed_bytes + minimum_free_disk_mb * 2**20)
        require_disk(file.parent, needed_bytes, minimum_free_disk_mb)
        with temporary.open("wb") as opened:
            torch.save({"format_version": FORMAT_VERSION, "state": dict(state)}, opened)
            opened.flush()
            os.fsync(opened.fileno())
        # Should the machine stop between these renames, `load_checkpoint` goes on from the previous one.
        kept_as = old_becomes if file.exists() else None
        if kept_as is not None:
            replace_patiently(file, kept_as)
        try:
            replace_patiently(temporary, file)
        except OSError:
            if kept_as is not None:
                replace_patiently(kept_as, file)
            raise
        _sync_folder(file.parent)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
        with contextlib.suppress(OSError):  # the disk may refuse this, too
            temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"cannot write the checkpoint {file}: {_reason(error)}; the checkpoints written before are intact"
        ) from error
    except KeyboardInterrupt:  # a second Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


def _require_plain(value: Any, where: str) -> None:
    """Raises `TypeError` for what `torch.load(weights_only=True)` would refuse, with the place where it lies."""
    if type(value) in (dict, OrderedDict):
        for key, entry in value.items():
            if type(key) not in (str, int):
                raise TypeError(f"{where} has the key {key!r}; a checkpoint's keys are texts or integers")
            _require_plain(entry, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, entry in enumerate(value):
            _require_plain(entry, f"{where}[{index}]")
    elif value is not None and type(value) not in (int, float, str, bool) and not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, numbers, "
            "texts, booleans, None, lists, tuples and dicts"
        )


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(_tensor_bytes(entry) for entry in value.values())
    if isinstance(value, list | tuple):
        return sum(_tensor_bytes(entry) for entry in value)
    return 0


def _make_room(replaced: Path, needed_bytes: int) -> None:
    """Deletes a file that is about to be replaced, where the disk has room for what replaces it only without it."""
    with contextlib.suppress(FileNotFoundError):
        free_bytes, freed_bytes = shutil.disk_usage(replaced.parent).free, replaced.stat().st_size
        if free_bytes < needed_bytes <= free_bytes + freed_bytes:
            replaced.unlink()


def require_disk(folder: Path, needed_bytes: int, minimum_free_disk_mb: int) -> None:
    """See that a disk has room for a file, and keeps so much free beside it.

    Raises:
        DiskTooFullError: if it does not.
        OSError: if the disk fails.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + minimum_free_disk_mb * 2**20:
        raise DiskTooFullError(
            f"no checkpoint written: the disk of {folder} has {free_bytes >> 20} MB free, the checkpoint takes "
            f"{(needed_bytes >> 20) + 1} MB and minimum_free_disk_mb = {minimum_free_disk_mb} must remain; free some "
            "space. The newest checkpoint is intact"
        )


def _sync_folder(folder: Path) -> None:
    """Makes the renames themselves durable; Windows has no such call and does so by itself."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reason(error: Exception) -> str:
    """An error's first line, without torch's hints for programmers."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return next(iter(text.splitlines()), "") or type(error).__name__
