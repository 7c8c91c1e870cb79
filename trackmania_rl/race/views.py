"""Views: what a state shows beside its own row, read from rows around it.

While a race is driven its columns are read here; the replay memory reads its rows in the same way
(`experience_replay/row_views.py`), so that an agent sees the same bytes in a race and in a batch. Where a race has no
row, the nearest one stands in: its first row for those before it, its last one for those after. But before its first
row no action was taken and no reward earned: there the action that goes straight on stands in, and 0.
"""

from __future__ import annotations

import functools
from collections import deque
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
    """One view of a column.

    Attributes:
        name: of the block of the observation, or of the entry of training batches, that it makes.
        column: `FLOATS`, `ACTIONS`, `REWARDS` or `FRAMES`.
        shifts: ascending, which rows: -1 is the one before, 0 the state's own, 1 the one after.
        start: of `FLOATS`, the first one.
        stop: of `FLOATS`, one more than the last.
        is_single: whether an entry of batches has no axis for the rows, as one is asked for.
    """

    name: str
    column: str
    shifts: tuple[int, ...]
    start: int = 0
    stop: int = 0
    is_single: bool = False

    @property
    def part(self) -> slice:
        """Of `FLOATS`, which ones."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Views:
    """All views of a run.

    Attributes:
        frame_shifts: the frames that make one image, oldest first.
        inputs: views of `FLOATS` and `ACTIONS` in rows before, which agents see as floats behind the row's own.
        entries: views that become entries of training batches; agents do not see them while driving.
        n_input_floats: how many floats `inputs` make.
        floats_of_actions: what inputs show of each action, D floats; none where actions are floats themselves.
        action_before: the action that stands for every one before the first.
        largest_action: where actions are floats themselves, they are shown from minus this to this.
    """

    frame_shifts: tuple[int, ...] = (0,)
    inputs: tuple[View, ...] = ()
    entries: tuple[View, ...] = ()
    n_input_floats: int = 0
    floats_of_actions: tuple[tuple[float, ...], ...] = ()
    action_before: int | tuple[float, ...] = 0
    largest_action: float = 1.0

    @functools.cached_property
    def action_table(self) -> npt.NDArray[np.float32] | None:
        """(A, D) float32, what inputs show of each action; None where actions are floats themselves."""
        return np.array(self.floats_of_actions, dtype=np.float32) if self.floats_of_actions else None

    @property
    def rows_back(self) -> int:
        """How many rows before a state's own an agent sees."""
        return -min(self.frame_shifts + tuple(shift for view in self.inputs for shift in view.shifts))

    def look(self, frames: Array, floats: Array, actions: Array, races: Array, rows: Array) -> tuple[Array, Array]:
        """See some states of races as agents do.

        Args:
            frames: (K, R, 1, H, W) uint8 of K races; rows after the state's own are not read.
            floats: (K, R, F) float32, likewise.
            actions: (K, R, ...), of which only those of rows before are read.
            races: (n,) which race each state is of.
            rows: (n,) which row of it.

        Returns:
            Images (n, S, H, W) uint8, and floats (n, F + n_input_floats) float32.
        """
        if self.frame_shifts == (0,):
            images = frames[races, rows]
        else:
            images = frames[races[:, None], _held(rows, self.frame_shifts), 0]
        own = floats[races, rows]
        if not self.inputs:
            return images, own
        return images, np.concatenate(
            [own, *(self._shown(view, floats, actions, races, rows) for view in self.inputs)], axis=1
        )

    def look_at_last(self, rollout_results: Mapping[str, Any]) -> tuple[Array, Array]:
        """See the last state of a race that is over: an image (S, H, W), and floats (F + n_input_floats,)."""
        frames, floats, actions = (rollout_results[name][None] for name in ("frames", "state_float", "actions"))
        last = np.array([actions.shape[1]])
        images, floats = self.look(frames, floats, actions, np.zeros(1, dtype=np.int64), last)
        return images[0], floats[0]

    def _shown(self, view: View, floats: Array, actions: Array, races: Array, rows: Array) -> Array:
        seen = _held(rows, view.shifts)
        if view.column == FLOATS:
            return _side_by_side(floats[races[:, None], seen, view.part])
        taken = actions[races[:, None], seen]
        taken[rows[:, None] + np.array(view.shifts) < 0] = self.action_before
        if self.action_table is None:
            return _side_by_side(taken.clip(-self.largest_action, self.largest_action))
        return _side_by_side(self.action_table[taken])


NO_VIEWS: Final = Views()
"""The newest frame and the row's own floats alone."""


def _side_by_side(values: Array) -> Array:
    """Put the K rows of (n, K, D) side by side, (n, K * D)."""
    return values.reshape(len(values), values.shape[1] * values.shape[2])


def _held(rows: Array, shifts: tuple[int, ...]) -> Array:
    """List the rows (n, K) at the shifts of some rows (n,), the first one for those before it."""
    return np.maximum(rows[:, None] + np.array(shifts), 0)


class LastRows:
    """The last rows of one race under way, of which an agent is shown the newest state.

    Args:
        views: what it sees.
    """

    def __init__(self, views: Views) -> None:
        self._views = views
        self._frames: deque[Array] = deque(maxlen=views.rows_back + 1)
        self._floats: deque[Array] = deque(maxlen=views.rows_back + 1)
        self._actions: deque[Any] = deque(maxlen=views.rows_back + 1)

    def see(self, frame: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32]) -> tuple[Array, Array]:
        """Add the race's next state with its frame (1, H, W) and floats (F,).

        Returns:
            What an agent sees of it: an image (S, H, W) and floats (F + n_input_floats,).
        """
        if self._views.rows_back == 0:
            return frame, floats
        self._frames.append(frame.copy())  # whoever made the frame may draw the next one over it
        self._floats.append(floats)
        self._actions.append(self._views.action_before)  # until `act`
        images, seen = self._views.look(
            np.stack(self._frames)[None],
            np.stack(self._floats)[None],
            np.array(self._actions)[None],
            np.zeros(1, dtype=np.int64),
            np.array([len(self._frames) - 1]),
        )
        return images[0], seen[0]

    def act(self, action: Any) -> None:
        """Note the action taken in the newest state."""
        if self._views.rows_back > 0:
            self._actions[-1] = action
