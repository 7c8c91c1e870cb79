"""The replay memory's rows: every state in every stored race, once, in preallocated columns.

The columns are in memory, or in memory-mapped files for memories larger than RAM (`RowFiles`). The files have room for
more rows than the memory holds, so that the newest checkpoint's rows are overwritten only after as many new ones.
`claimed.npy` holds a number above all rows ever written, and is flushed first: after a kill or power cut it proves
which rows may have been overwritten.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from trackmania_rl.files import sync_folder

# Rollouts are read-only arrays, which are only read.
warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
# `batch_size` may be edited while a run trains.
warnings.filterwarnings("ignore", "Got conflicting batch_sizes", UserWarning)

NEVER_FINISHES = 2**31 - 1
"""`steps_to_finish` in a cut-off race; values are bootstrapped beyond the end."""

SPARE: Final = 4
"""The files have one row more for each so many rows in the memory."""
CLAIMED: Final = "claimed"


@dataclass
class RowColumns:
    """R consecutive rows in columns. A race's row t is state t and the action taken there.

    A race with T actions has T + 1 rows; the last row's action and reward have no meaning. A race to be stored may have
    numpy arrays as columns, and wider types.
    """

    frames: torch.Tensor  # (R, 1, H, W) uint8; (R, 1, 0, 0) without an image
    state_floats: torch.Tensor  # (R, F) float32, not normalized
    actions: torch.Tensor  # (R,) int16, or (R, D) float32
    rewards: torch.Tensor  # (R,) float32, for the single action from this row to the next
    potentials: torch.Tensor  # (R,) float32, the state's shaping potential
    n_steps: torch.Tensor  # (R,) int16, actions in the transition from this row; 0 in a race's last row
    steps_to_finish: torch.Tensor  # (R,) int32, actions to the finish, or `NEVER_FINISHES`

    def __len__(self) -> int:
        return int(self.actions.shape[0])  # several times as fast as a tensor's len()

    def by_name(self) -> dict[str, torch.Tensor]:
        """Return the columns by name, without a copy."""
        return vars(self)

    @staticmethod
    def empty(
        n_rows: int,
        n_floats: int,
        image_size_px: tuple[int, int],
        device: torch.device | str,
        action_shape: tuple[int, ...] = (),
    ) -> RowColumns:
        """Make uninitialised columns for R rows; arguments as for `RingBuffer`."""

        def column(dtype: torch.dtype, *row_shape: int) -> torch.Tensor:
            return torch.empty((n_rows, *row_shape), dtype=dtype, device=device)

        return RowColumns(
            frames=column(torch.uint8, 1, *image_size_px),
            state_floats=column(torch.float32, n_floats),
            actions=column(torch.float32, *action_shape) if action_shape else column(torch.int16),
            rewards=column(torch.float32),
            potentials=column(torch.float32),
            n_steps=column(torch.int16),
            steps_to_finish=column(torch.int32),
        )


class RingBuffer:
    """Ring of rows; the oldest are overwritten.

    Rows have consecutive numbers. Row `r` is at position `r % n_positions`, as long as `first_row <= r < end_row`. A
    transition refers only to later rows in the same race, so it is complete as long as the first row is there.

    Args:
        capacity: row count.
        n_floats: F, floats per state.
        image_size_px: a frame's (height, width); (0, 0) for no image.
        device: where the columns are.
        action_shape: () for an index, or (D,) for numbers.

    Attributes:
        row_form: the arguments after `capacity`.
        columns: the rows, by position.
        n_positions: column length, at least the capacity.
        folder: for the columns' files, from the next `resize` on; None for columns in RAM.
        files: the columns' files; None if they are in RAM.
        first_row, end_row: the oldest and the next row's numbers.
        origin: changes at `load_state_dict`; rows with the same number and origin are the same.
        lock: held while rows are written or gathered, as a prefetching thread may gather.
    """

    def __init__(
        self,
        capacity: int,
        n_floats: int,
        image_size_px: tuple[int, int] = (0, 0),
        device: torch.device | str = "cpu",
        action_shape: tuple[int, ...] = (),
    ) -> None:
        self.row_form = n_floats, image_size_px, device, action_shape
        self.folder: Path | None = None
        self.files: RowFiles | None = None
        self._allocate(capacity)
        self.first_row = 0
        self.end_row = 0
        self.origin = object()
        self.lock = threading.RLock()

    def _allocate(self, capacity: int) -> None:
        if self.folder is None:
            return self._use(RowColumns.empty(capacity, *self.row_form), capacity)
        n_floats, image_size_px, _, action_shape = self.row_form
        if self.files is None:  # others are from an earlier start, and no loaded checkpoint's
            delete_other_files(self.folder, None)
        like = RowColumns.empty(_n_positions(capacity), n_floats, image_size_px, "meta", action_shape)
        return self._use(RowFiles.create(self.folder, like.by_name()), capacity)

    def _use(self, columns: RowColumns | RowFiles, capacity: int) -> None:
        self.files = columns if isinstance(columns, RowFiles) else None
        self.columns = RowColumns(**columns.columns) if isinstance(columns, RowFiles) else columns
        self.capacity = capacity
        self.n_positions = len(self.columns)
        # Host memory is written through numpy, whose overhead for a short race is a tenth of torch's.
        self._on_host = self.device.type == "cpu"
        self._targets: dict[str, Any] = {
            name: column.numpy() if self._on_host else column for name, column in self.columns.by_name().items()
        }

    @property
    def device(self) -> torch.device:
        """The columns' device."""
        return self.columns.actions.device

    def __len__(self) -> int:
        return self.end_row - self.first_row

    @staticmethod
    def bytes_per_row(n_floats: int, image_size_px: tuple[int, int], action_shape: tuple[int, ...] = ()) -> int:
        """Compute one row's memory."""
        row = RowColumns.empty(1, n_floats, image_size_px, "cpu", action_shape)
        return sum(column.nbytes for column in row.by_name().values())

    def append(self, race: RowColumns, from_row: int = 0) -> range:
        """Store a race after the others, over the oldest rows; for a race longer than the ring, store the end.

        The race's rows before `from_row` are left out.

        Returns:
            The race's row numbers; those below `first_row` did not fit.

        Raises:
            ValueError: if the rows have another shape than the ring's.
        """
        sources = race.by_name()
        n_rows = len(race)
        for name, target in self._targets.items():
            if sources[name].shape != (n_rows, *target.shape[1:]):
                raise ValueError(
                    f"{name} of a race is {tuple(sources[name].shape)}, but the replay memory stores {n_rows} rows of "
                    f"{tuple(target.shape[1:])}"
                )
        with self.lock:
            rows = range(self.end_row, self.end_row + n_rows - from_row)
            n_dropped = max(0, len(rows) - self.capacity)
            self._write(rows[n_dropped:], sources, from_row + n_dropped)
            self.end_row = rows.stop
            self.first_row = max(self.first_row, self.end_row - self.capacity)
        return rows

    def resize(self, capacity: int) -> None:
        """Change the capacity; shrinking drops the oldest rows. Old and new columns briefly exist at once.

        Raises:
            RuntimeError: if allocation fails (on a GPU `torch.OutOfMemoryError`); nothing changes then.
            OSError: if the disk has no room for the files; likewise.
        """
        with self.lock:
            rows = range(max(self.first_row, self.end_row - capacity), self.end_row)
            former_columns = self.columns.by_name()
            n_positions = self.n_positions
            self._allocate(capacity)
            self.first_row = rows.start
            self._copy(rows, former_columns, n_positions)

    def state_dict(self) -> dict[str, Any]:
        """Return the filled rows, oldest first, in host memory, and their numbers."""
        with self.lock:
            return self.state_to_write() | {
                "columns": read_rows(self.columns.by_name(), range(self.first_row, self.end_row))
            }

    def state_to_write(self) -> dict[str, Any]:
        """Return `state_dict()` with the ring instead of the columns, which are not copied."""
        return {"capacity": self.capacity, "first_row": self.first_row, "end_row": self.end_row, "columns": self}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore rows, numbers and capacity. Stored columns are tensors, or a disk memory's files.

        Files in this ring's folder with the right size are used as they are, others copied.

        Raises:
            ValueError: if the rows have another shape than this ring's.
        """
        capacity, first_row, end_row = (int(state[name]) for name in ("capacity", "first_row", "end_row"))
        of_files = state["columns"] if isinstance(state["columns"], RowFiles) else None
        stored_columns = state["columns"] if of_files is None else of_files.columns
        n_stored = end_row - first_row if of_files is None else of_files.n_positions
        for name, column in self.columns.by_name().items():
            stored = stored_columns[name]
            if stored.shape != (n_stored, *column.shape[1:]) or stored.dtype != column.dtype:
                raise ValueError(
                    f"the stored {name} are {tuple(stored.shape)} {stored.dtype}, but this run's rows are "
                    f"{tuple(column.shape[1:])} {column.dtype}: was the observation changed since?"
                )
        with self.lock:
            self.first_row = self.end_row = 0  # drops the present rows
            if of_files is None:
                self.resize(capacity)
                self._write(range(first_row, end_row), stored_columns)
            elif self.folder == of_files.folder.parent and n_stored == _n_positions(capacity):
                self._use(of_files, capacity)
            else:
                self.files = of_files  # a sign that they are in use
                self.resize(capacity)
                self._copy(range(first_row, end_row), stored_columns, n_stored)
            self.first_row = first_row
            self.end_row = end_row
            self.origin = object()

    def _copy(self, rows: range, columns: Mapping[str, torch.Tensor], n_positions: int) -> None:
        for positions, places in pieces(rows, n_positions):
            self._write(rows[places], {name: column[positions] for name, column in columns.items()})

    def _write(self, rows: range, sources: Mapping[str, Any], from_place: int = 0) -> None:
        if self.files is not None and self.files.rows_before_loss(rows.stop) < 0:
            self.files.claim(rows.stop + self.n_positions - self.capacity)
        for positions, places in pieces(rows, self.n_positions):
            part = slice(from_place + places.start, from_place + places.stop)
            for name, target in self._targets.items():
                values = sources[name][part]
                target[positions] = np.asarray(values) if self._on_host else torch.as_tensor(values)

    @property
    def nears_loss(self) -> bool:
        """True if new rows will soon overwrite the newest checkpoint's."""
        return (
            self.files is not None
            and self.files.rows_before_loss(self.end_row) < (self.n_positions - self.capacity) // 2
        )


def rows_of_state(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a loaded state's rows, oldest first, in host memory, by column."""
    columns = state["columns"]
    rows = range(int(state["first_row"]), int(state["end_row"]))
    return read_rows(columns.columns, rows) if isinstance(columns, RowFiles) else columns


def _n_positions(capacity: int) -> int:
    return capacity + max(1, capacity // SPARE)


def pieces(rows: range, n_positions: int) -> Iterator[tuple[slice, slice]]:
    """Yield the positions of consecutive rows in a ring and their places in `rows`, in two pieces at the ring's end."""
    start = rows.start % n_positions
    n_rows = len(rows)
    n_before_end = min(n_rows, n_positions - start)
    yield slice(start, start + n_before_end), slice(0, n_before_end)
    if n_before_end < n_rows:
        yield slice(0, n_rows - n_before_end), slice(n_before_end, n_rows)


def read_rows(columns: Mapping[str, torch.Tensor], rows: range) -> dict[str, torch.Tensor]:
    """Copy rows from a ring's columns into host memory, by column."""
    of_rows = list(pieces(rows, len(columns["actions"])))
    return {name: torch.cat([column[there].cpu() for there, _ in of_rows]) for name, column in columns.items()}


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
