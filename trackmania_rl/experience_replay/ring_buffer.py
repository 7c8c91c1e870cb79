"""The rows of the replay memory: every state of every stored race, once, in preallocated columns."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

NEVER_FINISHES = 2**31 - 1
"""`steps_to_finish` of a race that was cut off; values are bootstrapped beyond its end."""


@dataclass
class RowColumns:
    """R consecutive rows in columns. Row t of a race is its state t and the action taken there.

    A race of T actions has T + 1 rows; action and reward of the last row have no meaning. A race to be stored may have
    numpy arrays as columns, and wider types.

    Attributes:
        frames: (R, 1, H, W) uint8; (R, 1, 0, 0) without an image.
        state_floats: (R, F) float32, not normalized.
        actions: (R,) int16, or (R, D) float32.
        rewards: (R,) float32, of the single action from this row to the next.
        potentials: (R,) float32, shaping potential of the state.
        n_steps: (R,) int16, number of actions of the transition from this row; 0 in a race's last row.
        steps_to_finish: (R,) int32, actions to the finish, or `NEVER_FINISHES`.
    """

    frames: torch.Tensor
    state_floats: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    potentials: torch.Tensor
    n_steps: torch.Tensor
    steps_to_finish: torch.Tensor

    def __len__(self) -> int:
        return int(self.actions.shape[0])  # of a tensor, several times as fast as its len()

    def by_name(self) -> dict[str, torch.Tensor]:
        """Return the columns by name, without a copy."""
        return {name: getattr(self, name) for name in COLUMN_NAMES}

    def beginning_at(self, row: int) -> RowColumns:
        """Return views of the rows from `row` on."""
        return self if row == 0 else RowColumns(**{name: column[row:] for name, column in self.by_name().items()})

    @staticmethod
    def empty(
        n_rows: int,
        n_floats: int,
        image_size_px: tuple[int, int],
        device: torch.device,
        action_shape: tuple[int, ...] = (),
    ) -> RowColumns:
        """Make uninitialised columns for R rows; arguments as of `RingBuffer`."""

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


COLUMN_NAMES = tuple(field.name for field in fields(RowColumns))


@dataclass(frozen=True)
class RingRows:
    """The present rows of a ring buffer, not copied; valid until more are stored.

    Attributes:
        ring: the ring buffer.
        first_row, end_row: numbers of the rows, the latter excluded.
    """

    ring: RingBuffer
    first_row: int
    end_row: int

    def columns(self) -> dict[str, torch.Tensor]:
        """Return the ring's columns by name, in the ring's order."""
        return self.ring.columns.by_name()

    def read(self, first_row: int, end_row: int) -> dict[str, torch.Tensor]:
        """Copy rows into host memory, by column, oldest first."""
        return {
            name: torch.cat([piece.cpu() for _, piece in _pieces(column, first_row, end_row)])
            for name, column in self.columns().items()
        }


class RingBuffer:
    """Ring of rows; the oldest are overwritten.

    Rows have consecutive numbers. Row `r` is at position `r % capacity`, as long as `first_row <= r < end_row`. A
    transition refers to later rows of its own race only, so it is complete as long as its first row is there.

    Args:
        capacity: number of rows.
        n_floats: F, floats of one state.
        image_size_px: (height, width) of a frame; (0, 0) for no image.
        device: of the columns.
        action_shape: () of an index, or (D,) of numbers.

    Raises:
        ValueError: if capacity or number of floats is below 1.

    Attributes:
        columns: the rows, by position.
        capacity: number of rows that fit.
        first_row: number of the oldest row.
        end_row: number of the next row.
        origin: changes at `load_state_dict`; rows of the same number and origin are the same.
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
        if capacity < 1:
            raise ValueError(f"a replay memory of {capacity} rows; it needs at least 1")
        if n_floats < 1:
            raise ValueError(f"states of {n_floats} floats; the time elapsed in the mini-race alone is 1")
        self._take(RowColumns.empty(capacity, n_floats, image_size_px, torch.device(device), action_shape))
        self.first_row = 0
        self.end_row = 0
        self.origin = object()
        self.lock = threading.RLock()

    def _take(self, columns: RowColumns) -> None:
        self.columns = columns
        self.capacity = len(columns)
        # Host memory is written through numpy, whose overhead for a short race is a tenth of torch's.
        on_host = columns.actions.device.type == "cpu"
        self._targets: dict[str, Any] = {
            name: column.numpy() if on_host else column for name, column in columns.by_name().items()
        }

    @property
    def device(self) -> torch.device:
        """The device of the columns."""
        return self.columns.actions.device

    def __len__(self) -> int:
        return self.end_row - self.first_row

    @staticmethod
    def bytes_per_row(n_floats: int, image_size_px: tuple[int, int], action_shape: tuple[int, ...] = ()) -> int:
        """Compute the memory of one row."""
        row = RowColumns.empty(1, n_floats, image_size_px, torch.device("cpu"), action_shape)
        return sum(column.nbytes for column in row.by_name().values())

    def append(self, race: RowColumns) -> range:
        """Store a race after the others, over the oldest rows; of a race longer than the ring, store the end.

        Returns:
            The numbers of its rows; those below `first_row` did not fit.

        Raises:
            ValueError: if the rows have another shape than the ring's.
        """
        n_rows, capacity = len(race), self.capacity
        rows = range(self.end_row, self.end_row + n_rows)
        n_dropped = max(0, n_rows - capacity)
        sources = race.by_name()
        for name, target in self._targets.items():
            if tuple(sources[name].shape) != (n_rows, *target.shape[1:]):
                raise ValueError(
                    f"{name} of a race is {tuple(sources[name].shape)}, but the replay memory stores {n_rows} rows of "
                    f"{tuple(target.shape[1:])}"
                )
        with self.lock:
            for name, target in self._targets.items():
                _write(target, rows.start + n_dropped, sources[name][n_dropped:])
            self.end_row = rows.stop
            self.first_row = max(self.first_row, self.end_row - capacity)
        return rows

    def resize(self, capacity: int) -> None:
        """Change the capacity; shrinking drops the oldest rows. Old and new columns exist at once for a moment.

        Raises:
            ValueError: if the capacity is below 1.
            RuntimeError: if allocation fails (on a GPU `torch.OutOfMemoryError`); nothing changes then.
        """
        if capacity < 1:
            raise ValueError(f"a replay memory of {capacity} rows; it needs at least 1")
        with self.lock:
            old_columns = self.columns.by_name()
            new_columns = {
                name: torch.empty((capacity, *old.shape[1:]), dtype=old.dtype, device=old.device)
                for name, old in old_columns.items()
            }
            self.first_row = max(self.first_row, self.end_row - capacity)
            for name, old in old_columns.items():
                for row, piece in _pieces(old, self.first_row, self.end_row):
                    _write(new_columns[name], row, piece)
            self._take(RowColumns(**new_columns))

    def state_dict(self) -> dict[str, Any]:
        """Return the filled rows, oldest first, in host memory, and their numbers."""
        with self.lock:
            state = self.state_to_write()
            return state | {"columns": state["columns"].read(self.first_row, self.end_row)}

    def state_to_write(self) -> dict[str, Any]:
        """Return `state_dict()` with `RingRows`, which are not copied, in place of the columns."""
        return {
            "capacity": self.capacity,
            "first_row": self.first_row,
            "end_row": self.end_row,
            "columns": RingRows(self, self.first_row, self.end_row),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore rows, numbers and capacity.

        Raises:
            ValueError: if the rows have another shape than this ring's, or their numbers are inconsistent.
        """
        capacity, first_row, end_row = (int(state[name]) for name in ("capacity", "first_row", "end_row"))
        if not (0 <= first_row <= end_row and end_row - first_row <= capacity):
            raise ValueError(
                f"a stored replay memory of {capacity} rows claims to hold rows {first_row} to {end_row - 1}; "
                "the checkpoint is damaged"
            )
        for name, column in self.columns.by_name().items():
            stored = state["columns"][name]
            if stored.shape != (end_row - first_row, *column.shape[1:]) or stored.dtype != column.dtype:
                raise ValueError(
                    f"the stored {name} are {tuple(stored.shape)} {stored.dtype}, but this run's rows are "
                    f"{tuple(column.shape[1:])} {column.dtype}: was the observation changed since?"
                )
        with self.lock:
            self.first_row = self.end_row = 0  # drops the present rows
            self.resize(capacity)
            self.first_row, self.end_row, self.origin = first_row, end_row, object()
            for name, target in self._targets.items():
                _write(target, first_row, state["columns"][name])


def _write(target: Any, first_row: int, values: Any) -> None:
    """Write an array or tensor to rows `first_row`, `first_row + 1`, ..., around the ring's end."""
    if isinstance(target, np.ndarray):
        values = values if isinstance(values, np.ndarray) else values.numpy(force=True)
    elif isinstance(values, np.ndarray):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is only read
            values = torch.from_numpy(values)
    n_values, capacity = values.shape[0], target.shape[0]  # len() of a tensor takes a microsecond
    start = first_row % capacity
    n_before_end = min(n_values, capacity - start)
    target[start : start + n_before_end] = values[:n_before_end]
    if n_before_end < n_values:
        target[: n_values - n_before_end] = values[n_before_end:]


def _pieces(column: torch.Tensor, first_row: int, end_row: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield rows `first_row` to `end_row` as (first row, view): up to the ring's end, then from its beginning."""
    start = first_row % len(column)
    n_before_end = min(end_row - first_row, len(column) - start)
    yield first_row, column[start : start + n_before_end]
    yield first_row + n_before_end, column[: end_row - first_row - n_before_end]
