"""Replay memory columns in memory-mapped files, for memories larger than RAM.

Rows stay in the files from one checkpoint to the next. The files have room for more rows than the memory holds, so
that the newest checkpoint's rows are overwritten only after as many new ones. `claimed.npy` holds a number above
all rows ever written, and is flushed before such a row is written: after a kill or power cut it proves which rows
may have been overwritten.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from trackmania_rl.files import sync_folder

SPARE: Final = 4
"""The files have one row more for each so many rows in the memory."""
CLAIMED: Final = "claimed"


class RowFiles:
    """Memory-mapped `.npy` column files, in a folder.

    Attributes:
        columns: (n_positions, ...) by name.
        n_positions: rows in a file. Row `r` is at position `r % n_positions`.
    """

    def __init__(self, folder: Path, columns: Mapping[str, np.memmap[Any, Any]]) -> None:
        self.folder = folder
        self._maps = dict(columns)
        self._claimed = self._maps.pop(CLAIMED)
        self.columns = {name: torch.from_numpy(column) for name, column in self._maps.items()}
        self.n_positions = len(self.columns["actions"])

    @staticmethod
    def create(parent: Path, like: Mapping[str, torch.Tensor]) -> RowFiles:
        """Make files for columns with these shapes and dtypes, with all disk space allocated, in a new folder.

        Raises:
            OSError: if the disk is full or fails. No file remains.
        """
        folder = parent / secrets.token_hex(8)
        try:
            folder.mkdir(parents=True)
            columns = {}
            for name, column in [*like.items(), (CLAIMED, torch.empty(1, dtype=torch.int64))]:
                shape = tuple(column.shape)
                dtype = torch.empty(0, dtype=column.dtype).numpy().dtype
                file = folder / f"{name}.npy"
                columns[name] = np.lib.format.open_memmap(file, "w+", dtype, shape)  # type: ignore[no-untyped-call]
                _allocate(file)
            files = RowFiles(folder, columns)
            files.claim(files.n_positions)
            files.flush()
            sync_folder(folder)
            sync_folder(parent)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return files

    @staticmethod
    def open(folder: Path) -> RowFiles:
        """Open existing files.

        Raises:
            OSError, ValueError, KeyError: if one is missing or damaged.
        """
        return RowFiles(folder, {file.stem: np.load(file, mmap_mode="r+") for file in folder.glob("*.npy")})

    def claim(self, end_row: int) -> None:
        """Allow rows below `end_row` to be written."""
        if end_row > self._claimed[0]:
            self._claimed[0] = end_row
            self._claimed.flush()

    def rows_before_loss(self, end_row: int) -> int:
        """Return how many rows can be written after `end_row` without losing a checkpoint's rows."""
        return int(self._claimed[0]) - end_row

    def holds(self, first_row: int) -> bool:
        """Return whether the rows from `first_row` are certain not to be overwritten."""
        return bool(self._claimed[0] <= first_row + self.n_positions)

    def flush(self) -> None:
        """Write changed pages to the disk."""
        for column in self._maps.values():
            column.flush()


def _allocate(file: Path) -> None:
    # A write to a mapped page for which a full disk has no room would end the process by SIGBUS.
    if hasattr(os, "posix_fallocate"):
        with file.open("rb+") as opened:
            os.posix_fallocate(opened.fileno(), 0, os.fstat(opened.fileno()).st_size)


def delete_other_files(parent: Path, kept: RowFiles | None) -> None:
    """Delete the file folders in `parent` except those in `kept`."""
    for folder in parent.iterdir() if parent.is_dir() else ():
        if kept is None or folder.name != kept.folder.name:
            shutil.rmtree(folder, ignore_errors=True)
