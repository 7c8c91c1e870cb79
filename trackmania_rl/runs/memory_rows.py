"""Replay memory rows on disk: `.npz` files with consecutive rows, which are written once and never changed.

A checkpoint writes the rows since the one before and names the files with the others. A file that no
checkpoint names is deleted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from trackmania_rl.errors import one_line
from trackmania_rl.experience_replay import ring_buffer
from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.files import replace_patiently, sync_folder
from trackmania_rl.runs.manifest import DamagedError, RowsEntry, Segment

SEGMENT_BYTES: Final = 64 << 20
"""Size of the rows in the largest file; a smaller one is deleted sooner, since all rows in it have to be gone."""
SMALL_SEGMENT_BYTES: Final = 2 << 20
"""Size below which a file's rows are written again, together with the next ones."""
ENDING: Final = ".npz"
NAME: Final = "file_name"
"""Array with the file's name: files with equal size may be swapped."""


def plan_segments(
    rows: RingBuffer, written: Sequence[Segment], folder: Path, row_bytes: int
) -> tuple[list[Segment], list[range]]:
    """Return which earlier files stay, and each new file's rows."""
    kept: list[Segment] = []
    for segment in written:
        if segment.end_row <= rows.first_row:
            continue
        follows = segment.first_row == kept[-1].end_row if kept else segment.first_row <= rows.first_row
        if not follows or segment.end_row > rows.end_row or _size(folder / segment.file) != segment.bytes:
            break
        kept.append(segment)
    is_complete = bool(kept) and kept[-1].end_row == rows.end_row
    if kept and not is_complete and (kept[-1].end_row - kept[-1].first_row) * row_bytes < SMALL_SEGMENT_BYTES:
        kept.pop()
    start = kept[-1].end_row if kept else rows.first_row
    step = max(1, SEGMENT_BYTES // max(1, row_bytes))
    new = [range(row, min(row + step, rows.end_row)) for row in range(start, rows.end_row, step)]
    return kept, new if kept or new else [range(start, start)]


def write_rows(folder: Path, rows: RingBuffer, kept: Sequence[Segment], new: Sequence[range]) -> RowsEntry:
    """Write the files that `plan_segments` returned, and flush them to the disk; or flush the memory's files."""
    if rows.files is not None:
        rows.files.flush()
        return RowsEntry(first_row=rows.first_row, end_row=rows.end_row, segments=(), files=rows.files.folder.name)
    folder.mkdir(exist_ok=True)
    written = [_write_segment(folder, rows, numbers) for numbers in new]
    sync_folder(folder)
    return RowsEntry(first_row=rows.first_row, end_row=rows.end_row, segments=(*kept, *written))


def _write_segment(folder: Path, rows: RingBuffer, numbers: range) -> Segment:
    temporary = folder / f".{numbers.start}.{os.getpid()}.tmp"
    name = f"{numbers.start:012d}-{numbers.stop:012d}-{secrets.token_hex(8)}{ENDING}"
    with temporary.open("wb") as opened:
        columns = ring_buffer.read_rows(rows.columns.by_name(), numbers)
        arrays = {column_name: column.numpy() for column_name, column in columns.items()}
        np.savez(opened, **arrays, **{NAME: np.array(name)})  # type: ignore[arg-type]
        opened.flush()
        os.fsync(opened.fileno())
        n_bytes = opened.tell()
    replace_patiently(temporary, folder / name)
    return Segment(file=name, first_row=numbers.start, end_row=numbers.stop, bytes=n_bytes)


def open_files(replay: Path, entry: RowsEntry) -> ring_buffer.RowFiles:
    """Open a disk replay memory's files.

    Raises:
        DamagedError: if missing or damaged, or checkpoint rows were overwritten since.
    """
    try:
        files = ring_buffer.RowFiles.open(replay / str(entry.files))
    except (OSError, ValueError, KeyError) as error:
        raise DamagedError(f"{replay / str(entry.files)} is missing or damaged: {one_line(error)}") from error
    if not files.holds(entry.first_row):
        raise DamagedError("newer rows have overwritten those of its replay memory")
    return files


def check_sizes(folder: Path, entry: RowsEntry) -> None:
    """Raise `DamagedError` for a row file missing or with another size."""
    for segment in entry.segments:
        n_bytes = _size(folder / segment.file)
        if n_bytes != segment.bytes:
            raise DamagedError(f"{segment.file} has {n_bytes:,} bytes, not {segment.bytes:,}")


def read_rows(folder: Path, entry: RowsEntry) -> dict[str, torch.Tensor]:
    """Read a checkpoint's rows: (R, ...) for each column, in host memory.

    Raises:
        DamagedError: if a file is missing or damaged.
    """
    columns: dict[str, torch.Tensor] = {}
    n_read = 0
    for segment in entry.segments:
        try:
            with np.load(folder / segment.file, allow_pickle=False) as archive:
                if (written_as := str(archive[NAME])) != segment.file:
                    raise ValueError(f"it is {written_as}")
                new = {name: torch.from_numpy(archive[name]) for name in archive.files if name != NAME}
        except OSError:
            raise
        except Exception as error:  # the zip and npy readers fail in many ways
            raise DamagedError(f"{segment.file} is damaged: {one_line(error)}") from error
        skipped = max(0, entry.first_row - segment.first_row)
        for name, column in new.items():
            if n_read == 0:
                shape = entry.end_row - entry.first_row, *column.shape[1:]
                columns[name] = torch.empty(shape, dtype=column.dtype)
            columns[name][n_read : n_read + len(column) - skipped] = column[skipped:]
        n_read += segment.end_row - segment.first_row - skipped
    return columns


def delete_others(folder: Path, named: Collection[str]) -> None:
    """Delete the row files that no checkpoint names, and temporary ones."""
    for file in _files_in(folder):
        if file.name not in named:
            file.unlink(missing_ok=True)


def bytes_of_others(folder: Path, named: Collection[str]) -> int:
    """Return the size of what `delete_others` would delete."""
    return sum(_size(file) for file in _files_in(folder) if file.name not in named)


def _files_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (file for file in folder.iterdir() if file.suffix in (ENDING, ".tmp"))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1
