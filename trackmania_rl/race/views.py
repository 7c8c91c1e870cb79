"""Views: values of the rows around a state's own, for agents or training batches.

They are read alike from races in progress (numpy, `RowsInProgress`) and from the replay memory (torch, `RingRows` of
`experience_replay/transitions.py`). Before a race's first row, that row is repeated; actions there are straight ahead,
and rewards 0. With `has_zeros_before` all values there are 0. After the last row, that one is repeated.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FLOATS: Final = "floats"
ACTIONS: Final = "actions"
REWARDS: Final = "rewards"
FRAMES: Final = "frames"
ACTION_TABLE: Final = "action_table"


@dataclass(frozen=True)
class View:
    """View of a column."""

    name: str  #: of the observation's block, or of the batch entry
    column: str  #: `FLOATS`, `ACTIONS`, `REWARDS` or `FRAMES`
    shifts: tuple[int, ...]  #: rows, ascending: -1 is the one before, 0 the state's own
    start: int = 0  #: first of `FLOATS`
    stop: int = 0  #: exclusive
    is_single: bool = False  #: whether a batch entry has no axis for rows
    has_zeros_before: bool = False  #: whether values before a race's first row are 0

    @property
    def part(self) -> slice:
        """Place in `FLOATS`."""
        return slice(self.start, self.stop)


class RowsAround(Protocol):
    """The rows around n states, within their races."""

    @property
    def library(self) -> ModuleType:
        """`numpy` or `torch`."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """`Views.constants`, as arrays of the same library."""

    def take(self, column: Any, shifts: tuple[int, ...]) -> Any:
        """Return the values (n, S, ...) of a column at S shifts from the states' rows."""

    def is_missing(self, shifts: tuple[int, ...]) -> Any:
        """Return whether the race has no row at the shifts below 0, (n, number of those shifts) bool."""


