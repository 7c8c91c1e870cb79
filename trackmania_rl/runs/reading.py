"""Reading checkpoints: which there are, the newest whole one, and all that one holds.

A checkpoint may be damaged, or made by a stranger. Its manifest is read first, as bounded JSON. Then each file that it
names has to be there, a regular one in the checkpoint's folder, and as large as the manifest says. Only then is
anything read or allocated, and no more than these files hold.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import psutil
import safetensors.torch
import torch
from safetensors import SafetensorError

from trackmania_rl.errors import one_line
from trackmania_rl.files import open_regular
from trackmania_rl.runs.errors import CheckpointError, DamagedError
from trackmania_rl.runs.manifest import (
    MANIFEST_FILE,
    MEMORY_FOLDER,
    MOST_FILE_BYTES,
    MOST_HEADER_BYTES,
    STATE_FILE,
    FileEntry,
    Manifest,
    TensorEntry,
    own_file,
    parse_bounded,
    read_manifest,
)
from trackmania_rl.runs.memory_rows import check_sizes, read_rows
from trackmania_rl.runs.plain_state import put_together, without_memory
from trackmania_rl.settings.run_folder import CHECKPOINTS

OLD_FILES: Final = ("checkpoint.pt", "checkpoint.previous.pt")
"""Where versions before format 3 wrote."""
FOLDER_NAME: Final = re.compile(r"[0-9]{6,18}")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint that was read.

    Attributes:
        folder: its own.
        manifest: says what it is.
        state: what was saved, its tensors in host memory.
        has_rows: whether the replay memory's rows are in the state.
        damaged: folders of newer ones, which could not be read.
    """

    folder: Path
    manifest: Manifest
    state: dict[str, Any]
    has_rows: bool
    damaged: tuple[Path, ...] = ()


def is_checkpoint(path: Path) -> bool:
    """Tell whether a path is a checkpoint's folder, or a file of an older version."""
    return (path / MANIFEST_FILE).is_file() or path.name in OLD_FILES


def find_folders(run_folder: Path) -> list[Path]:
    """List the folders of a run's checkpoints, the newest one first, whether they are whole or not."""
    folder = run_folder / CHECKPOINTS
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if FOLDER_NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def find_manifests(run_folder: Path) -> dict[Path, Manifest]:
    """Read the manifests of a run's checkpoints, the newest one first; those that cannot be read are left out."""
    manifests = {}
    for folder in find_folders(run_folder):
        try:
            manifests[folder] = read_manifest(folder)
        except DamagedError:
            continue
    return manifests


def load_checkpoint(run_folder: Path, with_rows: bool = True) -> dict[str, Any] | None:
    """Read the state of a run's newest whole checkpoint; see `load_newest`."""
    loaded = load_newest(run_folder, with_rows)
    return None if loaded is None else loaded.state


def load_newest(run_folder: Path, with_rows: bool = True) -> LoadedCheckpoint | None:
    """Read a run's newest checkpoint; where it is damaged the newest whole one, which is told by a warning.

    Where there is no whole one but of the replay memory, it is the newest of these, without the memory.

    Args:
        run_folder: save/{run_name}.
        with_rows: whether the replay memory's rows are read.

    Returns:
        None only where there is no checkpoint at all.

    Raises:
        CheckpointError: if there are checkpoints, but none can be read; or one of an older version.
    """
    folders = find_folders(run_folder)
    if not folders:
        _refuse_old_files(run_folder)
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
            _tell(loaded, damaged, problems)
            return LoadedCheckpoint(folder, loaded.manifest, loaded.state, loaded.has_rows, tuple(damaged))
    newest = folders[0]
    raise CheckpointError(
        f"{_told(newest, problems[newest])}. None of the {len(folders)} checkpoints in {newest.parent} is whole: put "
        "back a copy of yours, or begin a new run under another run_name (--set run_name=..., and --weights-from with "
        "a file of drivers/ or best_runs/ to begin with its weights)"
    )


def read_checkpoint(folder: Path, with_rows: bool = True) -> dict[str, Any]:
    """Read the state of one checkpoint, its tensors in host memory.

    Args:
        folder: its own.
        with_rows: whether the replay memory's rows are read.

    Raises:
        CheckpointError: if it is damaged, or of a format that this version does not know.
    """
    if folder.is_file():
        raise CheckpointError(
            f"cannot read the checkpoint {folder}: this version's checkpoints are folders, save/RUN/checkpoints/NUMBER"
        )
    try:
        return _read(folder, with_rows).state
    except DamagedError as error:
        raise CheckpointError(_told(folder, error)) from error


