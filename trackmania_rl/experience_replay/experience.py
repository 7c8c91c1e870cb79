"""One transition in full; the replay memory holds columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from trackmania_rl.experience_replay.ring_buffer import RowColumns
from trackmania_rl.experience_replay.transitions import Transitions


@dataclass(frozen=True)
class Experience:
    """An n-step transition, before the mini-race logic of `buffer_collate_function`.

    `buffer[i]` returns one, and `buffer.extend` stores some.

    Attributes:
        state_img: (1, H, W) uint8, when read (S, H, W) with S frames; H = W = 0 without an image.
        state_float: (float_input_dim,) float32.
        state_potential: shaping potential of the state.
        action: index into the inputs; or (D,) float32.
        n_steps: actions between the state and the next state.
        rewards: (n_steps_max,) float32; `rewards[k]` is the discounted sum of the first k + 1 rewards, constant beyond
            `n_steps`.
        gammas: (n_steps_max,) float32; `gammas[k]` = gamma^(k + 1).
        next_state_img: like `state_img`.
        next_state_float: like `state_float`.
        next_state_potential: 0 at the finish.
        terminal_actions: actions from the state to the finish; `NEVER_FINISHES` if the race was cut off.
    """

    state_img: npt.NDArray[np.uint8]
    state_float: npt.NDArray[np.float32]
    state_potential: float
    action: int | npt.NDArray[np.float32]
    n_steps: int
    rewards: npt.NDArray[np.float32]
    gammas: npt.NDArray[np.float32]
    next_state_img: npt.NDArray[np.uint8]
    next_state_float: npt.NDArray[np.float32]
    next_state_potential: float
    terminal_actions: int

    @staticmethod
    def of(transition: Transitions, gamma: float) -> Experience:
        """Convert a single transition."""
        of_state = {name: column for name, column in vars(transition).items() if name != "entries"}
        columns = {name: column[0].numpy(force=True) for name, column in of_state.items()}
        n_steps, terminal_actions = int(columns["n_steps"]), int(columns["terminal_actions"])
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

    def single_rewards(self) -> npt.NDArray[np.float32]:
        """Return the rewards (n_steps,) of single actions, not discounted."""
        sums = np.asarray(self.rewards[: self.n_steps], dtype=np.float64)
        discounts = np.append(1.0, self.gammas[: self.n_steps - 1])
        return (np.diff(sums, prepend=0.0) / discounts).astype(np.float32)


def rows_of_experiences(experiences: Sequence[Experience]) -> RowColumns:
    """Return transitions as rows, n_steps + 1 of each: its state, n_steps - 1 fillers, its next state.

    Fillers are never next states: a transition that ends there ends with its mini-race.

    Raises:
        ValueError: if an image has several frames; the memory stores one per row.
    """
    if any(len(experience.state_img) != 1 for experience in experiences):
        raise ValueError("an Experience to store has an image of one frame, (1, H, W)")
    lengths = torch.tensor([experience.n_steps + 1 for experience in experiences])
    last = lengths.cumsum(0) - 1

    def column(of_state: str, of_next_state: str | None = None) -> torch.Tensor:
        rows = torch.from_numpy(np.stack([getattr(e, of_state) for e in experiences])).repeat_interleave(lengths, dim=0)
        if of_next_state is not None:
            rows[last] = torch.from_numpy(np.stack([getattr(e, of_next_state) for e in experiences]))
        return rows

    n_steps = torch.zeros(int(lengths.sum()), dtype=torch.int64)
    n_steps[last - lengths + 1] = lengths - 1
    return RowColumns(
        frames=column("state_img", "next_state_img"),
        state_floats=column("state_float", "next_state_float"),
        actions=column("action"),
        rewards=torch.from_numpy(np.concatenate([np.append(e.single_rewards(), np.float32(0)) for e in experiences])),
        potentials=column("state_potential", "next_state_potential"),
        n_steps=n_steps,
        steps_to_finish=column("terminal_actions"),
    )
