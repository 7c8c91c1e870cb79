"""The replay memory's rows on disk: files that never change, each of rows that follow one another.

Rows are written once and then only read, so a checkpoint writes those that came since the one before, and names the
files that hold the others. A file that no checkpoint names any more is deleted.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import torch

from trackmania_rl.experience_replay.ring_buffer import RingRows
from trackmania_rl.files import open_regular, replace_patiently, sync_folder
from trackmania_rl.runs.errors import DamagedError
from trackmania_rl.runs.manifest import DTYPES, MOST_FILE_BYTES, RowsEntry, Segment, TensorEntry, own_file

SEGMENT_BYTES: Final = 64 << 20
"""Largest file; a smaller one is deleted sooner, since all of its rows have to be gone."""
SMALL_SEGMENT_BYTES: Final = 2 << 20
"""A file that is smaller is not continued by another: its rows are written once more, together with what comes."""
ENDING: Final = ".rows"


def plan_segments(rows: RingRows, written: Sequence[Segment], folder: Path) -> tuple[list[Segment], list[range]]:
    """Say which files go on holding rows, and which rows are to be written.

    Args:
        rows: of the replay memory.
        written: files of the same rows.
        folder: where these lie, unless somebody deleted them.

    Returns:
        Those to keep, and the rows of each new file.
    """
    row_bytes = sum(entry.n_bytes for entry in columns_of(rows).values())
    kept: list[Segment] = []
    for segment in written:
        if segment.end_row <= rows.first_row:
            continue
        follows = segment.first_row == kept[-1].end_row if kept else segment.first_row <= rows.first_row
        if not follows or segment.end_row > rows.end_row or _size(folder / segment.file) != segment.bytes:
            break
        kept.append(segment)
    has_more = not kept or kept[-1].end_row < rows.end_row
    if kept and has_more and kept[-1].bytes < SMALL_SEGMENT_BYTES:
        kept.pop()
    start = kept[-1].end_row if kept else rows.first_row
    step = max(1, SEGMENT_BYTES // max(1, row_bytes))
    return kept, [range(row, min(row + step, rows.end_row)) for row in range(start, rows.end_row, step)]


def columns_of(rows: RingRows) -> dict[str, TensorEntry]:
    """Describe one row."""
    return {name: TensorEntry.of(column, row=True) for name, column in rows.columns().items()}


def write_segment(folder: Path, rows: RingRows, numbers: range) -> Segment:
    """Write rows as a file of their own, flushed to the disk.

    Raises:
        OSError: if the disk fails; nothing of it is left then, if the disk allows that.
    """
    temporary = folder / f".{numbers.start}.{os.getpid()}.tmp"
    crc32 = 0
    with temporary.open("wb") as opened:
        for column in rows.read(numbers.start, numbers.stop).values():
            content = _bytes_of(column)
            crc32 = zlib.crc32(content, crc32)
            opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
        n_bytes = opened.tell()
    name = f"{numbers.start:012d}-{numbers.stop:012d}-{secrets.token_hex(8)}{ENDING}"
    replace_patiently(temporary, folder / name)
    return Segment(file=name, first_row=numbers.start, end_row=numbers.stop, bytes=n_bytes, crc32=crc32)


def write_rows(folder: Path, rows: RingRows, kept: Sequence[Segment], new: Sequence[range]) -> RowsEntry:
    """Write what `plan_segments` says.

    Raises:
        OSError: if the disk fails.
    """
    folder.mkdir(exist_ok=True)
    written = [write_segment(folder, rows, numbers) for numbers in new]
    sync_folder(folder)
    return RowsEntry(
        first_row=rows.first_row, end_row=rows.end_row, columns=columns_of(rows), segments=(*kept, *written)
    )


def check_sizes(folder: Path, entry: RowsEntry) -> None:
    """See that all files are there and as large as the manifest says; nothing is read.

    Raises:
        DamagedError: if one is not.
    """
    for segment in entry.segments:
        with _open(folder, segment):
            pass


def read_rows(folder: Path, entry: RowsEntry) -> dict[str, torch.Tensor]:
    """Read the rows of a checkpoint; see `check_sizes` first, which bounds what is allocated.

    Returns:
        (R, ...) of each column, in host memory.

    Raises:
        DamagedError: if a file is missing or damaged.
    """
    stored_from = entry.segments[0].first_row if entry.segments else entry.first_row
    columns = {
        name: torch.empty((entry.end_row - stored_from, *column.shape), dtype=DTYPES[column.dtype])
        for name, column in entry.columns.items()
    }
    for segment in entry.segments:
        crc32 = 0
        with _open(folder, segment) as opened:
            for column in columns.values():
                content = _bytes_of(column[segment.first_row - stored_from : segment.end_row - stored_from])
                if opened.readinto(content) != len(content):  # type: ignore[attr-defined]  # all binary files have it
                    raise DamagedError(f"{segment.file} is cut short")
                crc32 = zlib.crc32(content, crc32)
        if crc32 != segment.crc32:
            raise DamagedError(f"{segment.file} is damaged: its check sum is wrong")
    return {name: column[entry.first_row - stored_from :] for name, column in columns.items()}


def delete_others(folder: Path, named: Collection[str]) -> None:
    """Delete the files of rows that no checkpoint names, and what a killed process left half written.

    Raises:
        OSError: if the disk fails.
    """
    for file in _files_in(folder):
        if file.name not in named:
            file.unlink(missing_ok=True)


def bytes_of_others(folder: Path, named: Collection[str]) -> int:
    """Tell how much `delete_others` would free."""
    return sum(_size(file) for file in _files_in(folder) if file.name not in named)


def _files_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (file for file in folder.iterdir() if file.suffix in (ENDING, ".tmp"))


def _open(folder: Path, segment: Segment) -> BinaryIO:
    opened = open_regular(own_file(folder, segment.file), MOST_FILE_BYTES, DamagedError)
    n_bytes = os.fstat(opened.fileno()).st_size
    if n_bytes != segment.bytes:
        opened.close()
        raise DamagedError(f"{segment.file} has {n_bytes:,} bytes, not {segment.bytes:,}")
    return opened


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Give a contiguous tensor's memory."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
