"""Classic way of replay: one Python object for each transition.

A race comes as lists, one array for each frame and each state. A loop makes an object of every transition, with its
n-step sums; torchrl's `ListStorage` keeps them; a batch is stacked from the objects drawn, and its images are converted
to floats in host memory. Objects refer to the frames of the race, which are not copied when it is stored.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchrl.data import ListStorage, ReplayBuffer

from trackmania_rl.race.rewards import SHAPED_DISTANCE_M
from trackmania_rl.settings import ReplaySettings, RewardSettings

NEVER = float("inf")
"""`terminal_actions` of a race that was not finished."""


@dataclass
class ClassicExperience:
    """One n-step transition; the fields are those of `trackmania_rl.experience_replay.transitions.Experience`."""

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
    terminal_actions: float


class ClassicReplay:
    """Train and test buffer of objects."""

    def __init__(self, memory_size: int, replay: ReplaySettings, reward: RewardSettings, gamma: float) -> None:
        self.replay = replay
        self.reward = reward
        self.gamma = gamma
        self.images_as_floats = True
        self._rng = np.random.default_rng(0)
        self._side_rng = random.Random(0)  # Python's own: the cheapest way to draw one number
        self.buffer, self.buffer_test = (
            ReplayBuffer(storage=ListStorage(size), collate_fn=self.collate)
            for size in (memory_size, max(1, int(memory_size * replay.buffer_test_ratio)))
        )

    def fill(self, race: Mapping[str, list[Any]], ms_per_action: int, zone_centers: slice) -> None:
        """Store a race that was cut off."""
        n_states = len(race["frames"])
        rewards = [0.0]  # of the action that led to each state
        for i in range(1, n_states):
            advanced_m = race["meters_advanced_along_centerline"][i] - race["meters_advanced_along_centerline"][i - 1]
            reward = self.reward.constant_reward_per_ms * ms_per_action
            reward += advanced_m * self.reward.reward_per_m_advanced_along_centerline
            rewards.append(reward)
        gammas = np.array([self.gamma ** (k + 1) for k in range(self.replay.n_steps)], dtype=np.float32)
        train: list[ClassicExperience] = []
        test: list[ClassicExperience] = []
        for i in range(n_states - 1):
            n_steps = min(self.replay.n_steps, n_states - 1 - i)
            if self.replay.discard_non_greedy_actions_in_nsteps:
                for k in range(1, n_steps):
                    if not race["action_was_greedy"][i + k]:
                        n_steps = k
                        break
            sums = np.zeros(self.replay.n_steps, dtype=np.float32)
            for k in range(n_steps):
                sums[k] = self.gamma**k * rewards[i + k + 1] + (sums[k - 1] if k > 0 else 0)
            experience = ClassicExperience(
                state_img=race["frames"][i],
                state_float=race["state_float"][i],
                state_potential=self._potential(race["state_float"][i][zone_centers]),
                action=race["actions"][i],
                n_steps=n_steps,
                rewards=sums,
                gammas=gammas,
                next_state_img=race["frames"][i + n_steps],
                next_state_float=race["state_float"][i + n_steps],
                next_state_potential=self._potential(race["state_float"][i + n_steps][zone_centers]),
                terminal_actions=NEVER,
            )
            (test if self._side_rng.random() < self.replay.buffer_test_ratio else train).append(experience)
        self.buffer.extend(train)
        if test:
            self.buffer_test.extend(test)

    def _potential(self, zone_centers_m: npt.NDArray[np.float32]) -> float:
        distance_m = max(
            SHAPED_DISTANCE_M[0],
            min(SHAPED_DISTANCE_M[1], float(np.linalg.norm(zone_centers_m[:3]))),
        )
        return self.reward.shaped_reward_dist_to_cur_vcp * distance_m

    def collate(self, drawn: list[ClassicExperience]) -> tuple[torch.Tensor, ...]:
        """Place transitions at random points of mini-races and stack them."""
        column = {name: np.array([getattr(e, name) for e in drawn]) for name in ClassicExperience.__annotations__}
        duration = self.replay.temporal_mini_race_duration_actions
        assert duration is not None
        long, full = self.replay.oversample_long_term_steps, 5
        elapsed = np.abs(self._rng.integers(full - long, duration + full, len(drawn)))
        elapsed = np.maximum(elapsed - full, 0)
        n_steps = np.minimum(column["n_steps"], duration - elapsed)
        terminal = (n_steps >= column["terminal_actions"]) | (elapsed + n_steps >= duration)
        rows = np.arange(len(drawn))
        gamma_n = np.where(terminal, 0.0, column["gammas"][rows, n_steps - 1]).astype(np.float32)
        rewards = column["rewards"][rows, n_steps - 1] - column["state_potential"]
        rewards = (rewards + gamma_n * column["next_state_potential"]).astype(np.float32)
        column["state_float"][:, 0] = elapsed
        column["next_state_float"][:, 0] = elapsed + n_steps
        return (
            self._image(column["state_img"]),
            torch.from_numpy(column["state_float"]),
            torch.from_numpy(column["action"]),
            torch.from_numpy(rewards),
            self._image(column["next_state_img"]),
            torch.from_numpy(column["next_state_float"]),
            torch.from_numpy(gamma_n),
        )

    def _image(self, images: npt.NDArray[np.uint8]) -> torch.Tensor:
        tensor = torch.from_numpy(images)
        return (tensor.to(torch.float32) - 128) / 128 if self.images_as_floats else tensor
