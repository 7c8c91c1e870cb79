"""What the agent and the game's client share: what a policy is asked and answers, and one float's place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.actions import Action

ELAPSED_ACTIONS_FLOAT: Final = 0
"""The first float of a state is the time elapsed in the mini-race, in actions: 0 while driving, set when sampled."""


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """One decision.

    Attributes:
        action: index into the configured `inputs`; (D,) float32 where actions are numbers.
        is_greedy: whether `action` is the one with the highest value; exploration may pick it by chance.
        q_values: (A,) float32, the value of each action: expected sum of rewards until the mini-race ends; (1,), the
            value of the action taken, where actions are numbers.
    """

    action: Action
    is_greedy: bool
    q_values: npt.NDArray[np.float32]


Policy = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.float32]], PolicyDecision]
"""What decides: called with the image (S, H, W) of a state, the newest of its S frames last, and its floats (F,)."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """Decisions in n states.

    Attributes:
        actions: (n,) int64, see `PolicyDecision.action`; the other two likewise. (n, D) float32 where actions are
            numbers.
        is_greedy: (n,) bool.
        q_values: (n, A) float32; (n, 1), the value of the action taken, where actions are numbers.
    """

    actions: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    is_greedy: npt.NDArray[np.bool_]
    q_values: npt.NDArray[np.float32]

    @classmethod
    def of_one(cls, decision: PolicyDecision) -> BatchDecision:
        """A decision in one state."""
        return cls(np.array([decision.action]), np.array([decision.is_greedy]), decision.q_values[np.newaxis])
