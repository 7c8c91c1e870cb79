"""Views of stored rows, read as `race/views.py` reads them from a race under way."""

from __future__ import annotations

from typing import NamedTuple

import torch

from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.race.views import ACTIONS, FLOATS, FRAMES, REWARDS, View, Views


class RowsAround(NamedTuple):
    """Rows around B rows, within their races. Where a race has no row, the nearest one replaces it.

    The first row of a race whose beginning was overwritten is its oldest row in the ring.
    """

    position: torch.Tensor  # (B, K) in the ring: the own row, those before it, the nearest first, those after it
    is_missing: torch.Tensor  # (B, .) True for rows before the race's first one


class RowViews:
    """Reader of the views of a ring's rows."""

    def __init__(self, ring: RingBuffer, views: Views) -> None:
        self.views = views
        self._ring = ring
        table, device = views.action_table, ring.device
        self._action_table = None if table is None else torch.from_numpy(table).to(device)
        self._before_the_first = {
            ACTIONS: torch.tensor(views.action_before, device=device),
            REWARDS: torch.zeros((), device=device),
        }
        all_shifts = {(0,), views.frame_shifts, *(view.shifts for view in (*views.inputs, *views.entries))}
        n_back, n_ahead = -min(map(min, all_shifts)), max(map(max, all_shifts))
        self._back = torch.arange(1, n_back + 1, device=device)
        self._ahead = torch.arange(n_ahead, device=device)
        self._places = {
            shifts: torch.tensor([n_back + shift if shift > 0 else -shift for shift in shifts], device=device)
            for shifts in all_shifts
        }
        # Places of the shifts below 0 in `is_missing`.
        self._places_before = {
            shifts: torch.tensor([-shift - 1 for shift in shifts if shift < 0], dtype=torch.int64, device=device)
            for shifts in all_shifts
        }

    def around(self, position: torch.Tensor) -> RowsAround:
        """Find the rows around those at some positions (B,)."""
        n_steps, n_positions, own = self._ring.columns.n_steps, self._ring.n_positions, position.unsqueeze(1)
        positions, is_missing = [own], own
        if self._back.shape[0] > 0:
            before = (own - self._back) % n_positions
            is_of_race = n_steps.take(before).ne(0).logical_and_(before.ne((self._ring.first_row - 1) % n_positions))
            is_there = is_of_race.cumprod(1)  # 1, then 0 before the race's first row
            is_missing = is_there.eq(0)
            positions.append((own - is_there.cumsum(1)) % n_positions)
        if self._ahead.shape[0] > 0:
            is_there = n_steps.take((own + self._ahead) % n_positions).ne(0).cumprod(1)
            positions.append((own + is_there.cumsum(1)) % n_positions)
        return RowsAround(torch.cat(positions, dim=1) if len(positions) > 1 else own, is_missing)

    def images(self, rows: RowsAround) -> torch.Tensor:
        """Return images (B, S, H, W) of S frames, the oldest first."""
        frames, shifts = self._ring.columns.frames, self.views.frame_shifts
        if frames.numel() == 0:
            return frames.new_empty((rows.position.shape[0], len(shifts), *frames.shape[2:]))
        return _gather(frames[:, 0], self._at(shifts, rows))

    def floats(self, rows: RowsAround) -> torch.Tensor:
        """Return the floats of observations, (B, F + n_input_floats) float32; a copy."""
        own = self._ring.columns.state_floats.index_select(0, rows.position[:, 0])
        if not self.views.inputs:
            return own
        return torch.cat([own, *(self._input(view, rows).flatten(1) for view in self.views.inputs)], dim=1)

    def entries(self, rows: RowsAround) -> dict[str, torch.Tensor]:
        """Return the entries of training batches, each (B, ...), or (B, K, ...) of K rows."""
        columns = {view.name: (view, self._column(view, rows)) for view in self.views.entries}
        return {name: values[:, 0] if view.is_single else values for name, (view, values) in columns.items()}

    def _at(self, shifts: tuple[int, ...], rows: RowsAround) -> torch.Tensor:
        return rows.position.index_select(1, self._places[shifts])

    def _input(self, view: View, rows: RowsAround) -> torch.Tensor:
        """Return the floats (B, K, ...) of an input."""
        values = self._column(view, rows)
        if view.column != ACTIONS:
            return values
        if self._action_table is None:
            return values.clip(-self.views.largest_action, self.views.largest_action)
        return _gather(self._action_table, values)

    def _column(self, view: View, rows: RowsAround) -> torch.Tensor:
        """Return the values (B, K, ...) of a view's column in its K rows."""
        columns, position = self._ring.columns, self._at(view.shifts, rows)
        if view.column == FRAMES:
            return _gather(columns.frames[:, 0], position)
        if view.column == FLOATS:
            return _gather(columns.state_floats[:, view.part], position)
        values = _gather(columns.actions if view.column == ACTIONS else columns.rewards, position)
        if values.dtype == torch.int16:
            values = values.long()
        places = self._places_before[view.shifts]
        n_before = places.shape[0]  # shifts ascend
        if n_before > 0:
            is_missing = rows.is_missing.index_select(1, places)
            if values.ndim > 2:
                is_missing = is_missing.unsqueeze(2)
            before = torch.where(is_missing, self._before_the_first[view.column], values[:, :n_before])
            values = before if n_before == values.shape[1] else torch.cat((before, values[:, n_before:]), dim=1)
        return values


def _gather(column: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Return the rows (B, K, ...) at positions (B, K); faster than indexing."""
    if column.ndim == 1:
        return column.take(position)
    return column.index_select(0, position.flatten()).view(*position.shape, *column.shape[1:])
