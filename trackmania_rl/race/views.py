"""Views: values of the rows around a state's own, for agents or training batches.

`Views.of_states` reads them from races in progress, `experience_replay/transitions.py` from the replay memory, with
equal bytes. Before a race's first row, that row is repeated; actions there are straight ahead, and rewards 0. After the
last row, that one is repeated.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FLOATS: Final = "floats"
ACTIONS: Final = "actions"
REWARDS: Final = "rewards"
FRAMES: Final = "frames"


@dataclass(frozen=True)
class View:
    """View of a column."""

    name: str  #: of the observation's block, or of the batch entry
    column: str  #: `FLOATS`, `ACTIONS`, `REWARDS` or `FRAMES`
    shifts: tuple[int, ...]  #: rows, ascending: -1 is the one before, 0 the state's own
    start: int = 0  #: first of `FLOATS`
    stop: int = 0  #: exclusive
    is_single: bool = False  #: whether a batch entry has no axis for rows

    @property
    def part(self) -> slice:
        """Place in `FLOATS`."""
        return slice(self.start, self.stop)


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
    def action_table(self) -> npt.NDArray[np.float32] | None:
        """(A, D) float32, `floats_of_actions`; None for continuous actions."""
        return np.array(self.floats_of_actions, dtype=np.float32) if self.floats_of_actions else None

    @property
    def rows_back(self) -> int:
        """Number of earlier rows that an agent needs."""
        return -min(self.frame_shifts + tuple(shift for view in self.inputs for shift in view.shifts))

    def of_states(self, frames: Array, floats: Array, actions: Array, races: Array, rows: Array) -> tuple[Array, Array]:
        """Return images (n, S, H, W) and floats (n, F + n_input_floats) of the states in `rows` (n,) of `races` (n,).

        Args:
            frames: (K, R, 1, H, W) uint8 of K races; later rows are not read.
            floats: (K, R, F) float32.
            actions: (K, R, ...); only earlier rows are read.
            races: (n,).
            rows: (n,).
        """
        if self.frame_shifts == (0,):
            images = frames[races, rows]
        else:
            images = frames[races[:, None], _rows_at(rows, self.frame_shifts), 0]
        own = floats[races, rows]
        if not self.inputs:
            return images, own
        return images, np.concatenate(
            [own, *(self._shown(view, floats, actions, races, rows) for view in self.inputs)], axis=1
        )

    def last_state(self, columns: Mapping[str, Any]) -> tuple[Array, Array]:
        """Return the last state of an ended race: image (S, H, W), floats (F + n_input_floats,)."""
        frames, floats, actions = (columns[name][None] for name in ("frames", "state_float", "actions"))
        last = np.array([actions.shape[1]])
        images, floats = self.of_states(frames, floats, actions, np.zeros(1, dtype=np.int64), last)
        return images[0], floats[0]

    def _shown(self, view: View, floats: Array, actions: Array, races: Array, rows: Array) -> Array:
        seen = _rows_at(rows, view.shifts)
        if view.column == FLOATS:
            return _side_by_side(floats[races[:, None], seen, view.part])
        taken = actions[races[:, None], seen]
        taken[rows[:, None] + np.array(view.shifts) < 0] = self.action_before
        if self.action_table is None:
            return _side_by_side(taken.clip(-self.largest_action, self.largest_action))
        return _side_by_side(self.action_table[taken])


NO_VIEWS: Final = Views()
"""The newest frame and the row's own floats."""


def _side_by_side(values: Array) -> Array:
    return values.reshape(len(values), values.shape[1] * values.shape[2])


def _rows_at(rows: Array, shifts: tuple[int, ...]) -> Array:
    """Return the rows (n, S) at the shifts from `rows` (n,), at least the first row."""
    return np.maximum(rows[:, None] + np.array(shifts), 0)
