"""One side of the train/test split as torchrl sees it: a storage of transitions, and the writer that fills it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import Writer

from trackmania_rl.experience_replay.experience import Experience, rows_of_experiences
from trackmania_rl.experience_replay.ring_buffer import COLUMN_NAMES, RingBuffer, RowColumns, array_of
from trackmania_rl.experience_replay.row_views import RowViews
from trackmania_rl.race.views import NO_VIEWS, Views


class Transitions(NamedTuple):
    """B transitions in columns: numpy arrays out of host memory, tensors out of a device's, but for the images.

    Attributes:
        index: (B,) int64, their numbers, see `TransitionStorage`.
        state_img: (B, S, H, W) uint8 tensor, S frames of which the newest is last; H = W = 0 without an image.
        state_float: (B, F) float32, those that views make included.
        state_potential: (B,) float32.
        action: (B,) int16, or (B, D) float32.
        n_steps: (B,) int16, actions between state and next state.
        rewards: (B, n_steps_max) float32, of the single actions; meaningless beyond `n_steps`.
        next_state_img: like `state_img`.
        next_state_float: like `state_float`.
        next_state_potential: (B,) float32; meaningless at the finish.
        terminal_actions: (B,) int32, actions to the finish, or `NEVER_FINISHES`.
        entries: what other views read, by name.
    """

    index: Any
    state_img: torch.Tensor
    state_float: Any
    state_potential: Any
    action: Any
    n_steps: Any
    rewards: Any
    next_state_img: torch.Tensor
    next_state_float: Any
    next_state_potential: Any
    terminal_actions: Any
    entries: dict[str, Any]


def count(n: int, beside: Any) -> Any:
    """Count 0, 1, ..., n - 1, in an array beside an array, in a tensor on the device of a tensor."""
    return np.arange(n) if isinstance(beside, np.ndarray) else torch.arange(n, device=beside.device)


class SavedByBuffer:
    """A part of a replay buffer that is saved with it."""

    def dumps(self, path: Any) -> NoReturn:
        """Refuse: `ReplayBuffer.dumps` saves the buffer as a whole."""
        raise NotImplementedError("a part of a replay buffer is saved with it: call the buffer's dumps")

    def loads(self, path: Any) -> NoReturn:
        """Refuse: `ReplayBuffer.loads` loads the buffer as a whole."""
        raise NotImplementedError("a part of a replay buffer is loaded with it: call the buffer's loads")


class TransitionStorage(SavedByBuffer, Storage):
    """First-in-first-out list of the rows of a `RingBuffer` at which a transition of this side starts.

    A transition's *index* is the number of its first row, which never changes and never comes again: the sampler draws
    it, `get` and `update_priority` take it. `storage[i]` takes places in the list, from the oldest transition on.

    Two storages share one ring buffer. Each looks at its oldest row before it answers anything, so that a transition
    whose rows were overwritten is gone from both sides without anybody having to tell them.

    A priority is kept for each transition (see `ProportionalSampler`).

    Args:
        ring: the rows.
        n_steps_max: the largest `n_steps` in the ring buffer.
        views: what is read of the rows around a transition's.

    Attributes:
        ring: the rows.
        n_steps_max: as given.
        views: as given.
        new_priority: () float32 tensor on the ring buffer's device: the priority a new transition gets.
    """

    def __init__(self, ring: RingBuffer, n_steps_max: int, views: Views = NO_VIEWS) -> None:
        super().__init__(max_size=ring.capacity)
        self.ring = ring
        self.device = ring.device
        self.n_steps_max = n_steps_max
        self.views = views
        self._row_views = RowViews(ring, views)
        self._empty()

    def _empty(self) -> None:
        # The live part of both lists is [_start, _end). Appending moves the end, dropping moves the start, and when the
        # end is reached the live part moves to the front of new lists, which are long enough to make that rare.
        # The index is kept in host memory, to be looked up, and on the device, to be drawn: the same memory if that is
        # the host's.
        self._index = np.empty(0, dtype=np.int64)
        self._index_to_draw = torch.empty(0, dtype=torch.int64, device=self.device)
        self._priorities = torch.empty(0, dtype=torch.float32, device=self.device)
        self._writable_priorities = array_of(self._priorities)
        self._start = 0
        self._end = 0
        self._first_row_seen = self.ring.first_row
        self.new_priority = torch.ones((), dtype=torch.float32, device=self.device)

    @property
    def index(self) -> torch.Tensor:
        """(len(self),) int64, ascending: the index of every transition. A view."""
        self._drop_overwritten()
        return self._index_to_draw[self._start : self._end]

    @property
    def priorities(self) -> torch.Tensor:
        """(len(self),) float32, one for each of `index`. A view: write to it to change them."""
        self._drop_overwritten()
        return self._priorities[self._start : self._end]

    def __len__(self) -> int:
        self._drop_overwritten()
        return self._end - self._start

    def __getitem__(self, place: Any) -> Transitions:
        """Gather the transitions at places (slice, tensor) of the list."""
        return self.get(self.index[place])

    def get(self, index: torch.Tensor) -> Transitions:
        """Gather the transitions of an index (B,); copies."""
        rows, capacity = self.ring.arrays, self.ring.capacity
        on_host = isinstance(rows.actions, np.ndarray)
        at: Any = index.numpy() if on_host else index  # as the rows are; the same lines are for both
        position = at % capacity
        n_steps = rows.n_steps[position]
        next_position = (position + n_steps) % capacity
        views = self._row_views
        around, around_next = views.around(position), views.around(next_position)
        return Transitions(
            index=at,
            state_img=views.images(around),
            state_float=views.floats(around),
            state_potential=rows.potentials[position],
            action=rows.actions[position],
            n_steps=n_steps,
            rewards=rows.rewards[(position[:, None] + count(self.n_steps_max, beside=at)) % capacity],
            next_state_img=views.images(around_next),
            next_state_float=views.floats(around_next),
            next_state_potential=rows.potentials[next_position],
            terminal_actions=rows.steps_to_finish[position],
            entries=views.entries(around),
        )

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> NoReturn:
        """Refuse: rows are only added after the others."""
        raise TypeError("transitions are added after the others: use extend()")

    def contains(self, index: int) -> bool:
        """Say whether the transition of this index is there."""
        return bool((self.index == index).any())

    def append(self, index: npt.NDArray[np.int64]) -> int:
        """Add transitions after the others, except those whose rows are already overwritten.

        Args:
            index: (n,) int64, ascending and above all that are there.

        Returns:
            How many were added.
        """
        if len(index) and index[0] < self.ring.first_row:  # of a race longer than the ring, only the end is there
            index = index[index >= self.ring.first_row]
        n_live, n_new = len(self), len(index)
        if self._end + n_new > len(self._index):
            self._move_to_front(3 * (n_live + n_new) // 2)
        end = self._end + n_new
        self._index[self._end : end] = index
        if self.device.type != "cpu":
            self._index_to_draw[self._end : end] = torch.from_numpy(index)
        self._writable_priorities[self._end : end] = self.new_priority
        self._end = end
        self.max_size = self.ring.capacity
        return n_new

    def state_dict(self) -> dict[str, Any]:
        """Return this side's index and priorities, in host memory; the ring buffer is not part of it."""
        return {
            "index": self.index.cpu().clone(),
            "priorities": self.priorities.cpu().clone(),
            "new_priority": self.new_priority.cpu().clone(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; the ring buffer must have been restored before.

        Raises:
            ValueError: if a transition starts at a row that the ring buffer does not hold.
        """
        index, priorities = state_dict["index"], state_dict["priorities"]
        ascends = bool((index.diff() > 0).all())
        if len(index) and not (ascends and index[0] >= self.ring.first_row and index[-1] < self.ring.end_row):
            raise ValueError(
                f"stored transitions refer to rows outside {self.ring.first_row} to {self.ring.end_row - 1}, "
                "which the replay memory holds; the checkpoint is damaged"
            )
        if priorities.shape != index.shape:
            raise ValueError(
                f"{len(index)} stored transitions with {len(priorities)} priorities; the checkpoint is damaged"
            )
        self._empty()
        self.append(index.numpy(force=True))
        self.priorities.copy_(priorities)
        self.new_priority.copy_(state_dict["new_priority"])

    def _drop_overwritten(self) -> None:
        first_row = self.ring.first_row
        if first_row == self._first_row_seen:
            return
        self._start += int(self._index[self._start : self._end].searchsorted(first_row))
        self._first_row_seen = first_row

    def _move_to_front(self, size: int) -> None:
        """Move the live part of all lists to the front of new ones with room for `size` transitions."""
        live = slice(self._start, self._end)
        index = np.empty(size, dtype=np.int64)
        priorities = torch.empty(size, dtype=torch.float32, device=self.device)
        self._end -= self._start
        index[: self._end] = self._index[live]
        priorities[: self._end] = self._priorities[live]
        self._index, self._priorities = index, priorities
        self._index_to_draw = torch.from_numpy(index).to(self.device)
        self._writable_priorities = array_of(priorities)
        self._start = 0


class TransitionWriter(SavedByBuffer, Writer):
    """Writes races and single transitions to the ring buffer, and their index to a `TransitionStorage`."""

    _storage: TransitionStorage

    def __init__(self) -> None:
        super().__init__()
        self._write_count = 0

    def add(self, data: Experience) -> int:
        """Write one transition; returns its index."""
        return int(self.extend([data])[0])

    def extend(self, data: RowColumns[Any] | TensorDictBase | Sequence[Experience]) -> torch.Tensor:
        """Write a race, or transitions, after all that is there.

        Args:
            data: a race's rows, as `RowColumns` or a TensorDict with its columns; a transition starts at each row whose
                `n_steps` is not 0. Or transitions.

        Returns:
            The index (n,) int64 of those that are there; of a race longer than the whole memory that is its end.

        Raises:
            ValueError: if the rows have another shape than the ring buffer's.
        """
        if isinstance(data, TensorDictBase):
            data = RowColumns(**{name: data[name] for name in COLUMN_NAMES})
        elif not isinstance(data, RowColumns):
            if len(data) == 0:
                return self._storage.index[:0].clone()
            data = rows_of_experiences(data)
        rows = self._storage.ring.append(data)
        n_steps = data.n_steps.numpy(force=True) if isinstance(data.n_steps, torch.Tensor) else data.n_steps
        n_added = self.append(rows.start + n_steps.nonzero()[0])
        return self._storage.index[len(self._storage) - n_added :].clone()

    def append(self, index: npt.NDArray[np.int64]) -> int:
        """Append transitions whose rows are in the ring buffer; returns how many were added."""
        n_added = self._storage.append(index)
        self._write_count += n_added
        return n_added

    def _empty(self, empty_write_count: bool = True) -> None:
        if empty_write_count:
            self._write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """Return how many transitions were ever added."""
        return {"write_count": self._write_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._write_count = int(state_dict["write_count"])
