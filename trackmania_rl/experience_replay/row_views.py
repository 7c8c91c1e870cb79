"""Views of the ring buffer's rows: what `race/views.py` reads of a race under way, read of a race that is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.race.views import ACTIONS, FLOATS, FRAMES, View, Views


class RowViews:
    """Reads views.

    Args:
        ring: the rows.
        views: what is read.
    """

    def __init__(self, ring: RingBuffer, views: Views) -> None:
        self.views = views
        self._ring = ring
        table = views.action_table
        self._tables = None if table is None else (table, torch.from_numpy(table).to(ring.device))

    def around(self, position: Any) -> RowsAround:
        """Begin to read around the rows at some positions (B,), array or tensor as the ring's `arrays`."""
        return RowsAround(self._ring, position)

    def images(self, rows: RowsAround) -> torch.Tensor:
        """Put the frames of images together, (B, S, H, W), the oldest first."""
        frames, shifts = self._ring.columns.frames, self.views.frame_shifts
        if frames.numel() == 0:
            return frames.new_empty((len(rows), len(shifts), *frames.shape[2:]))
        # torch copies frames in half of numpy's time
        images = [frames.index_select(0, torch.as_tensor(rows.at(shift))) for shift in shifts]
        return torch.cat(images, dim=1) if len(images) > 1 else images[0]

    def floats(self, rows: RowsAround) -> Any:
        """Gather what agents see, (B, F + n_input_floats) float32; a copy."""
        own = self._ring.arrays.state_floats[rows.at(0)]
        if not self.views.inputs:
            return own
        xp: Any = np if isinstance(own, np.ndarray) else torch
        parts = [self._read(view, shift, rows) for view in self.views.inputs for shift in view.shifts]
        return xp.concatenate([own, *parts], 1)

    def entries(self, rows: RowsAround) -> dict[str, Any]:
        """Gather the entries of training batches, each (B, ...) or (B, K, ...) with an axis for K rows."""
        return {view.name: self._entry(view, rows) for view in self.views.entries}

    def _entry(self, view: View, rows: RowsAround) -> Any:
        values = [self._column(view, shift, rows) for shift in view.shifts]
        if view.is_single:
            return values[0]
        return torch.stack(values, 1) if isinstance(values[0], torch.Tensor) else np.stack(values, 1)

    def _read(self, view: View, shift: int, rows: RowsAround) -> Any:
        """Gather what one row of an input shows, (B, ...) float32."""
        values = self._column(view, shift, rows)
        if view.column != ACTIONS:
            return values
        if self._tables is None:
            return values.clip(-self.views.largest_action, self.views.largest_action)
        of_arrays, of_tensors = self._tables
        return of_arrays[values] if isinstance(values, np.ndarray) else of_tensors[values]

    def _column(self, view: View, shift: int, rows: RowsAround) -> Any:
        position = rows.at(shift)
        if view.column == FRAMES:
            return self._ring.columns.frames.index_select(0, torch.as_tensor(position))[:, 0]
        columns = self._ring.arrays
        if view.column == FLOATS:
            return columns.state_floats[position, view.part]
        values = (columns.actions if view.column == ACTIONS else columns.rewards)[position]
        if values.ndim == 1 and view.column == ACTIONS:
            values = values.astype(np.int64) if isinstance(values, np.ndarray) else values.long()
        if shift < 0:  # a copy, as all that is gathered by positions
            before: Any = self.views.action_before if view.column == ACTIONS else 0.0
            values[rows.is_missing(shift)] = before if np.isscalar(before) else _like(before, values)
        return values


class RowsAround:
    """The rows at shifts from some rows, within their races; found as they are asked for.

    Of a race whose first rows were overwritten, the oldest row that is left counts as its first.

    Args:
        ring: the rows.
        position: (B,) where the rows lie.
    """

    def __init__(self, ring: RingBuffer, position: Any) -> None:
        self._ring = ring
        self._back = [position]
        self._ahead = [position]
        self._is_missing: list[Any] = [None]

    def __len__(self) -> int:
        return len(self._back[0])

    def at(self, shift: int) -> Any:
        """Find the positions (B,) of the rows at a shift; the nearest row stands in where the race has none."""
        if shift <= 0:
            if len(self._back) <= -shift:
                self._go_back(-shift)
            return self._back[-shift]
        n_steps, capacity = self._ring.arrays.n_steps, self._ring.capacity
        where: Any = np.where if isinstance(self._back[0], np.ndarray) else torch.where
        while len(self._ahead) <= shift:
            position = self._ahead[-1]
            is_last = n_steps[position] == 0
            self._ahead.append(where(is_last, position, (position + 1) % capacity))
        return self._ahead[shift]

    def is_missing(self, shift: int) -> Any:
        """Say (B,) where the race has no row at a shift below 0."""
        self._go_back(-shift)
        return self._is_missing[-shift]

    def _go_back(self, n_rows: int) -> None:
        n_steps, capacity = self._ring.arrays.n_steps, self._ring.capacity
        where: Any = np.where if isinstance(self._back[0], np.ndarray) else torch.where
        oldest = self._ring.first_row % capacity
        while len(self._back) <= n_rows:
            position = self._back[-1]
            before = (position - 1) % capacity
            is_first = (n_steps[before] == 0) | (position == oldest)
            self._is_missing.append(is_first)
            self._back.append(where(is_first, position, before))


def _like(numbers: tuple[float, ...], values: Any) -> Any:
    return np.array(numbers, values.dtype) if isinstance(values, np.ndarray) else values.new_tensor(numbers)
