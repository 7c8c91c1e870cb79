"""Writing checkpoints, at the cost of new content only, and best races: folders that are complete or absent."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import re
import shutil
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors.torch
import torch

from trackmania_rl.experience_replay.ring_buffer import RingBuffer, delete_other_files
from trackmania_rl.files import replace_patiently, whole_folder
from trackmania_rl.paths import git_revision, program_version
from trackmania_rl.race.race import Race
from trackmania_rl.runs.folder import CHECKPOINTS, REPLAY
from trackmania_rl.runs.manifest import (
    MANIFEST_FILE,
    MEMORY_FOLDER,
    STATE_FILE,
    WEIGHTS_FILE,
    CheckpointError,
    DiskTooFullError,
    FileEntry,
    Manifest,
    Segment,
    bytes_of_manifest,
)
from trackmania_rl.runs.memory_rows import bytes_of_others, delete_others, plan_segments, write_rows
from trackmania_rl.runs.reading import NETWORKS, LoadedCheckpoint, find_manifests
from trackmania_rl.runs.snapshot import SETTINGS_FILE, handed_on_text
from trackmania_rl.settings import Settings

DAMAGED: Final = ".damaged"
"""Ending for a checkpoint folder that could not be read when the run resumed."""
NUMBERED: Final = re.compile(r"([0-9]{6,18})(\.damaged)?")
MANIFEST_ROOM_BYTES: Final = 1 << 18
FIRST_CHECKPOINT_AFTER_S: Final = 15.0
"""Time from a new run's first finish to the first checkpoint."""


