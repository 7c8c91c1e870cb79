"""Storage, views and sampler for one side of the train/test split, for torchrl's replay buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.data.replay_buffers.storages import Storage

from trackmania_rl.experience_replay.ring_buffer import RingBuffer
from trackmania_rl.race.views import ACTIONS, FLOATS, FRAMES, NO_VIEWS, REWARDS, Views


@dataclass
class Transitions:
    """B transitions in columns."""

    index: torch.Tensor  # (B,) int64, first rows' numbers
    state_img: torch.Tensor  # (B, S, H, W) uint8, S frames, the newest last; H = W = 0 without an image
    state_float: torch.Tensor  # (B, F) float32, with the views' floats
    state_potential: torch.Tensor  # (B,) float32
    action: torch.Tensor  # (B,) int16, or (B, D) float32
    n_steps: torch.Tensor  # (B,) int64, actions between state and next state
    rewards: torch.Tensor  # (B, n_steps_max) float32, one per action; meaningless beyond `n_steps`
    next_state_img: torch.Tensor
    next_state_float: torch.Tensor
    next_state_potential: torch.Tensor  # (B,) float32; meaningless at the finish
    terminal_actions: torch.Tensor  # (B,) int32, actions to the finish, or `NEVER_FINISHES`
    entries: dict[str, torch.Tensor]  # other views' values, by name


@dataclass(frozen=True)
class Experience:
    """An n-step transition in full, as `buffer[i]` returns it; `buffer_collate_function` makes mini-races."""

    state_img: npt.NDArray[np.uint8]  # (S, H, W)
    state_float: npt.NDArray[np.float32]  # (F,)
    state_potential: float
    action: int | npt.NDArray[np.float32]  # index into the inputs; or (D,)
    n_steps: int  # actions between the state and the next state
    rewards: npt.NDArray[np.float32]  # (n_steps_max,); [k] is the discounted sum of the first min(k + 1, n_steps)
    gammas: npt.NDArray[np.float32]  # (n_steps_max,); [k] is gamma^(k + 1)
    next_state_img: npt.NDArray[np.uint8]
    next_state_float: npt.NDArray[np.float32]
    next_state_potential: float  # 0 at the finish
    terminal_actions: int  # from the state to the finish; `NEVER_FINISHES` if the race was cut off

    @staticmethod
    def of(transition: Transitions, gamma: float) -> Experience:
        """Convert a single transition."""
        of_state = {name: column for name, column in vars(transition).items() if name != "entries"}
        columns = {name: column[0].numpy(force=True) for name, column in of_state.items()}
        n_steps = int(columns["n_steps"])
        terminal_actions = int(columns["terminal_actions"])
        exponents = np.arange(len(columns["rewards"]))
        rewards = np.where(exponents < n_steps, columns["rewards"], np.float32(0))
        return Experience(
            state_img=columns["state_img"],
            state_float=columns["state_float"],
            state_potential=float(columns["state_potential"]),
            action=columns["action"] if columns["action"].ndim else int(columns["action"]),
            n_steps=n_steps,
            rewards=np.cumsum(gamma**exponents * rewards).astype(np.float32),
            gammas=(gamma ** (exponents + 1)).astype(np.float32),
            next_state_img=columns["next_state_img"],
            next_state_float=columns["next_state_float"],
            next_state_potential=0.0 if n_steps == terminal_actions else float(columns["next_state_potential"]),
            terminal_actions=terminal_actions,
        )


class RingRows:
    """`RowsAround` for a ring's rows at positions (n,).

    If a race's beginning was overwritten, the first row is the oldest row in the ring.

    Attributes:
        position: (n, K) in the ring: the row itself, rows before it, nearest first, rows after it. Where a race has
            no row, the nearest one replaces it.
        missing: (n, rows before) True for rows before the race's first one.
    """

    library = torch

    def __init__(self, reader: RingReader, position: torch.Tensor) -> None:
        self.constants = reader.constants
        self._reader = reader
        self._own = position
        self.position, self.missing = reader.around(position.unsqueeze(1))

    def take(self, column: torch.Tensor, shifts: tuple[int, ...]) -> torch.Tensor:
        """Return the values (n, S, ...) from a column (R, ...); faster than indexing."""
        if shifts == (0,):
            values = column.index_select(0, self._own).unsqueeze(1)
        else:
            position = self.position.index_select(1, self._reader.places[shifts])
            values = column.index_select(0, position.flatten()).view(*position.shape, *column.shape[1:])
        return values.long() if values.dtype == torch.int16 else values

    def is_missing(self, shifts: tuple[int, ...]) -> torch.Tensor:
        """Return whether the race has no row at the shifts below 0, (n, count of those shifts)."""
        return self.missing.index_select(1, self._reader.places_before[shifts])


class RingReader:
    """Finds the rows that views on a ring's rows need.

    Attributes:
        constants: from `Views.constants`, on the ring's device.
        places: for shifts in `RingRows.position`.
        places_before: for the shifts below 0 in `RingRows.missing`.
    """

    def __init__(self, ring: RingBuffer, views: Views) -> None:
        device = ring.device
        self.constants = {name: torch.from_numpy(values).to(device) for name, values in views.constants.items()}
        self._ring = ring
        all_shifts = {(0,), views.frame_shifts, *(view.shifts for view in (*views.inputs, *views.entries))}
        n_back = -min(map(min, all_shifts))
        self._back = torch.arange(1, n_back + 1, device=device)
        self._ahead = torch.arange(max(map(max, all_shifts)), device=device)
        self.places = {
            shifts: torch.tensor([n_back + shift if shift > 0 else -shift for shift in shifts], device=device)
            for shifts in all_shifts
        }
        self.places_before = {
            shifts: torch.tensor([-shift - 1 for shift in shifts if shift < 0], dtype=torch.int64, device=device)
            for shifts in all_shifts
        }

    def around(self, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `RingRows.position` and `RingRows.missing` for rows at positions (n, 1)."""
        n_steps = self._ring.columns.n_steps
        n_positions = self._ring.n_positions
        positions = [own]
        is_missing = own
        if self._back.shape[0] > 0:
            before = (own - self._back) % n_positions
            is_of_race = n_steps.take(before).ne(0).logical_and_(before.ne((self._ring.first_row - 1) % n_positions))
            is_there = is_of_race.cumprod(1)  # 1, then 0 before the race's first row
            is_missing = is_there.eq(0)
            positions.append((own - is_there.cumsum(1)) % n_positions)
        if self._ahead.shape[0] > 0:
            is_there = n_steps.take((own + self._ahead) % n_positions).ne(0).cumprod(1)
            positions.append((own + is_there.cumsum(1)) % n_positions)
        return (torch.cat(positions, dim=1) if len(positions) > 1 else own), is_missing


