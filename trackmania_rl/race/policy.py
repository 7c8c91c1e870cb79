"""Policies: the interface between agents and games."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.actions import Action

ELAPSED_ACTIONS_FLOAT: Final = 0
"""Index of the time elapsed in the mini-race among a state's floats, in actions: 0 while playing, set when sampled."""


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """Decision in one state."""

    action: Action  #: index into the configured `inputs`, or (D,) float32
    is_greedy: bool  #: whether `action` has the highest value, with or without exploration
    #: (A,) value of each action: expected sum of rewards until the mini-race ends; (1,), of `action`, if continuous
    q_values: npt.NDArray[np.float32]


Policy = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.float32]], PolicyDecision]
"""Called with a state's image (S, H, W), the newest frame last, and its floats (F,)."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """Decisions in n states; fields as of `PolicyDecision`."""

    actions: npt.NDArray[np.int64] | npt.NDArray[np.float32]  #: (n,) or (n, D)
    is_greedy: npt.NDArray[np.bool_]  #: (n,)
    q_values: npt.NDArray[np.float32]  #: (n, A) or (n, 1)

    @classmethod
    def of_one(cls, decision: PolicyDecision) -> BatchDecision:
        """Return a batch of one decision."""
        return cls(np.array([decision.action]), np.array([decision.is_greedy]), decision.q_values[np.newaxis])
