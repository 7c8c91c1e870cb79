"""Policies: the interface between agents and games."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.actions import Action

ELAPSED_ACTIONS_FLOAT: Final = 0
"""Index of the float with the elapsed actions of the mini-race: 0 while playing, set when sampled."""


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """Decision in one state."""

    action: Action  #: index into the configured `inputs`, or (D,) float32
    is_greedy: bool
    #: (A,) expected sum of rewards until the mini-race ends, by action; (1,), of `action`, if continuous
    q_values: npt.NDArray[np.float32]


Policy = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.float32]], PolicyDecision]
"""Called with a state's image (S, H, W), the newest frame last, and floats (F,)."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """Decisions in n states; see `PolicyDecision`."""

    actions: npt.NDArray[np.int64] | npt.NDArray[np.float32]  #: (n,) or (n, D)
    is_greedy: npt.NDArray[np.bool_]  #: (n,)
    q_values: npt.NDArray[np.float32]  #: (n, A) or (n, 1)

    @classmethod
    def of_one(cls, decision: PolicyDecision) -> BatchDecision:
        """Return a batch of one decision."""
        return cls(np.array([decision.action]), np.array([decision.is_greedy]), decision.q_values[np.newaxis])
