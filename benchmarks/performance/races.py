"""Races to send and to store. Imports little: the processes that send them start quickly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

N_FLOATS = 184
N_ACTIONS = 12


def random_race(n_frames: int, image_size_px: tuple[int, ...], seed: int) -> dict[str, Any]:
    """The part of `rollout_results` that replay reads, of a race that was cut off, its last frame included."""
    rng = np.random.default_rng(seed)
    return {
        "frames": rng.integers(0, 256, (n_frames, 1, *image_size_px), dtype=np.uint8),
        "state_float": rng.normal(size=(n_frames, N_FLOATS)).astype(np.float32),
        "actions": rng.integers(0, N_ACTIONS, n_frames - 1),
        "action_was_greedy": rng.random(n_frames - 1) < 0.9,
        "meters_advanced_along_centerline": rng.random(n_frames).cumsum(),
    }


def as_lists(race: Mapping[str, Any]) -> dict[str, list[Any]]:
    """A race as the classic client leaves it: a list entry, and an array of its own, for each state."""
    return {
        name: [step.copy() if isinstance(step, np.ndarray) else step.item() for step in column]
        for name, column in race.items()
    }