@dataclass(frozen=True)
class CheckpointFacts:
    """Manifest fields that describe the run."""

    session: int = 1
    frames: int = 0
    updates: int = 0
    score: tuple[float, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class CheckpointStore:
    """A run's checkpoints, for the one process that writes them."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._folder = run_folder / CHECKPOINTS
        self._memory = self._folder / MEMORY_FOLDER
        self._segments: tuple[Segment, ...] = ()  # hold rows from the ring with this origin
        self._origin: object = None

    def continue_from(self, loaded: LoadedCheckpoint, ring: RingBuffer | None) -> None:
        """Use a checkpoint as the one before the next: its row files hold the ring's rows, if there is a ring.

        Damaged newer ones get another name, so they are not tried again.
        """
        for folder in loaded.damaged:
            with contextlib.suppress(OSError):
                replace_patiently(folder, folder.with_name(f"{folder.name}{DAMAGED}"))
        manifest = loaded.manifest
        if ring is not None and loaded.has_rows and manifest.rows:
            self._segments, self._origin = manifest.rows.segments, ring.origin

    def save(
        self,
        state: Mapping[str, Any],
        minimum_free_disk_mb: int,
        facts: CheckpointFacts = CheckpointFacts(),
        keep: int = 2,
    ) -> Path:
        """Write a checkpoint and return the folder; if that fails, the others stay as they were.

        Older ones are deleted first if the disk needs the room.

        Args:
            state: nested dicts, lists and tuples with tensors, numbers, texts, booleans and None. The replay memory's
                columns are the `RingBuffer`.
            minimum_free_disk_mb: disk space that must remain free.
            facts: manifest fields.
            keep: how many newest ones to keep, beside the best-scoring one.

        Raises:
            CheckpointError: if it fails; a `DiskTooFullError` if the disk is too full.
            TypeError: if the state holds something else.
        """
        contents, rows = state_files(state)
        row_bytes = 0 if rows is None else sum(column[:1].nbytes for column in rows.columns.by_name().values())
        folder = self._folder / f"{self._next_number():06d}"
        try:
            if not self._run_folder.is_dir():
                raise FileNotFoundError(2, os.strerror(2))
            self._folder.mkdir(exist_ok=True)
            for path in self._folder.glob(".*.tmp"):  # left by a killed process
                shutil.rmtree(path, ignore_errors=True)
            kept: Sequence[Segment] = ()
            new: list[range] = []
            if rows is not None and rows.files is None:
                written = self._segments if rows.origin is self._origin else ()
                kept, new = plan_segments(rows, written, self._memory, row_bytes)
            new_bytes = sum(map(len, new)) * row_bytes + sum(map(len, contents.values()))
            needed_bytes = new_bytes + MANIFEST_ROOM_BYTES
            self._make_room(needed_bytes + minimum_free_disk_mb * 2**20)
            require_disk(self._folder, needed_bytes, minimum_free_disk_mb)
            with self._whole(folder) as temporary:
                manifest = Manifest(
                    number=int(folder.name),
                    program=program_version(),
                    git_revision=git_revision(),
                    written=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                    **vars(facts),
                    written_bytes=new_bytes,
                    files={name: _write(temporary / name, content) for name, content in contents.items()},
                    rows=None if rows is None else write_rows(self._memory, rows, kept, new),
                )
                _write(temporary / MANIFEST_FILE, bytes_of_manifest(manifest))
        except (OSError, RuntimeError) as error:
            raise CheckpointError(
                f"cannot write the checkpoint {folder}: {_reason(error)}; the checkpoints written before are intact"
            ) from error
        if rows is not None and manifest.rows is not None:
            self._segments, self._origin = manifest.rows.segments, rows.origin
            if rows.files is not None:
                rows.files.claim(rows.first_row + rows.n_positions)
            delete_other_files(self._run_folder / REPLAY, rows.files)
        with contextlib.suppress(OSError):  # another program reads an older one (Windows): deleted the next time
            self._prune(keep)
        return folder

    @contextlib.contextmanager
    def _whole(self, folder: Path) -> Iterator[Path]:
        """Yield a temporary folder and rename it at the end. Delete it, and the rows, if that fails."""
        try:
            with whole_folder(folder, self._folder / f".{folder.name}.{os.getpid()}.tmp") as temporary:
                yield temporary
        except BaseException:
            with contextlib.suppress(OSError):
                delete_others(self._memory, _named(find_manifests(self._run_folder)))
            raise

    def _next_number(self) -> int:
        if not self._folder.is_dir():
            return 1
        return 1 + max(map(_number_of, self._folder.iterdir()), default=0)

    def _make_room(self, needed_bytes: int) -> None:
        """Delete as many older checkpoints as the disk needs, if that is enough."""
        free_bytes = shutil.disk_usage(self._folder).free
        manifests = find_manifests(self._run_folder)
        older = sorted(list(manifests)[1:])  # the oldest first
        for n_deleted in range(len(older) + 1):
            if free_bytes + self._bytes_of(older[:n_deleted], manifests) * (n_deleted > 0) >= needed_bytes:
                self._delete(older[:n_deleted])
                return

    def _prune(self, keep: int) -> None:
        """Delete all but the newest ones and the best one, and rows that no kept one names."""
        manifests = find_manifests(self._run_folder)
        scored = [folder for folder, manifest in manifests.items() if manifest.score is not None]
        best = max(scored, key=lambda folder: manifests[folder].score or (), default=None)  # if equal, the newest
        stay = {*list(manifests)[:keep], best} - {None}
        oldest = min(int(folder.name) for folder in stay if folder is not None)
        older = [path for path in self._folder.iterdir() if (number := _number_of(path)) and number < oldest]
        self._delete([*(folder for folder in manifests if folder not in stay and folder not in older), *older])
        left = {folder: manifest for folder, manifest in manifests.items() if folder in stay}
        delete_others(self._memory, _named(left))

    def _delete(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            temporary = self._folder / f".{folder.name}.old.tmp"  # no checkpoint any more, even half deleted
            replace_patiently(folder, temporary)
            shutil.rmtree(temporary)
        if folders:
            delete_others(self._memory, _named(find_manifests(self._run_folder)))

    def _bytes_of(self, folders: Sequence[Path], manifests: Mapping[Path, Manifest]) -> int:
        left = {folder: manifest for folder, manifest in manifests.items() if folder not in folders}
        return sum(manifests[folder].n_bytes for folder in folders) + bytes_of_others(self._memory, _named(left))


def save_checkpoint(run_folder: Path, state: Mapping[str, Any], minimum_free_disk_mb: int, keep: int = 2) -> Path:
    """Write a checkpoint for a run that is not training, as `CheckpointStore.save` does."""
    return CheckpointStore(run_folder).save(state, minimum_free_disk_mb, keep=keep)


def save_best_run(best_runs_folder: Path, race: Race, settings: Settings) -> Path:
    """Write a record: `{map}_{time}/` with `{map}_{time}.inputs`, `q_values.npy` and `settings.toml`.

    Args:
        best_runs_folder: `RunFolder.best_runs`.
        race: finished.
        settings: in force; written without this machine's paths and names.

    Returns:
        The record's folder. An existing one is left as it is.

    Raises:
        CheckpointError: if the disk is full or fails.
    """
    name = f"{race.facts.map_name}_{race.facts.race_time_ms}"
    folder = best_runs_folder / name
    try:
        if folder.exists():
            return folder
        with whole_folder(folder, best_runs_folder / f".{name}.tmp") as temporary:
            (temporary / f"{name}.inputs").write_text(race.facts.inputs, encoding="utf-8")
            np.save(temporary / "q_values.npy", race.columns["q_values"], allow_pickle=False)
            text = handed_on_text(settings, f"Settings of the race {name}")
            (temporary / SETTINGS_FILE).write_text(text, encoding="utf-8")
            for written in temporary.iterdir():
                with written.open("rb+") as opened:
                    os.fsync(opened.fileno())
    except OSError as error:
        raise CheckpointError(f"cannot keep the record {folder}: {error.strerror}") from error
    return folder


def require_disk(folder: Path, needed_bytes: int, minimum_free_disk_mb: int) -> None:
    """Raise `DiskTooFullError` if a disk has no room for a file beside the minimum that must remain free."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + minimum_free_disk_mb * 2**20:
        raise DiskTooFullError(
            f"no checkpoint written: the disk of {folder} has {free_bytes >> 20} MB free, the checkpoint takes "
            f"{(needed_bytes >> 20) + 1} MB and minimum_free_disk_mb = {minimum_free_disk_mb} must remain; free some "
            "space. The newest checkpoint is intact"
        )


def state_files(state: Mapping[str, Any]) -> tuple[dict[str, bytes], RingBuffer | None]:
    """Return a state's files by name, and the replay memory's rows, which are in no file."""
    state = dict(state)
    memory = state.get("replay", {}).get("memory")
    rows = memory["ring"]["columns"] if isinstance(memory, Mapping) and "ring" in memory else None
    if not isinstance(rows, RingBuffer):
        rows = None
    weights: dict[str, torch.Tensor] = {}
    agent = dict(state.get("agent", {}))
    if agent:
        state["agent"] = agent
    for network in NETWORKS:
        tensors = agent.get(network)
        if isinstance(tensors, Mapping) and all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
            agent[network] = list(tensors)
            weights |= {f"{network}.{name}": tensor for name, tensor in tensors.items()}
    content = io.BytesIO()
    torch.save(_plain(state, "state"), content)
    # Copies, as safetensors refuses tensors that share memory.
    weights = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()
    }
    return {STATE_FILE: content.getvalue(), WEIGHTS_FILE: safetensors.torch.save(weights)}, rows


def _plain(value: Any, place: str) -> Any:
    """Copy a state with tensors in host memory and without rows. Raise `TypeError` for what cannot be loaded."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, RingBuffer):
        return None
    if type(value) in (dict, OrderedDict):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{place} has the key {key!r}; a checkpoint's keys are texts or integers")
        return {key: _plain(entry, f"{place}[{key!r}]") for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(entry, f"{place}[{index}]") for index, entry in enumerate(value))
    if value is None or type(value) in (int, float, str, bool):
        return value
    raise TypeError(
        f"{place} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, numbers, "
        "texts, booleans, None, lists, tuples and dicts"
    )


def _write(file: Path, content: bytes) -> FileEntry:
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    return FileEntry(bytes=len(content), crc32=zlib.crc32(content))


def _number_of(path: Path) -> int:
    """Return the number in a checkpoint's name, damaged or not; 0 for another file."""
    match = NUMBERED.fullmatch(path.name)
    return int(match[1]) if match else 0


def _named(manifests: Mapping[Path, Manifest]) -> set[str]:
    return {segment.file for manifest in manifests.values() if manifest.rows for segment in manifest.rows.segments}


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return next(iter(text.splitlines()), "") or type(error).__name__