@dataclass(frozen=True)
class RowsInProgress:
    """`RowsAround` in columns (K, R, ...) of K races in progress.

    Attributes:
        races: (n,).
        rows: (n,), the states' rows in these races.
        constants: of `Views.constants`.
    """

    races: Array
    rows: Array
    constants: Mapping[str, Array]
    library = np

    def take(self, column: Array, shifts: tuple[int, ...]) -> Array:
        """See `RowsAround`."""
        if shifts == (0,):
            return column[self.races, self.rows][:, None]
        return column[self.races[:, None], np.maximum(self.rows[:, None] + np.array(shifts), 0)]

    def is_missing(self, shifts: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """See `RowsAround`."""
        before = [shift for shift in shifts if shift < 0]
        return self.rows[:, None] + np.array(before, dtype=np.int64) < 0


@dataclass(frozen=True)
class Views:
    """All views of a run."""

    frame_shifts: tuple[int, ...] = (0,)  #: of one image, oldest first
    inputs: tuple[View, ...] = ()  #: of `FLOATS` and `ACTIONS` in earlier rows: floats behind the row's own
    entries: tuple[View, ...] = ()  #: for training batches only
    n_input_floats: int = 0
    floats_of_actions: tuple[tuple[float, ...], ...] = ()  #: D floats for each action in inputs; () if continuous
    action_before: int | tuple[float, ...] = 0  #: placeholder for the actions before a race's first
    largest_action: float = 1.0  #: limit of continuous actions in inputs

    @functools.cached_property
    def constants(self) -> dict[str, Array]:
        """Placeholders before a race's first row, by column; discrete actions' floats (A + 1, D), the last ones 0."""
        dtype = np.float32 if isinstance(self.action_before, tuple) else np.int64
        placeholders = {ACTIONS: np.array(self.action_before, dtype), REWARDS: np.zeros((), dtype=np.float32)}
        table = np.array(self.floats_of_actions, dtype=np.float32)
        return placeholders | {ACTION_TABLE: np.concatenate((table, np.zeros_like(table[:1])))}

    @property
    def rows_back(self) -> int:
        """Number of earlier rows that an agent needs."""
        return -min(self.frame_shifts + tuple(shift for view in self.inputs for shift in view.shifts))

    def images(self, rows: RowsAround, frames: Any) -> Any:
        """Return the images (n, S, H, W) of some states, S frames, the oldest first.

        Args:
            rows: around the states.
            frames: column (..., 1, H, W) uint8.
        """
        return rows.take(frames, self.frame_shifts)[:, :, 0]

    def floats(self, rows: RowsAround, floats: Any, actions: Any) -> Any:
        """Return the floats (n, F + n_input_floats) float32 of some states; a copy.

        Args:
            rows: around the states.
            floats: column (..., F) float32.
            actions: column (..., ) or (..., D); only earlier rows are read.
        """
        own = rows.take(floats, (0,))[:, 0]
        if not self.inputs:
            return own
        blocks = [own]
        columns = {FLOATS: floats, ACTIONS: actions}
        for view in self.inputs:
            zero = len(self.floats_of_actions) if view.column == ACTIONS else 0
            values = _values(view, rows, columns, zero)  # (n, S, ...)
            if view.column == ACTIONS and self.floats_of_actions:
                values = rows.constants[ACTION_TABLE][values]
            elif view.column == ACTIONS:
                values = values.clip(-self.largest_action, self.largest_action)
            blocks.append(values.reshape(values.shape[0], values.shape[1] * values.shape[2]))
        return rows.library.concatenate(blocks, 1)

    def batch_entries(self, rows: RowsAround, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a training batch of some states, each (n, ...), or (n, S, ...) of S rows."""
        entries = {}
        for view in self.entries:
            values = _values(view, rows, columns)
            entries[view.name] = values[:, 0] if view.is_single else values
        return entries

    def of_states(self, frames: Array, floats: Array, actions: Array, races: Array, rows: Array) -> tuple[Array, Array]:
        """Return images (n, S, H, W) and floats (n, F + n_input_floats) of the states in `rows` (n,) of `races` (n,).

        Args:
            frames: (K, R, 1, H, W) uint8 of K races.
            floats: (K, R, F) float32.
            actions: (K, R, ...); only earlier rows are read.
            races: (n,).
            rows: (n,); later rows are not read.
        """
        around = RowsInProgress(races, rows, self.constants)
        return self.images(around, frames), self.floats(around, floats, actions)

    def last_state(self, columns: Mapping[str, Any]) -> tuple[Array, Array]:
        """Return the last state of an ended race: image (S, H, W), floats (F + n_input_floats,)."""
        frames, floats, actions = (columns[name][None] for name in ("frames", "state_float", "actions"))
        last = np.array([actions.shape[1]])
        images, floats = self.of_states(frames, floats, actions, np.zeros(1, dtype=np.int64), last)
        return images[0], floats[0]


def _values(view: View, rows: RowsAround, columns: Mapping[str, Any], zero: int = 0) -> Any:
    """Return the values (n, S, ...) of a view, with `zero` before the races' first rows if it `has_zeros_before`."""
    column = columns[view.column]
    values = rows.take(column[..., view.part] if view.column == FLOATS else column, view.shifts)
    if view.column == FRAMES:
        values = values[:, :, 0]
    filler = zero if view.has_zeros_before else rows.constants.get(view.column)
    n_before = sum(shift < 0 for shift in view.shifts)  # shifts ascend: these are the first ones
    if filler is None or n_before == 0:  # floats and frames repeat the first row
        return values
    is_missing = rows.is_missing(view.shifts)
    is_missing = is_missing.reshape(*is_missing.shape, *(1 for _ in values.shape[2:]))
    before = rows.library.where(is_missing, filler, values[:, :n_before])
    return rows.library.concatenate((before, values[:, n_before:]), 1)


NO_VIEWS: Final = Views()
"""The newest frame and the row's own floats."""