def _refuse_old_files(run_folder: Path) -> None:
    for name in OLD_FILES:
        if (run_folder / name).exists():
            raise CheckpointError(
                f"cannot read the checkpoint {run_folder / name}: an older version wrote it, and this version's are "
                "folders; begin a new run under another run_name (--set run_name=..., and --weights-from with a file "
                "of drivers/ or best_runs/ to begin with its weights), or go on with the older version"
            )


def _tell(loaded: LoadedCheckpoint, damaged: list[Path], problems: Mapping[Path, DamagedError]) -> None:
    manifest = loaded.manifest
    if damaged:
        log.warning(
            "%s; going on from %s of %s, at frame %s%s",
            "; ".join(_told(folder, problems[folder]) for folder in damaged),
            loaded.folder,
            manifest.written,
            f"{manifest.frames:,}",
            "" if loaded.has_rows or manifest.rows is None else ", without the replay memory",
        )
    elif loaded.folder in problems:
        log.warning(
            "the replay memory of %s is damaged (%s), and no older checkpoint is whole: going on without it",
            loaded.folder,
            problems[loaded.folder],
        )


def _told(folder: Path, error: DamagedError) -> str:
    reason = str(error).removeprefix(f"{folder}{os.sep}")
    return f"cannot read the checkpoint {folder}: {reason}"


def _read(folder: Path, with_rows: bool) -> LoadedCheckpoint:
    """Read a checkpoint; the errors say what is wrong, without its name."""
    try:
        return _read_bounded(folder, with_rows)
    except OSError as error:
        raise DamagedError(f"the disk fails: {error.strerror or error}") from error


def _read_bounded(folder: Path, with_rows: bool) -> LoadedCheckpoint:
    manifest = read_manifest(folder)
    memory = folder.parent / MEMORY_FOLDER
    for name, entry in manifest.files.items():
        _open(folder, name, entry).close()
    if with_rows and manifest.rows is not None:
        check_sizes(memory, manifest.rows)
    needed_bytes = manifest.n_bytes + manifest.row_bytes * with_rows
    if needed_bytes > (free_bytes := psutil.virtual_memory().available):
        raise DamagedError(f"it takes {needed_bytes >> 20:,} MB of memory, and {free_bytes >> 20:,} MB are free")
    tensors = {
        Path(name).stem: _tensors_of(name, _content(folder, name, manifest.files[name]), entries)
        for name, entries in manifest.tensors.items()
    }
    try:
        tree = parse_bounded(_content(folder, STATE_FILE, manifest.files[STATE_FILE]))
        has_rows = with_rows and manifest.rows is not None
        rows = read_rows(memory, manifest.rows) if has_rows and manifest.rows is not None else {}
        state = put_together(tree, tensors, rows)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{STATE_FILE} is damaged: {one_line(error)}") from None
    if not isinstance(state, dict):
        raise DamagedError(f"{STATE_FILE} is damaged: it is no state")
    if manifest.rows is not None and not has_rows:
        without_memory(state)
    return LoadedCheckpoint(folder, manifest, state, has_rows)


def _open(folder: Path, name: str, entry: FileEntry) -> BinaryIO:
    opened = open_regular(own_file(folder, name), MOST_FILE_BYTES, DamagedError)
    n_bytes = os.fstat(opened.fileno()).st_size
    if n_bytes != entry.bytes:
        opened.close()
        raise DamagedError(f"{name} has {n_bytes:,} bytes, not {entry.bytes:,}")
    return opened


def _content(folder: Path, name: str, entry: FileEntry) -> bytes:
    with _open(folder, name, entry) as opened:
        content = opened.read(entry.bytes)
    if zlib.crc32(content) != entry.crc32:
        raise DamagedError(f"{name} is damaged: its check sum is wrong")
    return content


def _tensors_of(name: str, content: bytes, entries: Mapping[str, TensorEntry]) -> dict[str, torch.Tensor]:
    if int.from_bytes(content[:8], "little") > MOST_HEADER_BYTES:
        raise DamagedError(f"{name} is damaged: its header is too long")
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise DamagedError(f"{name} is damaged: {one_line(error)}") from None
    if {key: TensorEntry.of(tensor) for key, tensor in tensors.items()} != dict(entries):
        raise DamagedError(f"{name} does not hold the tensors that the manifest says")
    return tensors
