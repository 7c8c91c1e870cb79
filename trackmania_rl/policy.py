"""What a policy answers when it is asked for an action: the one type that the agent and the game's client share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """One decision.

    Attributes:
        action: index into the configured `inputs`.
        is_greedy: whether `action` is the one with the highest value; exploration may pick it by chance.
        q_values: (A,) float32, the value of each action: expected sum of rewards until the mini-race ends.
    """

    action: int
    is_greedy: bool
    q_values: npt.NDArray[np.float32]


Policy = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.float32]], PolicyDecision]
"""What decides: called with the image (S, H, W) of a state, the newest of its S frames last, and its floats (F,)."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """Decisions in n states.

    Attributes:
        actions: (n,) int64, see `PolicyDecision.action`; the other two likewise.
        is_greedy: (n,) bool.
        q_values: (n, A) float32.
    """

    actions: npt.NDArray[np.int64]
    is_greedy: npt.NDArray[np.bool_]
    q_values: npt.NDArray[np.float32]
