"""Writing checkpoints: whole or not at all, at the cost of what is new, and only so many are kept."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch

from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.files import replace_patiently, sync_folder
from trackmania_rl.places import git_revision, program_version
from trackmania_rl.runs.errors import CheckpointError, DiskTooFullError
from trackmania_rl.runs.manifest import (
    MANIFEST_FILE,
    MEMORY_FOLDER,
    STATE_FILE,
    FileEntry,
    Manifest,
    RowsEntry,
    Segment,
    TensorEntry,
    bytes_of_manifest,
)
from trackmania_rl.runs.memory_rows import bytes_of_others, delete_others, plan_segments, write_rows
from trackmania_rl.runs.plain_state import StateParts
from trackmania_rl.runs.reading import LoadedCheckpoint, find_manifests
from trackmania_rl.settings.run_folder import CHECKPOINTS

DAMAGED: Final = ".damaged"
"""Ending of a checkpoint's folder that could not be read when the run went on."""
NUMBERED: Final = re.compile(r"([0-9]{6,18})(\.damaged)?")
MANIFEST_ROOM_BYTES: Final = 1 << 18


@dataclass(frozen=True)
class CheckpointFacts:
    """What a manifest says of a run beside what is in the checkpoint; see `Manifest`."""

    session: int = 1
    frames: int = 0
    updates: int = 0
    score: tuple[float, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class CheckpointStore:
    """The checkpoints of a run, as the one process that writes them sees them.

    Args:
        run_folder: save/{run_name}.

    Attributes:
        written_bytes: what the last checkpoint wrote; 0 before the first.
        spare_bytes: what older checkpoints take, which go where the disk has no room for another one.
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._folder = run_folder / CHECKPOINTS
        self._memory = self._folder / MEMORY_FOLDER
        self._segments: tuple[Segment, ...] = ()  # hold rows of the ring of this origin
        self._origin: object = None
        manifests = find_manifests(run_folder)
        self.written_bytes = next((manifest.written_bytes for manifest in manifests.values()), 0)
        self.spare_bytes = self._bytes_of(list(manifests)[1:], manifests)

    def go_on_from(self, loaded: LoadedCheckpoint, ring: RingBuffer | None) -> None:
        """Take a checkpoint as the one before the next: its files of rows hold those of the ring, if it has any.

        Those that are newer could not be read: they get another name, so that they are not tried again.
        """
        for folder in loaded.damaged:
            with contextlib.suppress(OSError):
                replace_patiently(folder, folder.with_name(f"{folder.name}{DAMAGED}"))
        if ring is not None and loaded.has_rows and loaded.manifest.rows is not None:
            self._segments, self._origin = loaded.manifest.rows.segments, ring.origin

    def save(
        self,
        state: Mapping[str, Any],
        minimum_free_disk_mb: int,
        facts: CheckpointFacts = CheckpointFacts(),
        keep: int = 2,
    ) -> Path:
        """Write a checkpoint; whatever fails, those that are there stay as they were.

        Older ones are deleted first where the disk has room for another only without them.

        Args:
            state: nested dicts and lists of tensors, numbers, texts, booleans and None, with `RingRows` for the rows
                of the replay memory.
            minimum_free_disk_mb: the disk must keep this much free after writing.
            facts: what else the manifest says.
            keep: how many of the newest ones stay; the best one, by their scores, stays as well.

        Returns:
            The checkpoint's folder.

        Raises:
            DiskTooFullError: if the disk is too full.
            CheckpointError: if it fails.
            TypeError: if the state holds something else; it could not be read back.
        """
        parts = StateParts.of(state)
        tree = parts.json_bytes()
        folder = self._folder / f"{self._next_number():06d}"
        try:
            if not self._run_folder.is_dir():
                raise FileNotFoundError(2, os.strerror(2))
            self._folder.mkdir(exist_ok=True)
            self._remove_left_behind()
            kept, new = plan_segments(parts.rows, self._segments_of(parts), self._memory) if parts.rows else ([], [])
            new_bytes = sum(map(len, new)) * _row_bytes(parts)
            needed_bytes = parts.tensor_bytes + len(tree) + new_bytes + MANIFEST_ROOM_BYTES
            self._make_room(needed_bytes + minimum_free_disk_mb * 2**20)
            require_disk(self._folder, needed_bytes, minimum_free_disk_mb)
            with self._whole(folder) as temporary:
                rows = None if parts.rows is None else write_rows(self._memory, parts.rows, kept, new)
                manifest = _write_files(temporary, parts, tree, facts, rows, new_bytes, int(folder.name))
        except (OSError, RuntimeError) as error:
            raise CheckpointError(
                f"cannot write the checkpoint {folder}: {_reason(error)}; the checkpoints written before are intact"
            ) from error
        if rows is not None and parts.rows is not None:
            self._segments, self._origin = rows.segments, parts.rows.ring.origin
        self.written_bytes = manifest.written_bytes
        with contextlib.suppress(OSError):  # somebody reads an older one at this moment (Windows); the next time, then
            self._prune(keep)
        return folder

    @contextlib.contextmanager
    def _whole(self, folder: Path) -> Iterator[Path]:
        """Give a temporary folder, and the right name to it when it is filled; nothing stays of one that fails."""
        temporary = self._folder / f".{folder.name}.{os.getpid()}.tmp"
        try:
            temporary.mkdir()
            yield temporary
            sync_folder(temporary)
            replace_patiently(temporary, folder)
            sync_folder(self._folder)
        except BaseException:  # a second Ctrl-C included
            shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):  # the disk may refuse this, too
                delete_others(self._memory, _named(find_manifests(self._run_folder)))
            raise

    def _segments_of(self, parts: StateParts) -> Sequence[Segment]:
        is_same = parts.rows is not None and parts.rows.ring.origin is self._origin
        return self._segments if is_same else ()

    def _next_number(self) -> int:
        if not self._folder.is_dir():
            return 1
        return 1 + max(map(_number_of, self._folder.iterdir()), default=0)

    def _remove_left_behind(self) -> None:
        """Remove what a process that was killed left half written, or half deleted."""
        for path in self._folder.glob(".*.tmp"):
            shutil.rmtree(path, ignore_errors=True)  # Windows may hold a file of it for a moment

    def _make_room(self, needed_bytes: int) -> None:
        """Delete older checkpoints where the disk has room for another only without them, and then no more of them."""
        free_bytes = shutil.disk_usage(self._folder).free
        manifests = find_manifests(self._run_folder)
        older = sorted(list(manifests)[1:])  # the oldest first
        for n_deleted in range(1, len(older) + 1):
            if free_bytes >= needed_bytes:
                return
            if free_bytes + self._bytes_of(older[:n_deleted], manifests) >= needed_bytes:
                self._delete(older[:n_deleted])
                return

    def _prune(self, keep: int) -> None:
        """Delete all but the newest ones and the best one, and rows that none of these names."""
        manifests = find_manifests(self._run_folder)
        scored = [folder for folder, manifest in manifests.items() if manifest.score is not None]
        best = max(scored, key=lambda folder: manifests[folder].score or (), default=None)  # of equal ones the newest
        stay = {*list(manifests)[:keep], best} - {None}
        oldest = min(int(folder.name) for folder in stay if folder is not None)
        older = [path for path in self._folder.iterdir() if (number := _number_of(path)) and number < oldest]
        self._delete([*(folder for folder in manifests if folder not in stay and folder not in older), *older])
        left = {folder: manifest for folder, manifest in manifests.items() if folder in stay}
        delete_others(self._memory, _named(left))
        self.spare_bytes = self._bytes_of(list(left)[1:], left)

    def _delete(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            doomed = self._folder / f".{folder.name}.old.tmp"  # one that is half deleted is none any more
            replace_patiently(folder, doomed)
            shutil.rmtree(doomed)
        delete_others(self._memory, _named(find_manifests(self._run_folder)))

    def _bytes_of(self, folders: Sequence[Path], manifests: Mapping[Path, Manifest]) -> int:
        """Tell what is free without some of the checkpoints."""
        left = {folder: manifest for folder, manifest in manifests.items() if folder not in folders}
        return sum(manifests[folder].n_bytes for folder in folders) + bytes_of_others(self._memory, _named(left))


def save_checkpoint(run_folder: Path, state: Mapping[str, Any], minimum_free_disk_mb: int, keep: int = 2) -> Path:
    """Write a checkpoint of a run that nobody trains at the moment; see `CheckpointStore.save`."""
    return CheckpointStore(run_folder).save(state, minimum_free_disk_mb, keep=keep)


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


def _write_files(
    folder: Path,
    parts: StateParts,
    tree: bytes,
    facts: CheckpointFacts,
    rows: RowsEntry | None,
    new_bytes: int,
    number: int,
) -> Manifest:
    """Write all files of a checkpoint, each flushed to the disk, the manifest last."""
    files = {STATE_FILE: _write(folder / STATE_FILE, tree)}
    entries: dict[str, dict[str, TensorEntry]] = {}
    for name, tensors in parts.tensors.items():
        on_host = _separate(tensors)
        file = f"{name}.safetensors"
        files[file] = _write(folder / file, safetensors.torch.save(on_host))
        entries[file] = {key: TensorEntry.of(tensor) for key, tensor in on_host.items()}
    manifest = Manifest(
        number=number,
        program=program_version(),
        git_revision=git_revision(),
        written=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        session=facts.session,
        frames=facts.frames,
        updates=facts.updates,
        score=facts.score,
        settings=dict(facts.settings),
        written_bytes=new_bytes + sum(entry.bytes for entry in files.values()),
        files=files,
        tensors=entries,
        rows=rows,
    )
    _write(folder / MANIFEST_FILE, bytes_of_manifest(manifest))
    return manifest


def _write(file: Path, content: bytes) -> FileEntry:
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    return FileEntry(bytes=len(content), crc32=zlib.crc32(content))


def _separate(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy tensors into host memory of their own, as several may be views of one."""
    return {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def _row_bytes(parts: StateParts) -> int:
    if parts.rows is None:
        return 0
    return sum(TensorEntry.of(column, row=True).n_bytes for column in parts.rows.columns().values())


def _number_of(path: Path) -> int:
    """Tell the number of a checkpoint by its name, be it damaged; 0 for anything else."""
    match = NUMBERED.fullmatch(path.name)
    return int(match[1]) if match else 0


def _named(manifests: Mapping[Path, Manifest]) -> set[str]:
    """Collect the files of rows that checkpoints name."""
    return {segment.file for manifest in manifests.values() if manifest.rows for segment in manifest.rows.segments}


def _reason(error: Exception) -> str:
    """An error's first line, without torch's hints for programmers."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return next(iter(text.splitlines()), "") or type(error).__name__
