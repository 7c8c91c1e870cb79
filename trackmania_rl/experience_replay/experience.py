"""One transition written out in full: what a row of the replay memory stands for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from trackmania_rl.experience_replay.row_ring import RowRing


@dataclass(frozen=True)
class Experience:
    """An n-step transition, before the mini-race logic of `buffer_collate_function`.

    The memory never holds these objects: they are read from its columns on demand.

    Attributes:
        state_img: (1, H, W) uint8; H = W = 0 where the observation has no image.
        state_float: (float_input_dim,) float32.
        state_potential: shaping potential of the state.
        action: index into the inputs.
        n_steps: actions between the state and the next state; at most the configured number.
        rewards: (n_steps_max,) float32; `rewards[k]` is the discounted sum of the first k + 1 rewards. Beyond `n_steps`
            it stays at its last value.
        gammas: (n_steps_max,) float32; `gammas[k]` = gamma^(k + 1), the discount of what follows `rewards[k]`.
        next_state_img: like `state_img`.
        next_state_float: like `state_float`.
        next_state_potential: 0 at the finish.
        terminal_actions: actions from the state to the finish, `NEVER_FINISHES` where the race was not finished.
    """

    state_img: npt.NDArray[np.uint8]
    state_float: npt.NDArray[np.float32]
    state_potential: float
    action: int
    n_steps: int
    rewards: npt.NDArray[np.float32]
    gammas: npt.NDArray[np.float32]
    next_state_img: npt.NDArray[np.uint8]
    next_state_float: npt.NDArray[np.float32]
    next_state_potential: float
    terminal_actions: int


def read_experience(ring: RowRing, row_id: int, n_steps_max: int, gamma: float) -> Experience:
    """Write out the transition that starts at a row.

    Args:
        ring: where the row is.
        row_id: the row's number, as `RowRing.append` gave it.
        n_steps_max: the configured number of steps: the length of `rewards` and `gammas`.
        gamma: discount of one action.

    Raises:
        KeyError: if the row was overwritten, or not yet written.
    """
    if not ring.first_row <= row_id < ring.end_row:
        raise KeyError(f"row {row_id} is not in the replay memory, which holds {ring.first_row} to {ring.end_row - 1}")
    columns = ring.columns
    position = row_id % ring.capacity
    n_steps = int(columns.n_steps[position])
    terminal_actions = int(columns.steps_to_finish[position])
    reaches_finish = n_steps == terminal_actions
    next_position = (position + n_steps) % ring.capacity

    exponents = torch.arange(n_steps_max)
    step_rewards = torch.zeros(n_steps_max)
    step_rewards[:n_steps] = columns.rewards[(position + exponents[:n_steps]) % ring.capacity].cpu()
    return Experience(
        state_img=columns.frames[position].numpy(force=True).copy(),
        state_float=columns.state_floats[position].numpy(force=True).copy(),
        state_potential=float(columns.potentials[position]),
        action=int(columns.actions[position]),
        n_steps=n_steps,
        rewards=torch.cumsum(gamma**exponents * step_rewards, dim=0).numpy(),
        gammas=(gamma ** (exponents + 1)).numpy().astype(np.float32),
        next_state_img=columns.frames[next_position].numpy(force=True).copy(),
        next_state_float=columns.state_floats[next_position].numpy(force=True).copy(),
        next_state_potential=0.0 if reaches_finish else float(columns.potentials[next_position]),
        terminal_actions=terminal_actions,
    )
