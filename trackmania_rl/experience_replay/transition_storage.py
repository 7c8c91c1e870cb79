"""One side of the replay memory (train or test) as torchrl sees it: the numbers of the rows it may draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import Writer

from trackmania_rl.experience_replay.row_ring import RowRing, writable


class TransitionStorage(Storage):
    """First-in-first-out list of the rows of a `RowRing` at which a transition of this side starts.

    Two storages share one ring. Each looks at the ring's oldest row before it answers anything, so that a transition
    whose rows were overwritten is gone from both sides without anybody having to tell them.

    A priority is kept for each transition (see `ProportionalSampler`).

    Attributes:
        ring: the rows.
        new_priority: () float32 tensor on the ring's device: the priority a new transition gets.
    """

    def __init__(self, ring: RowRing) -> None:
        super().__init__(max_size=ring.capacity)
        self.ring = ring
        self.device = ring.device
        self._empty()

    def _empty(self) -> None:
        # The live part of both lists is [_start, _end). Appending moves the end, dropping moves the start, and when the
        # end is reached the live part moves to the front of new lists, which are long enough to make that rare.
        # Row numbers are kept in host memory, to be looked up, and on the device, to be drawn: the same memory if that
        # is the host's.
        self._row_ids = np.empty(0, dtype=np.int64)
        self._row_ids_to_draw = torch.empty(0, dtype=torch.int64, device=self.device)
        self._priorities = torch.empty(0, dtype=torch.float32, device=self.device)
        self._writable_priorities = writable(self._priorities)
        self._start = 0
        self._end = 0
        self._first_row_seen = self.ring.first_row
        self.new_priority = torch.ones((), dtype=torch.float32, device=self.device)

    @property
    def row_ids(self) -> torch.Tensor:
        """(len(self),) int64, ascending: the rows at which this side's transitions start. A view."""
        self._drop_overwritten()
        return self._row_ids_to_draw[self._start : self._end]

    @property
    def priorities(self) -> torch.Tensor:
        """(len(self),) float32, one for each of `row_ids`. A view: write to it to change them."""
        self._drop_overwritten()
        return self._priorities[self._start : self._end]

    def __len__(self) -> int:
        self._drop_overwritten()
        return self._end - self._start

    def get(self, index: Any) -> torch.Tensor:
        """Row numbers at the given places (whole number, tensor or slice) of the list."""
        return self.row_ids[index]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refused: rows are only added after the others."""
        raise TypeError("transitions are added after the others: use extend()")

    def append(self, row_ids: npt.NDArray[np.int64]) -> int:
        """Add transitions after the others, except those whose rows are already overwritten.

        Args:
            row_ids: (n,) int64, ascending and above all that are there.

        Returns:
            How many were added.
        """
        if len(row_ids) and row_ids[0] < self.ring.first_row:  # of a race longer than the ring, only the end is there
            row_ids = row_ids[row_ids >= self.ring.first_row]
        n_live, n_new = len(self), len(row_ids)
        if self._end + n_new > len(self._row_ids):
            self._move_to_front(3 * (n_live + n_new) // 2)
        end = self._end + n_new
        self._row_ids[self._end : end] = row_ids
        if self.device.type != "cpu":
            self._row_ids_to_draw[self._end : end] = torch.from_numpy(row_ids)
        self._writable_priorities[self._end : end] = self.new_priority
        self._end = end
        self.max_size = self.ring.capacity
        return n_new

    def state_dict(self) -> dict[str, Any]:
        """This side's transitions and priorities, in host memory; the ring is not part of it."""
        return {
            "row_ids": self.row_ids.cpu().clone(),
            "priorities": self.priorities.cpu().clone(),
            "new_priority": self.new_priority.cpu().clone(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; the ring must have been restored before.

        Raises:
            ValueError: if a transition starts at a row that the ring does not hold.
        """
        row_ids, priorities = state_dict["row_ids"], state_dict["priorities"]
        ascends = bool((row_ids.diff() > 0).all())
        if len(row_ids) and not (ascends and row_ids[0] >= self.ring.first_row and row_ids[-1] < self.ring.end_row):
            raise ValueError(
                f"stored transitions refer to rows outside {self.ring.first_row} to {self.ring.end_row - 1}, "
                "which the replay memory holds; the checkpoint is damaged"
            )
        if priorities.shape != row_ids.shape:
            raise ValueError(
                f"{len(row_ids)} stored transitions with {len(priorities)} priorities; the checkpoint is damaged"
            )
        self._empty()
        self.append(row_ids.numpy(force=True))
        self.priorities.copy_(priorities)
        self.new_priority.copy_(state_dict["new_priority"])

    def _drop_overwritten(self) -> None:
        first_row = self.ring.first_row
        if first_row == self._first_row_seen:
            return
        self._start += int(self._row_ids[self._start : self._end].searchsorted(first_row))
        self._first_row_seen = first_row

    def _move_to_front(self, size: int) -> None:
        """Move the live part of all lists to the front of new ones with room for `size` transitions."""
        live = slice(self._start, self._end)
        row_ids = np.empty(size, dtype=np.int64)
        priorities = torch.empty(size, dtype=torch.float32, device=self.device)
        self._end -= self._start
        row_ids[: self._end] = self._row_ids[live]
        priorities[: self._end] = self._priorities[live]
        self._row_ids, self._priorities = row_ids, priorities
        self._row_ids_to_draw = torch.from_numpy(row_ids).to(self.device)
        self._writable_priorities = writable(priorities)
        self._start = 0


class TransitionWriter(Writer):
    """torchrl's way in: `buffer.extend(row_ids)` appends to the buffer's `TransitionStorage`."""

    _storage: TransitionStorage

    def __init__(self) -> None:
        super().__init__()
        self._write_count = 0

    def add(self, data: int) -> int:
        """Append one transition, given by its row; returns its place in the list."""
        return int(self.extend([data])[0])

    def extend(self, data: torch.Tensor | npt.NDArray[np.int64] | Sequence[int]) -> torch.Tensor:
        """Append transitions, given by their rows in ascending order; returns their places in the list."""
        row_ids = data.numpy(force=True) if isinstance(data, torch.Tensor) else np.asarray(data, dtype=np.int64)
        n_added = self.append(row_ids)
        n_transitions = len(self._storage)
        return torch.arange(n_transitions - n_added, n_transitions)

    def append(self, row_ids: npt.NDArray[np.int64]) -> int:
        """Append transitions, given by their rows in ascending order; returns how many were added."""
        n_added = self._storage.append(row_ids)
        self._write_count += n_added
        return n_added

    def _empty(self, empty_write_count: bool = True) -> None:
        if empty_write_count:
            self._write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """How many transitions were ever added."""
        return {"write_count": self._write_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._write_count = int(state_dict["write_count"])

    def dumps(self, path: Any) -> None:
        """Refused, see `replay_state_dict`."""
        raise NotImplementedError("the replay memory is saved whole, with replay_state_dict()")

    def loads(self, path: Any) -> None:
        """Refused, see `load_replay_state_dict`."""
        raise NotImplementedError("the replay memory is restored whole, with load_replay_state_dict()")