class TransitionStorage(Storage):
    """First-in-first-out list of `RingBuffer` rows at which one side's transitions start.

    A transition's *index* is the first row's number, which is unique: the sampler draws it, and `get` takes it.
    `storage[i]` takes places in the list, the oldest first. Transitions with overwritten rows are dropped at the
    next reading.

    `n_steps_max` is the largest `n_steps` in the ring buffer.
    """

    def __init__(self, ring: RingBuffer, n_steps_max: int, views: Views = NO_VIEWS) -> None:
        super().__init__(max_size=ring.capacity)
        self.ring = ring
        self.device = ring.device
        self.n_steps_max = n_steps_max
        self.views = views
        self._reader = RingReader(ring, views)
        self._steps = torch.arange(n_steps_max, device=self.device)
        self._empty()

    def _empty(self) -> None:
        # Both lists' live part is [_start, _end). At the end it moves to the front of new, longer ones.
        self._index = torch.empty(0, dtype=torch.int64, device=self.device)
        self._priorities = torch.empty(0, dtype=torch.float32, device=self.device)
        self._start = 0
        self._end = 0
        self._first_row_seen = self.ring.first_row
        self.new_priority = torch.ones((), device=self.device)  # for new transitions, see `ProportionalSampler`

    @property
    def index(self) -> torch.Tensor:
        """(len(self),) int64, ascending; a view."""
        return self._index[self._live()]

    @property
    def priorities(self) -> torch.Tensor:
        """(len(self),) float32, for each in `index`; a writable view."""
        return self._priorities[self._live()]

    def __len__(self) -> int:
        live = self._live()
        return live.stop - live.start

    def __getitem__(self, place: Any) -> Transitions:
        """Gather the transitions at places (slice, tensor)."""
        return self.get(self.index[place])

    def get(self, index: torch.Tensor) -> Transitions:
        """Copy an index's (B,) transitions."""
        columns = self.ring.columns
        n_positions = self.ring.n_positions
        views = self.views
        position = index % n_positions
        step_positions = (position.unsqueeze(1) + self._steps) % n_positions  # (B, n_steps_max)
        n_steps = columns.n_steps.take(position).long()
        # States and next states are gathered in one call: for small batches the call count matters.
        both = torch.cat((position, (position + n_steps) % n_positions))  # (2 B,)
        around = RingRows(self._reader, both)
        state_img, next_state_img = views.images(around, columns.frames).chunk(2)
        state_float, next_state_float = views.floats(around, columns.state_floats, columns.actions).chunk(2)
        state_potential, next_state_potential = columns.potentials.take(both).chunk(2)
        return Transitions(
            index=index,
            state_img=state_img,
            state_float=state_float,
            state_potential=state_potential,
            action=columns.actions.index_select(0, position),
            n_steps=n_steps,
            rewards=columns.rewards.take(step_positions),
            next_state_img=next_state_img,
            next_state_float=next_state_float,
            next_state_potential=next_state_potential,
            terminal_actions=columns.steps_to_finish.take(position),
            entries=self._entries(position) if views.entries else {},
        )

    def _entries(self, position: torch.Tensor) -> dict[str, torch.Tensor]:
        columns = self.ring.columns
        of_views = {
            FRAMES: columns.frames,
            FLOATS: columns.state_floats,
            ACTIONS: columns.actions,
            REWARDS: columns.rewards,
        }
        return self.views.batch_entries(RingRows(self._reader, position), of_views)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> NoReturn:
        """Raise TypeError: rows are only added after the others."""
        raise TypeError("transitions are added after the others: use extend()")

    def contains(self, index: int) -> bool:
        """Return whether the transition with this index is there."""
        return bool((self.index == index).any())

    def append(self, index: npt.ArrayLike) -> int:
        """Add an index (n,), ascending and above the present one; return the count still in the ring."""
        index = np.asarray(index, dtype=np.int64)
        if len(index) and index[0] < self.ring.first_row:  # a race longer than the ring
            index = index[index >= self.ring.first_row]
        n_new = len(index)
        if self._end + n_new > self._index.shape[0]:
            live = self._live()
            self._start = 0
            self._end = live.stop - live.start
            size = 3 * (self._end + n_new) // 2
            self._index, self._priorities = (_moved(old[live], size) for old in (self._index, self._priorities))
        new = slice(self._end, self._end + n_new)
        self._index[new] = torch.from_numpy(index)
        self._priorities[new] = self.new_priority
        self._end = new.stop
        self.max_size = self.ring.capacity
        return n_new

    def state_dict(self) -> dict[str, Any]:
        """Return index and priorities, in host memory."""
        return {
            "index": self.index.cpu().clone(),
            "priorities": self.priorities.cpu().clone(),
            "new_priority": self.new_priority.cpu().clone(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, after the ring buffer's."""
        self._empty()
        self.append(state_dict["index"].numpy(force=True))
        self.priorities.copy_(state_dict["priorities"])
        self.new_priority.copy_(state_dict["new_priority"])

    def _live(self) -> slice:
        """Drop the transitions whose rows were overwritten; return the others' places."""
        first_row = self.ring.first_row
        if first_row != self._first_row_seen:
            self._start += int(torch.searchsorted(self._index[self._start : self._end], first_row))
            self._first_row_seen = first_row
        return slice(self._start, self._end)


def _moved(column: torch.Tensor, size: int) -> torch.Tensor:
    longer = column.new_empty(size)
    longer[: len(column)] = column
    return longer


class ProportionalSampler(RandomSampler):
    """Proportional prioritized replay (Schaul et al. 2016, https://arxiv.org/abs/1511.05952), sections 3.3 and 3.4.

    Transition i is drawn with probability p_i / sum(p), p_i = (abs(error_i) + epsilon)^alpha. The loss is
    multiplied by (min(p) / p_i)^beta, which corrects the bias fully at beta = 1; the minimum is the batch's. A
    new transition has the largest priority so far, at least 1.

    Drawing is one cumulative sum and one binary search over all priorities, short beside an update even for a
    million transitions. `alpha` = 0 draws evenly; a changed one applies when a transition is trained on again.
    """

    def __init__(self, alpha: float, beta: float = 1.0, epsilon: float = 2e-3) -> None:
        super().__init__()
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon

    def sample(self, storage: TransitionStorage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw an index (batch_size,); by priority with its `weight` (batch_size,).

        Raises:
            RuntimeError: if there is nothing to draw.
        """
        n_transitions = len(storage)
        if n_transitions == 0:
            raise RuntimeError("the replay buffer is empty: fill it with a race before sampling")
        if self.alpha == 0:
            place = torch.randint(n_transitions, (batch_size,), generator=self._rng, device=storage.device)
            return storage.index.take(place), {}
        # float64: in single precision a running sum over many transitions would lose the small priorities.
        cumulative = storage.priorities.cumsum(0, dtype=torch.float64)
        draw = torch.rand(batch_size, generator=self._rng, device=storage.device, dtype=torch.float64) * cumulative[-1]
        place = torch.searchsorted(cumulative, draw, right=True).clamp_(max=n_transitions - 1)
        priority = storage.priorities[place]
        return storage.index[place], {"weight": (priority.min() / priority).pow(self.beta)}

    def update_priority(
        self, index: Any, priority: torch.Tensor, *, storage: TransitionStorage | None = None
    ) -> dict[str, Any] | None:
        """Set an index's (B,) priorities by absolute errors (B,).

        Overwritten transitions are ignored. If a transition is drawn twice, the larger error counts.
        """
        assert storage is not None
        if self.alpha == 0 or len(storage) == 0:
            return None
        index = torch.as_tensor(index, device=storage.device)
        errors = priority.detach().to(storage.device, torch.float32).abs()
        priorities = (errors.nan_to_num(0.0, posinf=0.0) + self.epsilon).pow(self.alpha)
        places = torch.searchsorted(storage.index, index).clamp_(max=len(storage) - 1)
        still_there = storage.index[places] == index
        storage.priorities.scatter_reduce_(0, places[still_there], priorities[still_there], "amax", include_self=False)
        torch.maximum(storage.new_priority, priorities.max(), out=storage.new_priority)
        return None
