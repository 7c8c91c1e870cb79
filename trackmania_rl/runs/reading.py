"""Reading checkpoints: a run's newest complete one, or one by folder. No code in them is run."""

from __future__ import annotations

import io
import logging
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
import safetensors.torch
import torch

from trackmania_rl.errors import one_line
from trackmania_rl.experience_replay.ring_buffer import RowFiles
from trackmania_rl.runs.folder import CHECKPOINTS, REPLAY
from trackmania_rl.runs.manifest import (
    MANIFEST_FILE,
    MEMORY_FOLDER,
    STATE_FILE,
    WEIGHTS_FILE,
    CheckpointError,
    DamagedError,
    Manifest,
    read_manifest,
)
from trackmania_rl.runs.memory_rows import check_sizes, open_files, read_rows

FOLDER_NAME: Final = re.compile(r"[0-9]{6,18}")
NETWORKS: Final = ("online", "target", "averaged")
"""Entries in an agent's state whose tensors are in `WEIGHTS_FILE`."""

ANOTHER_RUN: Final = (
    "begin a new run under another run_name (--set run_name=..., and --weights-from with a file of drivers/ or "
    "best_runs/ to begin with its weights)"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A loaded checkpoint.

    Attributes:
        folder: checkpoint folder.
        manifest: checkpoint manifest.
        state: what was saved, tensors in host memory.
        has_rows: whether the replay memory's rows are in the state.
        damaged: newer checkpoints' folders, which could not be read.
    """

    folder: Path
    manifest: Manifest
    state: dict[str, Any]
    has_rows: bool
    damaged: tuple[Path, ...] = ()


def find_folders(run_folder: Path) -> list[Path]:
    """List a run's checkpoint folders, complete or not, the newest first."""
    folder = run_folder / CHECKPOINTS
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if FOLDER_NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def find_manifests(run_folder: Path) -> dict[Path, Manifest]:
    """Read a run's checkpoint manifests, the newest first, as far as they can be read."""
    manifests = {}
    for folder in find_folders(run_folder):
        try:
            manifests[folder] = read_manifest(folder)
        except DamagedError:
            continue
    return manifests


def load_checkpoint(path: Path, with_rows: bool = True) -> LoadedCheckpoint | None:
    """Read a checkpoint by folder, or a run's newest complete one. Damaged newer ones are logged.

    If the replay memory in all checkpoints is damaged, the newest one is read without it.

    Args:
        path: save/{run_name}, or a checkpoint's folder.
        with_rows: whether the replay memory's rows are read.

    Returns:
        None if the run has no checkpoint.

    Raises:
        CheckpointError: if the checkpoint, or all of the run's, are damaged or in an unknown format.
    """
    if path.is_file() or path.parent.name == CHECKPOINTS or (path / MANIFEST_FILE).is_file():
        return _load_one(path, with_rows)
    folders = find_folders(path)
    if not folders:
        return None
    problems: dict[Path, DamagedError] = {}
    for reads_rows in (True, False) if with_rows else (False,):
        for folder in folders:
            try:
                loaded = _read(folder, reads_rows)
            except DamagedError as error:
                problems.setdefault(folder, error)
                continue
            damaged = [path for path in folders[: folders.index(folder)] if path in problems]
            _warn(loaded, damaged, problems)
            return replace(loaded, damaged=tuple(damaged))
    newest = folders[0]
    raise CheckpointError(
        f"{_described(newest, problems[newest])}. None of the {len(folders)} checkpoints in {newest.parent} is whole: "
        f"put back a copy of yours, or {ANOTHER_RUN}"
    )


def _load_one(folder: Path, with_rows: bool) -> LoadedCheckpoint:
    try:
        return _read(folder, with_rows)
    except DamagedError as error:
        raise CheckpointError(_described(folder, error)) from error


def _warn(loaded: LoadedCheckpoint, damaged: list[Path], problems: Mapping[Path, DamagedError]) -> None:
    manifest = loaded.manifest
    if damaged:
        log.warning(
            "%s; resuming from %s of %s, at frame %s%s",
            "; ".join(_described(folder, problems[folder]) for folder in damaged),
            loaded.folder,
            manifest.written,
            f"{manifest.frames:,}",
            "" if loaded.has_rows or manifest.rows is None else ", without the replay memory",
        )
    elif loaded.folder in problems:
        log.warning(
            "the replay memory of %s is damaged (%s), and no older checkpoint is whole: resuming without it",
            loaded.folder,
            problems[loaded.folder],
        )


def _described(folder: Path, error: DamagedError) -> str:
    reason = str(error).removeprefix(f"{folder}{os.sep}")
    return f"cannot read the checkpoint {folder}: {reason}"


def _read(folder: Path, with_rows: bool) -> LoadedCheckpoint:
    manifest = read_manifest(folder)
    memory = folder.parent / MEMORY_FOLDER
    has_rows = with_rows and manifest.rows is not None
    try:
        if has_rows and manifest.rows is not None:
            check_sizes(memory, manifest.rows)
        needed_bytes = manifest.n_bytes + manifest.row_bytes * with_rows
        if needed_bytes > (free_bytes := psutil.virtual_memory().available):
            raise DamagedError(f"it takes {needed_bytes >> 20:,} MB of memory, and {free_bytes >> 20:,} MB are free")
        contents = {name: _content(folder, name, manifest) for name in manifest.files}
        rows: dict[str, torch.Tensor] | RowFiles = {}
        if has_rows and manifest.rows is not None and manifest.rows.files is not None:
            rows = open_files(folder.parent.parent / REPLAY, manifest.rows)
        elif has_rows and manifest.rows is not None:
            rows = read_rows(memory, manifest.rows)
        state = _state(contents)
        _put_rows(state, rows if has_rows else None, had_rows=manifest.rows is not None)
    except DamagedError:
        raise
    except OSError as error:
        raise DamagedError(f"the disk fails: {error.strerror or error}") from error
    except Exception as error:  # the pickle and safetensors readers fail in many ways
        raise DamagedError(f"its state is damaged: {one_line(error)}") from error
    return LoadedCheckpoint(folder, manifest, state, has_rows)


def _content(folder: Path, name: str, manifest: Manifest) -> bytes:
    entry = manifest.files[name]
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise DamagedError(f"{name}: cannot be read: {error.strerror}") from error
    if len(content) != entry.bytes:
        raise DamagedError(f"{name} has {len(content):,} bytes, not {entry.bytes:,}")
    if zlib.crc32(content) != entry.crc32:
        raise DamagedError(f"{name} is damaged: its check sum is wrong")
    return content


def _state(contents: Mapping[str, bytes]) -> dict[str, Any]:
    """Read the state without rows; name lists that stand for networks become the networks' tensors."""
    state: dict[str, Any] = torch.load(io.BytesIO(contents[STATE_FILE]), map_location="cpu", weights_only=True)
    weights = safetensors.torch.load(contents[WEIGHTS_FILE])
    agent = state.get("agent", {})
    for network in NETWORKS:
        if isinstance(agent.get(network), list):
            agent[network] = {name: weights[f"{network}.{name}"] for name in agent[network]}
    return state


def _put_rows(state: dict[str, Any], rows: dict[str, torch.Tensor] | RowFiles | None, *, had_rows: bool) -> None:
    """Put the rows where the ring buffer was. A state without rows is as from a run that saves no replay memory."""
    if had_rows:
        replay = state["replay"]
        if rows is None:
            replay["memory"] = None
        else:
            replay["memory"]["ring"]["columns"] = rows
