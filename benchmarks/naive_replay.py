"""The yardstick of `replay.py`: a replay memory as one would first write it.

One Python object for each transition, made in a loop; a list of them; batches stacked from the objects drawn. It copies
each race's frames once, as it must (they arrive in shared memory that is reused), and its next frames are references.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch


class NaiveExperience(NamedTuple):
    """One n-step transition; the fields are those of `trackmania_rl.experience_replay.experience.Experience`."""

    state_img: Any
    state_float: Any
    state_potential: float
    action: int
    n_steps: int
    rewards: Any
    next_state_img: Any
    next_state_float: Any
    next_state_potential: float
    terminal_actions: float


class NaiveReplay:
    """A list of transitions with the memory's size as its bound."""

    def __init__(self, memory_size: int, n_steps: int, duration_actions: int, gamma: float) -> None:
        self.experiences: list[NaiveExperience] = []
        self.memory_size = memory_size
        self.n_steps = n_steps
        self.duration_actions = duration_actions
        self.gamma = gamma

    def fill(self, rollout: dict[str, Any], rewards: Any, potentials: Any) -> None:
        """Add a race that was cut off, transition by transition."""
        n_states = len(rollout["actions"])
        frames, state_float = rollout["frames"].copy(), rollout["state_float"].copy()
        for i in range(n_states - 1):
            n = min(self.n_steps, n_states - 1 - i)
            for k in range(1, n):
                if not rollout["action_was_greedy"][i + k]:
                    n = k
                    break
            sums = np.zeros(self.n_steps, dtype=np.float32)
            for k in range(n):
                sums[k] = self.gamma**k * rewards[i + k] + (sums[k - 1] if k else 0)
            self.experiences.append(
                NaiveExperience(
                    frames[i],
                    state_float[i],
                    float(potentials[i]),
                    int(rollout["actions"][i]),
                    n,
                    sums,
                    frames[i + n],
                    state_float[i + n],
                    float(potentials[i + n]),
                    float("inf"),
                )
            )
        del self.experiences[: max(0, len(self.experiences) - self.memory_size)]

    def sample(self, batch_size: int, device: str) -> tuple[torch.Tensor, ...]:
        """Draw a batch of mini-races."""
        drawn = random.choices(self.experiences, k=batch_size)
        columns = [np.stack([np.asarray(e[field]) for e in drawn]) for field in range(len(NaiveExperience._fields))]
        (images, floats, potentials, actions, n_steps, sums, next_images, next_floats, next_potentials, to_finish) = (
            columns
        )
        elapsed = np.random.default_rng().integers(0, self.duration_actions, batch_size)
        cut_n = np.minimum(n_steps, self.duration_actions - elapsed)
        terminal = (cut_n >= to_finish) | (elapsed + n_steps >= self.duration_actions)
        gamma_n = np.where(terminal, 0.0, self.gamma**cut_n)
        rewards = sums[np.arange(batch_size), cut_n - 1] + gamma_n * next_potentials - potentials
        floats[:, 0] = elapsed
        next_floats[:, 0] = elapsed + cut_n
        arrays = (
            images,
            floats,
            actions,
            rewards.astype(np.float32),
            next_images,
            next_floats,
            gamma_n.astype(np.float32),
        )
        return tuple(torch.from_numpy(array).to(device) for array in arrays)
